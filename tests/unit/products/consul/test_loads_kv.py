"""What the KV loads send, and how they judge what comes back."""

import asyncio
import errno

import pytest
from pydantic import ValidationError

import virtual_time
from hashidrill.core.loads.answer import Answer
from hashidrill.core.loads.base import LoadContext
from hashidrill.core.loads.http_client import _unconnected
from hashidrill.core.loads.schedule import OVERLOADED, Reply
from hashidrill.core.protocols.abc import Reason
from hashidrill.core.units import Duration, Size
from hashidrill.products.consul.loads.base import write_reply
from hashidrill.products.consul.loads.kv import (
    Batches,
    KvRead,
    KvWrite,
    _entries,
    identify,
    padded,
    read_reply,
    stamp,
    txn_reply,
)
from virtual_time import VirtualClock


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (Answer(200, b"true"), "ok"),
        (Answer(200, b"true\n"), "ok"),
        (Answer(200, b"false"), "fail"),
        (Answer(200, b""), "unknown"),
        (Answer(200, b"<html>a proxy's page</html>"), "unknown"),
        (Answer(0, error="could not connect: Connection refused", sent=False), "fail"),
        (Answer(0, error="no answer within 30s"), "unknown"),
        (Answer(0, error="connection lost: reset by peer"), "unknown"),
        (Answer(400, b"bad request"), "fail"),
        (Answer(403, b"Permission denied"), "fail"),
        (Answer(408, b"request timeout"), "unknown"),
        (Answer(413, b"Request body too large"), "fail"),
        (Answer(429, b"rate limit exceeded"), "fail"),
        (Answer(500, b"No cluster leader"), "unknown"),
        (Answer(500, b"leadership lost while committing log"), "unknown"),
        (Answer(503, b"rate limit exceeded"), "unknown"),
        (Answer(302), "unknown"),
    ],
)
def test_a_write_fails_only_when_it_certainly_was_not_applied(answer, outcome):
    reply = write_reply(answer)
    assert reply.outcome == outcome
    assert reply.status == answer.status
    assert bool(reply.error) == (outcome != "ok")


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (Answer(200, b"run.7;xxx"), "ok"),
        (Answer(404), "fail"),
        (Answer(500, b"No cluster leader"), "fail"),
        (Answer(0, error="no answer within 30s"), "fail"),
    ],
)
def test_a_read_that_was_not_answered_changed_nothing(answer, outcome):
    assert read_reply(answer).outcome == outcome


def test_a_read_records_which_write_it_saw():
    assert read_reply(Answer(200, padded("run.7", 512))).value == "run.7"


@pytest.mark.parametrize("size_bytes", [64, 512, 4096])
def test_a_value_has_the_size_asked_for_and_gives_its_identity_back(size_bytes):
    value = padded(stamp("2026-01-01-slow-leader-disk-abc123", 123456789), size_bytes)
    assert len(value) == size_bytes
    assert identify(value) == "2026-01-01-slow-leader-disk-abc123.123456789"


OK = Reply("ok")
RESULTS = b'{"Results": [{"KV": {}}, {"KV": {}}], "Errors": null}'


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (Answer(200, RESULTS), "ok"),
        (Answer(200, b'{"Results": [{"KV": {}}], "Errors": null}'), "unknown"),
        (Answer(200, b"true"), "unknown"),
        (Answer(409, b'{"Results": null, "Errors": [{"OpIndex": 1}]}'), "fail"),
        (Answer(500, b"No cluster leader"), "unknown"),
        (Answer(0, error="no answer within 30s"), "unknown"),
    ],
)
def test_a_transaction_says_of_all_its_writes_how_they_ended(answer, outcome):
    assert txn_reply(answer, 2).outcome == outcome


def batched(*, writes, most, linger_s, gap_s=0.0, reply=OK):
    """The keys of each transaction, and when each write had its reply, in seconds."""
    sent, ended = [], []

    async def offer():
        clock = VirtualClock()

        async def send(sets):
            sent.append([each["KV"]["Key"] for each in sets])
            await asyncio.sleep(0.001)
            return reply

        it = Batches(send, most, linger_s)

        async def write(n):
            await asyncio.sleep(n * gap_s)
            assert await it.write(f"k{n}", b"v") is reply
            ended.append(round(clock.now_ns() / 1e9, 3))

        async with asyncio.TaskGroup() as tasks:
            for n in range(writes):
                tasks.create_task(write(n))

    virtual_time.run(offer())
    return sent, ended


