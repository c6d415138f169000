"""Every action leaves a line, in Consul, the recording and the webhook; none holds up a run; none has a secret."""

import datetime as dt
import json

import anyio
import pytest

import virtual_time
from fake_kv import FakeKv
from hashidrill.core.errors import FaultError, InterlockError
from hashidrill.core.recording.journal import LineKey, signed_lines
from hashidrill.core.util.redaction import Redactor
from hashidrill.staging.interlocks.audit import Audit
from hashidrill.staging.interlocks.kv import Kv
from tasks import raising

KEY = LineKey(b"of run-7")
NOON = dt.datetime(2026, 11, 23, 12, tzinfo=dt.UTC)
SECRET = "8e1c7f6e-secret-0000-token"
PREFIX = "hashidrill-audit"


@virtual_time.ran
async def audited(world, main, *, webhook=None, post=None, told=None):
    """Runs `main(audit)` beside `audit.keep`, then finishes it."""
    audit = Audit(
        Kv(world, within_s=1),
        PREFIX,
        "run-7",
        "slow-leader-disk",
        "ana@desk",
        now=lambda: NOON,
        tell=(told if told is not None else []).append,
        redactor=Redactor([SECRET]),
        webhook=webhook,
        post=post,
    )
    async with anyio.create_task_group() as group:
        group.start_soon(audit.keep)
        await main(audit)
        group.cancel_scope.cancel()
    await audit.finish()
    return audit


def lines(world):
    return [json.loads(world.value(key)) for key in sorted(world.keys)]


async def one_fault(audit):
    line = audit.note("apply", "disk.latency", "consul-1", lasts_s=20)
    assert await audit.written(line, 5)
    audit.note("gone", "disk.latency", "consul-1")


def test_each_action_leaves_a_line_that_says_who_what_where_and_until_when():
    world, told = FakeKv(), []
    audited(world, one_fault, told=told)
    assert sorted(world.keys) == [f"{PREFIX}/run-7/0001", f"{PREFIX}/run-7/0002"]
    assert lines(world)[0] == {
        "hashidrill": "audit/v1",
        "number": 1,
        "at": "2026-11-23T12:00:00.000Z",
        "run": "run-7",
        "experiment": "slow-leader-disk",
        "who": "ana@desk",
        "verb": "apply",
        "what": "disk.latency",
        "where": "consul-1",
        "until": "2026-11-23T12:00:20.000Z",
    }
    assert told[0] == "audit: apply disk.latency on consul-1 until 2026-11-23T12:00:20.000Z by ana@desk"


def test_no_secret_gets_into_a_line():
    world, told, sent = FakeKv(), [], []

    async def post(_url, data):
        sent.append(data)

    async def main(audit):
        audit.note("stop", f"with {SECRET}", SECRET, note=f"token={SECRET} X-Consul-Token: hunter2hunter2")

    audited(world, main, told=told, webhook="https://hooks.example/x", post=post)
    everything = json.dumps([lines(world), told, sent])
    assert len(sent) == 1
    assert SECRET not in everything
    assert "hunter2" not in everything


def test_a_line_that_consul_does_not_take_is_written_later_and_holds_up_nothing():
    world = FakeKv()

    async def main(audit):
        world.silent = True
        began = anyio.current_time()
        line = audit.note("revert", "disk.latency", "consul-1")
        assert anyio.current_time() == began, "a revert waits for no line"
        assert not await audit.written(line, 3)
        assert anyio.current_time() - began == pytest.approx(3)
        world.silent = False
        assert await audit.written(line, 5)

    audited(world, main)
    assert len(lines(world)) == 1


@pytest.mark.lie
def test_lines_that_a_restore_took_away_are_written_again():
    world = FakeKv()

    async def main(audit):
        await audit.written(audit.note("apply", "consul.snapshot.save", "consul-1"), 5)
        before = world.snapshot()
        await audit.written(audit.note("apply", "consul.snapshot.restore", "consul-1"), 5)
        world.restore(before)
        await audit.written(audit.note("gone", "consul.snapshot.restore", "consul-1"), 5)

    audited(world, main)
    assert [line["number"] for line in lines(world)] == [1, 2, 3]


def test_what_consul_never_took_is_told_and_the_run_ends_in_time():
    world, told = FakeKv(), []

    async def main(audit):
        world.silent = True
        audit.note("apply", "disk.latency", "consul-1")

    audited(world, main, told=told)
    assert told[-1] == "1 of 1 audit lines are in this recording alone"


