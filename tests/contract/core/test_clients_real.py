"""Clients with real taps, sockets and commands: faults that an observer sees, operations, and nothing left behind."""

import asyncio
import contextlib
import itertools
import json
import os
import sys
import time
from pathlib import Path

import anyio
import psutil
import pytest

from hashidrill.core.engine.load_generator import LoadGenerator, LoadSpecification
from hashidrill.core.errors import DatacenterError, FaultError, HashidrillError
from hashidrill.core.experiment.model import ClientSpec
from hashidrill.core.faults.tap import TapFail
from hashidrill.core.loads.base import LoadContext
from hashidrill.core.loads.clients import ENDED, ClientLoad
from hashidrill.core.protocols.abc import Reason, Target
from hashidrill.core.protocols.registry import CLIENT
from hashidrill.core.recording.journal import Clock
from hashidrill.core.tap import observer
from hashidrill.core.tap.catalogue import FAULTS
from hashidrill.core.tap.plans import UNSEEN
from hashidrill.core.util.wait import wait_until
from hashidrill.lab.local.hosts import LocalTap
from hashidrill.testing.faults import check_fault
from polled import wait

pytestmark = pytest.mark.long

CLASSES = sorted(FAULTS.keys() - UNSEEN)
EXAMPLE = ["{python}", "-m", "hashidrill.clients.retry.example"]
_WITHIN_S = 30.0
AT_ONCE = 6


def spec(*command, **params):
    return ClientSpec.model_validate({"command": list(command), "via": "script", **params})


# faults and their observer: one client whose tap answers from a script, in this process


@contextlib.asynccontextmanager
async def tapped(folder, name="careful"):
    """A client that offers nothing, and its tap as faults see it."""
    socket = folder / f"tap-{name}"
    client = ClientLoad(name, spec("true", rate="1/s"), LoadContext([], control=str(socket)))
    await client.prepare()
    try:
        yield client, LocalTap(name, socket)
    finally:
        await client._open.aclose()
        assert not socket.exists()


class Taps:
    """The part of a datacenter that tap.fail asks for."""

    def __init__(self, tap):
        self.tap = lambda _client: tap


def fail(tap, **params):
    return TapFail(TapFail.Params.model_validate(params), Taps(tap))


TARGET = Target("careful", "127.0.0.1", "client")


SOME = CLASSES[::6]
"""Tried at both shares each time; the others at the smaller one, which takes four times as many exchanges, nightly."""


def shares():
    for name in CLASSES:
        yield name, "100%"
        yield pytest.param(name, "30%", marks=[] if name in SOME else [pytest.mark.nightly])


@pytest.fixture(scope="module")
def reports(request, tmp_path_factory):
    """{(class, share): what became of its contract}: of all selected tests, some at a time, each on a tap of its own.

    They wait more than they work: a class that hangs is looked for until its time is up, five times.
    """
    test = test_every_class_keeps_the_contract_of_a_fault_on_a_real_tap
    asked = [item.callspec.params for item in request.session.items if getattr(item, "function", None) is test]
    made = {}

    async def check(few, name, percent):
        async with few, tapped(tmp_path_factory.mktemp("tap")) as (_, tap):
            try:
                made[name, percent] = await check_fault(fail(tap, fault=name, percent=percent), TARGET)
            except (AssertionError, HashidrillError) as error:
                made[name, percent] = error

    async def check_all():
        few = anyio.CapacityLimiter(AT_ONCE)
        async with anyio.create_task_group() as tasks:
            for params in asked:
                tasks.start_soon(check, few, params["name"], params["percent"])

    asyncio.run(check_all())
    return made


@pytest.mark.long
@pytest.mark.parametrize(("name", "percent"), list(shares()))
def test_every_class_keeps_the_contract_of_a_fault_on_a_real_tap(name, percent, reports):
    report = reports[name, percent]
    if isinstance(report, Exception):
        raise report
    assert report.present.figures["asked_share"] == (1 if percent == "100%" else 0.3)
    assert report.gone.figures["measured_share"] == 0