def test_a_full_batch_is_sent_at_once_and_a_lone_write_waits_for_others_in_vain():
    sent, ended = batched(writes=5, most=2, linger_s=0.2)
    assert sent == [["k0", "k1"], ["k2", "k3"], ["k4"]]
    assert sorted(ended) == [0.001, 0.001, 0.001, 0.001, 0.201], "this is what batching costs where little is written"


@pytest.mark.lie
def test_every_write_of_a_batch_has_the_reply_to_it():
    batched(writes=7, most=3, linger_s=0.05, gap_s=0.01, reply=Reply("unknown", error="no answer within 30s"))


def test_an_identity_is_never_cut_to_fit_the_size():
    assert identify(padded("r" * 100 + ".1", 64)) == "r" * 100 + ".1"


def test_a_foreign_value_is_not_mistaken_for_one_of_ours():
    assert identify(b"\xff\xfe") not in {stamp("run", n) for n in range(10)}


def test_a_torn_recursive_read_is_no_answer():
    whole = b'[{"Key": "hashidrill/w/0", "Value": "cnVuLjA7eHh4"}, {"Key": "hashidrill/w/1", "Value": null}]'
    assert _entries(Answer(200, whole)) == {"hashidrill/w/0": "run.0", "hashidrill/w/1": ""}
    assert _entries(Answer(200, whole[:-10])) is None
    assert _entries(Answer(500, b"No cluster leader")) is None
    assert _entries(Answer(404)) == {}


@pytest.mark.parametrize(("code", "ours"), [(errno.ECONNREFUSED, False), (errno.EMFILE, True), (errno.ENFILE, True)])
def test_running_out_of_files_is_the_generators_fault(code, ours):
    answer = _unconnected(OSError(code, "no"))
    assert answer.error.startswith(OVERLOADED) is ours
    assert answer.why == (Reason.OVERLOADED if ours else Reason.NOT_SENT)


@pytest.mark.parametrize("kind", [KvWrite, KvRead])
@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, "rate"),
        ({"rate": "0/s"}, "over 0/s"),
        ({"rate": "100000/s"}, "20000/s"),
        ({"rate": "50"}, "50/s"),
        ({"rate": "50/s", "keys": 0}, "keys"),
        ({"rate": "50/s", "timeout": "0s"}, "longer than 0s"),
        ({"rate": "50/s", "speed": 1}, "speed"),
    ],
)
def test_bad_parameters_are_told_apart(kind, params, message):
    with pytest.raises(ValidationError, match=message):
        kind.Params.model_validate(params)


@pytest.mark.parametrize("value", ["1B", "1GB"])
def test_a_value_that_cannot_identify_its_write_or_that_consul_refuses_is_an_error(value):
    with pytest.raises(ValidationError, match="64B"):
        KvWrite.Params.model_validate({"rate": "50/s", "value": value})


def test_the_defaults_are_those_that_the_documentation_names():
    params = KvWrite.Params.model_validate({"rate": "50/s"})
    assert (params.keys, params.value, params.via) == (500, Size("512B"), "consul:clients")
    assert params.timeout == Duration("30s")
    assert KvRead.Params.model_validate({"rate": "1/s"}).mode == "default"


@pytest.mark.parametrize("kind", [KvWrite, KvRead])
def test_parameters_survive_the_way_to_the_load_process(kind):
    params = kind.Params.model_validate({"rate": "10/m", "timeout": "1500ms"})
    assert kind.Params.model_validate(params.model_dump(mode="json", by_alias=True)) == params


def test_a_load_without_an_agent_says_so():
    with pytest.raises(ValueError, match="'w' has no agent"):
        KvWrite("w", KvWrite.Params.model_validate({"rate": "1/s"}), LoadContext([]))


def test_keys_and_endpoints_are_used_in_turn_and_values_are_unique():
    params = KvWrite.Params.model_validate({"rate": "1/s", "keys": 3, "once": "0%"})
    load = KvWrite("w", params, LoadContext(["http://a:8500/", "http://b:8500"], run_id="r"))
    planned = [load._plan(n) for n in range(6)]
    assert [key for key, _ in planned] == [f"hashidrill/w/{n % 3}" for n in range(6)]
    assert len({value for _, value in planned}) == 6
    assert [load.endpoint(n) for n in range(3)] == ["http://a:8500", "http://b:8500", "http://a:8500"]