def test_only_the_last_runs_are_kept():
    old = {f"{PREFIX}/run-{n}/{m:04d}": "{}" for n in range(1, 7) for m in range(1, 3)}
    world = FakeKv({**old, f"{PREFIX}-other/x": "kept", "hashidrill/keys": "kept"})

    async def main(audit):
        await audit.prune(3)
        await audit.written(audit.note("begin"), 5)

    audited(world, main)
    assert {key.split("/")[1] for key in world.keys if key.startswith(f"{PREFIX}/")} == {"run-5", "run-6", "run-7"}
    assert world.value(f"{PREFIX}-other/x") == "kept"


def test_fewer_runs_than_that_are_all_kept():
    world = FakeKv({f"{PREFIX}/run-6/0001": "{}"})

    async def main(audit):
        await audit.prune(50)

    audited(world, main)
    assert world.value(f"{PREFIX}/run-6/0001") == "{}"


async def test_each_line_is_in_the_recording_at_once_and_for_its_owner_alone(tmp_path):
    world, file = FakeKv(), tmp_path / "audit.jsonl"
    world.silent = True
    for count in (2, 4):  # of heal, after the run
        how = {"now": lambda: NOON, "tell": print, "redactor": Redactor(), "file": file, "key": KEY}
        audit = Audit(Kv(world), PREFIX, "run-7", "x", "ana", **how)
        audit.note("apply", "disk.latency", "consul-1")
        assert json.loads(file.read_text().splitlines()[-1])["where"] == "consul-1"
        audit.note("gone", "disk.latency", "consul-1")
        assert "mac" not in audit.lines[0].data()
        signed, missing = signed_lines(file, KEY)
        assert [json.loads(line)["verb"] for line in signed] == ["apply", "gone"] * (count // 2)
        assert missing == 0
    assert file.stat().st_mode & 0o777 == 0o600


async def test_a_recording_that_cannot_be_written_is_told_once_and_holds_up_nothing(tmp_path):
    told = []
    audit = Audit(
        Kv(FakeKv()),
        PREFIX,
        "run-7",
        "x",
        "ana",
        now=lambda: NOON,
        tell=told.append,
        redactor=Redactor(),
        file=tmp_path / "gone" / "audit.jsonl",
    )
    audit.note("apply")
    audit.note("gone")
    assert sum("could not be written" in text for text in told) == 1


# the webhook


@pytest.mark.parametrize("error", [FaultError("no"), OSError("down"), TimeoutError()])
def test_a_webhook_that_fails_is_told_once_and_stops_nothing(error):
    world, told = FakeKv(), []

    async def main(audit):
        for _ in range(5):
            await audit.written(audit.note("apply", "disk.latency", "consul-1"), 5)

    audited(world, main, webhook="https://hooks.example/services/secretpath", post=raising(error), told=told)
    assert len(lines(world)) == 5
    failures = [text for text in told if "webhook" in text]
    assert len(failures) == 1
    assert "hooks.example failed" in failures[0]
    assert "secretpath" not in json.dumps(told)


@pytest.mark.lie
def test_a_webhook_that_never_answers_holds_up_nothing_and_the_end_only_for_a_while():
    world = FakeKv()

    async def post(url, data):
        await anyio.sleep_forever()

    async def main(audit):
        began = anyio.current_time()
        for _ in range(1500):
            audit.note("load", "consul.kv.write")
        assert anyio.current_time() == began

    async def timed(audit):
        nonlocal began
        await main(audit)
        began = anyio.current_time()

    began = 0.0
    told = []
    audited(world, timed, webhook="https://hooks.example/", post=post, told=told)
    assert any("too slow" in text for text in told)
    assert len(world.keys) == 1500


def test_each_line_is_sent_once_and_in_order():
    world, sent = FakeKv(), []

    async def post(url, data):
        sent.append((url, data["number"], data["verb"]))

    audited(world, one_fault, webhook="https://hooks.example/a", post=post)
    assert sent == [("https://hooks.example/a", 1, "apply"), ("https://hooks.example/a", 2, "gone")]


def test_a_token_that_may_not_write_lines_is_told_and_named():
    world, told = FakeKv(), []
    world.denied.add(("PUT", "/v1/kv/hashidrill-audit"))

    async def main(audit):
        assert not await audit.written(audit.note("apply", "disk.latency", "consul-1"), 3)

    audited(world, main, told=told)
    assert any("the token may not write the key hashidrill-audit/run-7/0001" in text for text in told)


def test_pruning_needs_the_right_to():
    world = FakeKv({f"{PREFIX}/run-{n}/0001": "{}" for n in range(3)})
    world.denied.add(("DELETE", "/v1/kv/"))

    async def main(audit):
        with pytest.raises(InterlockError, match="may not delete"):
            await audit.prune(1)

    audited(world, main)