async def test_the_observer_tells_every_class_from_every_other(tmp_path):
    """With one class in force, looking for another one finds none of it: 18 taps, 18 looks through each."""

    async def seen_with(armed):
        folder = tmp_path / armed
        folder.mkdir()
        async with tapped(folder) as (_, tap):
            await tap.fail("x", armed, 1.0, 0)
            looks = await asyncio.gather(*(tap.look(asked, 1) for asked in CLASSES))
            return {asked: seen for asked, [seen] in zip(CLASSES, looks, strict=True)}

    seen = dict(zip(CLASSES, await asyncio.gather(*map(seen_with, CLASSES)), strict=True))
    wrong = {
        (armed, asked): what
        for armed in seen
        for asked, what in seen[armed].items()
        if (what == asked) != (armed == asked)
    }
    assert wrong == {}


@pytest.mark.lie
async def test_a_machine_that_is_slow_makes_no_other_reset_of_one(tmp_path):
    """Each turn of the loop takes so long that the tap has not come to its reset when the observer's pause is over."""

    async def slow():
        while True:
            time.sleep(0.4 * observer.PAUSE_S)  # the machine stands still
            await asyncio.sleep(0)

    async with tapped(tmp_path) as (_, tap):
        await tap.fail("x", "reset-before-reused", 1.0, 0)
        slows = asyncio.create_task(slow())
        try:
            outcome = await tap.look("reset-after-reused", 1)
        finally:
            slows.cancel()
            await asyncio.wait([slows])
    assert outcome == ["reset-before-reused"]


async def test_the_observer_sees_that_a_fault_was_disarmed_behind_its_back(tmp_path):
    async with tapped(tmp_path) as (client, tap):
        one = fail(tap, fault="reply-dropped", percent="50%")
        undo = one.plan(TARGET, fault_id="x")
        await one.apply(undo)
        armed = await one.verify(undo, present=True)
        client.faults._plans.clear()
        disarmed, gone = await one.verify(undo, present=True), await one.verify(undo, present=False)
    assert (armed.ok, disarmed.ok, gone.ok) == (True, False, True), (armed, disarmed, gone)


async def test_what_the_observer_does_is_not_recorded_as_the_clients_attempts(tmp_path):
    operations = []
    async with tapped(tmp_path) as (client, tap):
        client._emit = operations.append
        await tap.fail("x", "503", 0.5, 0)
        await tap.look("503", 10)
    assert operations == []


def test_nobody_at_the_socket_is_said_as_such(tmp_path):
    with pytest.raises(FaultError, match="tap-careful: cannot ask for fail"):
        asyncio.run(LocalTap("careful", tmp_path / "tap-careful").fail("x", "503", 1.0, 0))


async def test_a_tap_refuses_what_it_cannot_do_and_goes_on(tmp_path):
    async with tapped(tmp_path) as (_, tap):
        with pytest.raises(FaultError, match="refused cannot be probabilistic"):
            await tap.fail("x", "refused", 1.0, 0)
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "tap-careful"))
        writer.write(b"no JSON\n[]\n")
        answers = [json.loads(await reader.readline()) for _ in range(2)]
        writer.close()
        seen = await tap.look("503", 1)
    assert all(answer["error"] for answer in answers)
    assert seen == ["200"]


def test_an_observer_without_a_tap_sees_that_it_is_refused(free_port):
    assert asyncio.run(observer.exchange(f"http://127.0.0.1:{free_port}", "503")) == "refused"


@pytest.fixture
def free_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# operations: clients in a load generator, as in a run


