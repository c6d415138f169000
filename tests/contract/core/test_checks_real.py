"""Health checks that real Consul agents make: they arrive on time, and are missed when their agent stands still."""

import asyncio
import signal

import pytest
import uvloop

from hashidrill.core import hypothesis
from hashidrill.core.errors import DatacenterError
from hashidrill.core.hypothesis import Broken
from hashidrill.core.loads.base import LoadContext
from hashidrill.core.loads.http_client import HttpClient
from hashidrill.core.recording.journal import Clock
from hashidrill.core.recording.reader import Recording
from hashidrill.core.recording.writer import RecordingWriter
from hashidrill.core.util.wait import wait_until
from hashidrill.products.consul.loads.checks import HealthChecks
from hashidrill.testing.recordings import RecordingBuilder
from tasks import running

pytestmark = pytest.mark.timeout(120)
CHECKS = 10
STALL_NS = 200_000_000


def checks(urls, **params):
    params = HealthChecks.Params.model_validate({"checks": CHECKS, "interval": "1s", **params})
    return HealthChecks("checks", params, LoadContext(urls, clock=Clock()))


async def offered(urls, enough, *, at_first=lambda operations: None):
    """The operations since the machine last held everybody up, once there are enough of them.

    On the event loop that the load generator has: while that stood still, checks were late that no agent made late.
    """
    load = checks(urls)
    operations, stood_still_ns = [], 0
    await load.prepare()

    async def naps():
        nonlocal stood_still_ns
        while True:
            began_ns = load.context.clock.now_ns()
            await asyncio.sleep(0.02)
            if load.context.clock.now_ns() - began_ns > STALL_NS:
                stood_still_ns = load.context.clock.now_ns()

    def calm():
        return [op for op in operations if op.intended_ns > stood_still_ns]

    async def look(count):
        if task.done():
            task.result()
        return count(calm()) or None, f"{len(calm())} operations, last {operations[-3:]}"

    async with running(naps()), running(load.run(operations.append)) as task:
        await wait_until(
            "the first arrivals", lambda: look(lambda ops: len(ops) >= 2 * CHECKS * len(urls)), within_s=20
        )
        at_first(operations)
        await wait_until("enough operations", lambda: look(enough), within_s=60)
        return calm()


def judged(tmp_path, operations):
    """The hypothesis over a recording whose method lasted as long as the load."""
    end_s = max(op.end_ns for op in operations) / 1e9 + 1
    builder = RecordingBuilder(tmp_path / "run")
    for phase, at_s in {"start": 0, "method": 0.001, "recovery": end_s, "quiesce": end_s + 1}.items():
        builder.phase(phase, at=at_s)
    builder.build()
    writer = RecordingWriter(tmp_path / "run")
    for operation in operations:
        writer.operation(operation)
    writer.close()
    params = {"load": "checks", "within": "500ms", "at_least": "95%", "during": "method"}
    return hypothesis.get("checks_keep_interval").check(Recording(tmp_path / "run"), params)


async def services(urls):
    async with HttpClient() as client:
        return [(await client.request("GET", f"{url}/v1/agent/services", timeout_s=5)).body for url in urls]


def test_checks_of_every_agent_arrive_on_time_and_are_gone_with_the_load(consul_servers, tmp_path):
    async def main():
        operations = await offered(consul_servers.urls, lambda ops: len(ops) >= 4 * CHECKS * 3)
        return operations, await services(consul_servers.urls)

    operations, left = uvloop.run(main())
    held = judged(tmp_path, operations)
    assert len({op.key for op in operations}) == CHECKS * 3
    assert held.figures["drift_p50_s"] < 0.1
    assert left == [b"{}"] * 3


@pytest.mark.long
def test_checks_of_an_agent_that_stands_still_are_missed(consul_servers, tmp_path):
    stopped = consul_servers.processes["consul-3"]

    def missed(operations):
        return sum(op.outcome == "fail" for op in operations) >= 2 * CHECKS

    try:
        stop = lambda _: stopped.send_signal(signal.SIGSTOP)  # noqa: E731
        operations = uvloop.run(offered(consul_servers.urls, missed, at_first=stop))
    finally:
        stopped.send_signal(signal.SIGCONT)
    assert {op.key.partition("/")[0] for op in operations if op.outcome == "fail"} == {consul_servers.hosts["consul-3"]}
    with pytest.raises(Broken, match=f"some never arrived, from {consul_servers.hosts['consul-3']}"):
        judged(tmp_path, operations)


def test_more_checks_than_can_be_answered_are_told_before_the_load_begins(consul_servers):
    with pytest.raises(DatacenterError, match="2000 checks on each of 3 agents are more than the 3000 a second"):
        asyncio.run(checks(consul_servers.urls, checks=2000).prepare())
