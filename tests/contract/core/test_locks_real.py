"""Locks, and compare-and-set, on real Consul servers: what is sound passes, and what is planted is caught."""

import asyncio
import contextlib
from collections import defaultdict

import aiohttp
import pytest

from hashidrill.core import hypothesis
from hashidrill.core.errors import DatacenterError
from hashidrill.core.hypothesis import Broken
from hashidrill.core.loads.base import LoadContext
from hashidrill.core.protocols.abc import Prepares
from hashidrill.core.recording.journal import Clock
from hashidrill.core.recording.reader import Recording
from hashidrill.core.recording.writer import RecordingWriter
from hashidrill.core.util.wait import wait_until
from hashidrill.products.consul.loads.cas import KvCas, Step
from hashidrill.products.consul.loads.locks import Action, Lock
from hashidrill.testing.recordings import RecordingBuilder
from tasks import running

pytestmark = pytest.mark.timeout(120)


def judged(tmp_path, name, operations, final_reads=None, **params):
    """The hypothesis over a recording of these operations, all of them offered while time was marked by a `noop`."""
    ended_s = max(operation.end_ns for operation in operations) / 1e9
    RecordingBuilder(tmp_path / "run").fault("noop", at=0, until=ended_s).build()
    writer = RecordingWriter(tmp_path / "run")
    for operation in operations:
        writer.operation(operation)
    writer.final_reads(operations[0].load, final_reads or {})
    writer.close()
    return hypothesis.get(name).check(Recording(tmp_path / "run"), {"load": operations[0].load, **params})


@contextlib.asynccontextmanager
async def offered(load):
    """The load's operations, growing; and a wait for enough of them."""
    operations = []
    if isinstance(load, Prepares):
        await load.prepare()

    async def until(enough):
        async def look():
            if task.done():
                task.result()
            return enough(operations) or None, f"{len(operations)} operations, last {operations[-3:]}"

        await wait_until("enough operations", look, within_s=30)

    async with running(load.run(operations.append)) as task:
        yield operations, until


def locks(urls, name, **params):
    params = Lock.Params.model_validate({"holders": 9, "locks": 3, "claim_every": "300ms", **params})
    return Lock(name, params, LoadContext(urls, clock=Clock()))


def actions(operations, op):
    return [Action.of(each.detail) for each in operations if each.outcome == "ok" and Action.of(each.detail).op == op]


async def put(url, body=b""):
    async with aiohttp.ClientSession() as session, session.put(url, data=body) as reply:
        return await reply.json()


def sessions_by_token(operations):
    """Who was seen to hold a lock with each fencing token: (the lock's number, its LockIndex)."""
    seen = defaultdict(set)
    for action in actions(operations, "fence"):
        if action.session:
            seen[int(action.holder[-1]) % 3, action.lock_index].add(action.session)
    return seen


async def test_locks_change_hands_and_are_never_held_twice(consul_servers, tmp_path):
    """Each contender gives its lock back after a second, so that all of them come to hold one."""

    load = locks(consul_servers.urls, "in-turn", ttl="10s", renew="2s", hold="1s")
    async with offered(load) as (operations, until):
        await until(
            lambda ops: (
                len({action.holder for action in actions(ops, "claim")}) == 9
                and len(sessions_by_token(ops)) >= 9
                and actions(ops, "renew")
            )
        )
    held = judged(tmp_path, "no_two_lock_holders", operations)
    assert held.figures["holders"] == 9
    assert actions(operations, "refused")
    assert actions(operations, "release")
    assert {len(sessions) for sessions in sessions_by_token(operations).values()} == {1}
    assert {op.outcome for op in operations[:-20]} == {"ok"}


async def holder_loses_its_session(urls, name, lock_delay):
    """A lock's holder keeps its belief while somebody destroys its session, and the others go on to ask."""
    load = locks(urls, name, locks=1, holders=3, ttl="10s", renew="9s", lock_delay=lock_delay)
    async with offered(load) as (operations, until):
        await until(lambda ops: actions(ops, "claim"))
        victim = actions(operations, "claim")[0]
        assert await put(f"{urls[0]}/v1/session/destroy/{victim.session}") is True
        # the two others ask every 300 ms: for three seconds longer
        asked = len(operations)
        await until(lambda ops: len(ops) >= asked + 20)
    return operations


def test_a_planted_double_lock_holder_is_caught(consul_servers, tmp_path):
    operations = asyncio.run(holder_loses_its_session(consul_servers.urls, "no-delay", "0s"))
    with pytest.raises(Broken, match="both held it for") as broken:
        judged(tmp_path, "no_two_lock_holders", operations)
    assert broken.value.figures["held_twice"] >= 1
    assert broken.value.figures["longest_held_twice_s"] > 0.1


def test_the_lock_delay_keeps_a_lost_lock_shut_for_as_long_as_its_holder_may_believe(consul_servers, tmp_path):
    operations = asyncio.run(holder_loses_its_session(consul_servers.urls, "with-delay", "15s"))
    assert judged(tmp_path, "no_two_lock_holders", operations).figures["held_twice"] == 0
    assert len(actions(operations, "refused")) >= 15


def test_a_ttl_that_consul_refuses_is_told_before_the_load_begins(consul_servers):
    with pytest.raises(DatacenterError, match=r"refuses sessions with a TTL of 5s.*session_ttl_min"):
        asyncio.run(locks(consul_servers.urls, "too-short", ttl="5s", renew="4s").prepare())


async def registers(urls, run_id, *, meddle=None):
    """Two hundred operations, what the keys hold at the end, and a foreign hand on one key half-way."""
    params = KvCas.Params.model_validate({"rate": "100/s", "keys": 2, "reads": "30%"})
    load = KvCas("registers", params, LoadContext(urls, clock=Clock(), run_id=run_id))
    async with offered(load) as (operations, until):
        await until(lambda ops: len(ops) >= 100)
        if meddle is not None:
            await meddle(operations)
        await until(lambda ops: len(ops) >= 220)
    return operations, await load.final_reads()


def test_the_history_of_a_register_on_real_consul_is_linearizable(consul_servers, tmp_path):
    operations, finals = asyncio.run(registers(consul_servers.urls, f"sound-{consul_servers.version}"))
    held = judged(tmp_path, "linearizable", operations, finals)
    assert held.figures["keys"] == 2
    assert held.figures["cas"] > 10
    assert all(finals.values())


def test_a_planted_older_value_is_caught(consul_servers, tmp_path):
    """Somebody puts back what a key held before, as a restored snapshot would."""

    async def back_to_before(operations):
        key = operations[0].key
        reads = [Step.of(op.detail) for op in operations if op.key == key and Step.of(op.detail).op == "read"]
        old = next(step.value for step in reads if step.value is not None)
        assert await put(f"{consul_servers.urls[0]}/v1/kv/{key}", old.encode()) is True

    main = registers(consul_servers.urls, f"planted-{consul_servers.version}", meddle=back_to_before)
    operations, finals = asyncio.run(main)
    with pytest.raises(Broken, match="no order explains these") as broken:
        judged(tmp_path, "linearizable", operations, finals)
    assert broken.value.figures["broken_keys"] == [operations[0].key]