class Offered:
    """What came of some clients in a load generator that was stopped once `enough` was there."""

    def __init__(self, folder, clients, enough, *, endpoints=(), during=None):
        self.operations, self.folder = [], folder
        anyio.run(self._offer, clients, enough, endpoints, during)

    async def _offer(self, clients, enough, endpoints, during):
        clock = Clock()
        specifications = [
            LoadSpecification(
                name, CLIENT, params, list(endpoints), "127.0.0.1", control=str(self.folder / f"tap-{name}")
            )
            for name, params in clients.items()
        ]
        async with LoadGenerator(clock, "run") as loads:
            await loads.start(specifications, self.operations.append, lambda _t_ns, _sample: None)
            if during is not None:
                await during(self)

            async def there():
                return enough(self) or None, f"{len(self.operations)} operations: {self.operations[-3:]}"

            await wait_until("enough operations", there, within_s=_WITHIN_S)
            await loads.stop()
        assert list(self.folder.glob("tap-*")) == []

    def of(self, load):
        return [op for op in self.operations if op.load == load]

    def tap(self, client):
        return LocalTap(client, self.folder / f"tap-{client}")


def count(load, least):
    return lambda offered: len(offered.of(load)) >= least


def test_each_run_of_a_command_is_an_operation_and_its_attempts_are_known_to_be_its(tmp_path):
    async def armed(offered):
        await offered.tap("careful").fail("x", "503", 0.5, 7)

    # of operations that overlap, one may get any of the tap's decisions: even then, none runs out of retries
    command = spec(*EXAMPLE, "--retries", "40", "--gap", "0.01", "{url}/v1/kv/x", rate="5/s")
    offered = Offered(tmp_path, {"careful": command}, count("careful", 12), during=armed)
    attempts = offered.of("careful.attempts")
    for op in offered.of("careful"):
        mine = [attempt for attempt in attempts if attempt.detail.fields.get("operation") == op.key]
        if op.outcome == "unknown":  # in flight when it was stopped
            continue
        assert [attempt.error for attempt in mine] == ["503"] * (len(mine) - 1) + [""]
        assert (op.outcome, op.error) == ("ok", "")
        assert all(op.start_ns <= attempt.start_ns <= attempt.end_ns <= op.end_ns for attempt in mine)
    assert any(attempt.error for attempt in attempts), "no attempt was failed at all"


@pytest.mark.parametrize(
    ("script", "outcome", "status", "error"),
    [
        ("exit 0", "ok", 0, ""),
        ("exit 3", "fail", 3, "exit status 3"),
        ("echo it broke >&2; exit 1", "fail", 1, "exit status 1: it broke"),
        ("kill -9 $$", "fail", 0, "killed by SIGKILL"),
        ("sleep 100.25", "unknown", 0, "stopped after 0.5s"),
        ("sleep 100.25 & exit 0", "ok", 0, ""),
        ("exec yes", "unknown", 0, "sh: it wrote more than 8 MiB of output and was stopped"),
    ],
)
def test_how_a_command_ended_is_what_came_of_the_operation(script, outcome, status, error, tmp_path):
    # on a busy machine a shell takes a while to begin
    timeout = "500ms" if outcome == "unknown" and script.startswith("sleep") else "20s"
    command = spec("sh", "-c", script, "{url}", rate="2/s", timeout=timeout)
    offered = Offered(tmp_path, {"one": command}, count("one", 1))
    first = offered.of("one")[0]
    assert (first.outcome, first.status) == (outcome, status), first
    assert first.error.startswith(error)
    wait("the end of what was killed", lambda: not children_with("sleep 100.25"), _WITHIN_S)


def children_with(words):
    """The processes on this machine whose command line is that, and which are of this process."""
    mine = psutil.Process().children(recursive=True)
    found = []
    for process in {*mine, *psutil.process_iter()}:
        with contextlib.suppress(psutil.Error):  # it may have ended since: there are other people's processes here
            if (process in mine or process.ppid() == 1) and words in " ".join(process.cmdline()):
                found.append(process.pid)
    return found


def test_more_runs_at_one_time_than_are_allowed_is_the_generators_own_failure(tmp_path):
    command = spec("sleep", "54.321", rate="20/s", at_once=3)
    offered = Offered(tmp_path, {"slow": command}, count("slow", 3))
    assert all(op.error == "generator overloaded: 3 operations in flight" for op in offered.of("slow")[:3])
    wait("the end of what was killed", lambda: not children_with("sleep 54.321"), _WITHIN_S)


def test_the_variables_that_clients_read_name_the_tap(tmp_path):
    script = """
        import os, urllib.request
        for name in ("CONSUL_HTTP_ADDR", "VAULT_ADDR", "NOMAD_ADDR"):
            urllib.request.urlopen(os.environ[name] + "/" + name)
        urllib.request.urlopen("http://somewhere.invalid/by-proxy")
    """
    command = spec("{python}", "-c", "\n".join(line[8:] for line in script.splitlines()), rate="1/s")
    offered = Offered(tmp_path, {"reader": command}, count("reader", 1))
    assert offered.of("reader")[0].outcome == "ok", offered.of("reader")[0].error
    paths = [op.key for op in offered.of("reader.attempts")][:4]
    assert paths == ["GET /CONSUL_HTTP_ADDR", "GET /VAULT_ADDR", "GET /NOMAD_ADDR", "GET /by-proxy"]


async def test_agents_behind_the_tap_are_asked_in_turn_and_from_the_address_of_the_loads(tmp_path):
    """Faults on `clients` name that address: a connection from another one would pass them by."""
    peers = []

    async def agent(reader, writer):
        while (await reader.readuntil(b"\r\n\r\n")) if not reader.at_eof() else b"":
            peers.append((writer.get_extra_info("sockname")[1], writer.get_extra_info("peername")[0]))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]")

    async def quietly(reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await agent(reader, writer)
        writer.close()

    servers = [await asyncio.start_server(quietly, "127.0.0.1", 0) for _ in range(2)]
    ports = [server.sockets[0].getsockname()[1] for server in servers]
    client = ClientLoad(
        "careful",
        ClientSpec.model_validate({"command": ["true"], "rate": "1/s"}),
        LoadContext([f"http://127.0.0.1:{port}" for port in ports], local_address="127.0.0.73"),
    )
    async with client._tap() as tap:
        assert tap.address.startswith("127.0.0.73:")
        seen = [await observer.exchange(tap.url, "503") for _ in range(4)]
    for server in servers:
        server.close()
    assert seen == ["200"] * 4
    assert peers == [(port, "127.0.0.73") for port in ports * 2]


@pytest.mark.parametrize("fault", ["hang", "slow-body"])
def test_the_timeout_of_the_example_is_that_of_the_whole_attempt(fault, tmp_path):
    async def armed(offered):
        await offered.tap("patient").fail("x", fault, 1.0, 0)

    command = spec(*EXAMPLE, "--timeout", "1", "{url}/v1/kv/x", rate="1/s")

    def gave_up(offered):
        return any(op.outcome == "fail" for op in offered.of("patient"))

    offered = Offered(tmp_path, {"patient": command}, gave_up, during=armed)
    failed = next(op for op in offered.of("patient") if op.outcome == "fail")
    assert "TimeoutError" in failed.error
    attempt = next(op for op in offered.of("patient.attempts") if op.error == fault)
    assert 0.9 < (attempt.end_ns - attempt.start_ns) / 1e9 < 3


# services


def test_a_service_reports_its_operations(tmp_path):
    command = spec(*EXAMPLE, "--rate", "20", "{url}/v1/kv/x", service=True)
    offered = Offered(tmp_path, {"ticker": command}, count("ticker", 10))
    known = {op.key: op for op in offered.of("ticker")}  # each is reported as it ends: not always in this order
    first = [known[str(n)] for n in range(5)]
    assert {op.outcome for op in first} == {"ok"}
    assert all(op.intended_ns <= op.start_ns < op.end_ns for op in first)
    gaps = [(b.intended_ns - a.intended_ns) / 1e6 for a, b in itertools.pairwise(first)]
    assert all(abs(gap - 50) < 1 for gap in gaps)
    assert len(offered.of("ticker.attempts")) >= 5


def test_what_a_service_has_under_way_when_it_is_stopped_is_unknown(tmp_path):
    async def armed(offered):
        async def up():
            return offered.of("ticker") or None, "no operation"

        await wait_until("the service to be up", up, within_s=_WITHIN_S)
        await offered.tap("ticker").fail("x", "hang", 1.0, 0)

    command = spec(*EXAMPLE, "--rate", "10", "{url}/v1/kv/x", service=True)
    offered = Offered(
        tmp_path, {"ticker": command}, lambda it: time.monotonic() > it.until, during=armed_for(armed, 2.0)
    )
    assert {op.outcome for op in offered.of("ticker")} <= {"ok", "unknown"}
    assert len([op for op in offered.of("ticker") if op.outcome == "unknown"]) >= 5
    assert any(op.error == "hang" for op in offered.of("ticker.attempts"))


def armed_for(arm, seconds):
    async def arms(offered):
        await arm(offered)
        offered.until = time.monotonic() + seconds

    return arms


def test_a_service_that_ends_by_itself_is_a_failed_operation_and_is_started_again(tmp_path):
    command = spec("sh", "-c", "echo going down; echo disk on fire >&2; exit 7", service=True)
    offered = Offered(tmp_path, {"weak": command}, count("weak", 2))
    one, two = offered.of("weak")[:2]
    assert (one.outcome, one.error) == ("fail", f"{ENDED}: exit status 7: disk on fire")
    assert one.reason == Reason.SERVICE_ENDED
    assert 0.9 <= (two.start_ns - one.end_ns) / 1e9 <= 3


def test_a_service_that_leaves_a_process_behind_is_over_all_the_same(tmp_path):
    command = spec("sh", "-c", "setsid sleep 21.987 & exit 7", service=True)
    offered = Offered(tmp_path, {"weak": command}, count("weak", 1))
    assert (offered.of("weak")[0].end_ns - offered.of("weak")[0].start_ns) / 1e9 < 6
    for pid in children_with("sleep 21.987"):  # it left its group on purpose: a sandbox would end with all of them
        os.kill(pid, 9)


def test_a_service_is_gone_when_the_loads_are_stopped(tmp_path):
    command = spec("sh", "-c", "trap '' TERM; sleep 43.219; sleep 43.219", service=True)
    offered = Offered(tmp_path, {"deaf": command}, lambda _: bool(children_with("sleep 43.219")))
    assert offered.of("deaf") == []
    wait("the end of what was killed", lambda: not children_with("sleep 43.219"), _WITHIN_S)


# what ends a run with one message


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (spec("no-such-command", rate="1/s"), "client broken: no-such-command: there is no such command"),
        (
            spec("sh", "-c", """echo '{"start_ns": 5, "end_ns": 3, "ok": true}'; sleep 60""", service=True),
            "client broken: its report of an operation is wrong: intended_ns, start_ns and",
        ),
    ],
)
def test_a_client_that_cannot_be_measured_ends_the_loads_with_one_message(command, said, tmp_path):
    with pytest.raises(DatacenterError) as error:
        Offered(tmp_path, {"broken": command}, count("nothing", 1))
    assert said in str(error.value)
    assert "Traceback" not in str(error.value)


def test_a_tap_that_cannot_be_spoken_to_is_said_as_such(tmp_path):
    with pytest.raises(DatacenterError, match="client careful: its tap cannot listen at"):
        Offered(Path(tmp_path / "nowhere"), {"careful": spec("true", rate="1/s")}, count("careful", 1))


def test_python_is_this_python(tmp_path):
    command = spec("{python}", "-c", "import sys; sys.exit(sys.argv[1])", "{url}", rate="1/s")
    client = ClientLoad("careful", command, LoadContext([]))
    assert client._command[0] == sys.executable
