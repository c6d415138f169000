"""Loads that hold things open, against real Consul servers: the newest version, and the oldest one that matters."""

import asyncio
import contextlib
import json
import time
import urllib.error
import urllib.request
from collections import Counter, defaultdict

import pytest

from hashidrill.core.loads.context import LoadContext
from hashidrill.core.protocols.abc import CleansUp
from hashidrill.core.recording.journal import Clock
from hashidrill.core.util.wait import wait_until
from hashidrill.products.consul.loads.churn import ServiceChurn
from hashidrill.products.consul.loads.kv import KvWrite
from hashidrill.products.consul.loads.streams import Streams
from hashidrill.products.consul.loads.views import Views
from hashidrill.products.consul.loads.watch import Watch
from polled import wait

pytestmark = [pytest.mark.live]


def asked(url):
    """Once a leader is there to answer: on a busy machine an election may be on."""
    deadline = time.monotonic() + 20
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as reply:
                return json.load(reply)
        except urllib.error.HTTPError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


class Offered:
    """Loads that run side by side: their operations and samples."""

    def __init__(self, servers, **loads):
        self.operations, self.samples, clock = [], defaultdict(list), Clock()
        self.loads = {
            name: kind(name, kind.Params.model_validate(params), self.context(name, servers, clock))
            for name, (kind, params) in loads.items()
        }

    def context(self, name, servers, clock):
        emit = lambda what, value, _text: self.samples[f"{name}.{what}"].append(value)  # noqa: E731
        return LoadContext(servers.urls, clock=clock, run_id="run", emit_sample=emit)

    async def __aenter__(self):
        self.tasks = [asyncio.create_task(load.run(self.operations.append)) for load in self.loads.values()]
        return self

    async def __aexit__(self, *_):
        for task in self.tasks:
            task.cancel()
        for task in self.tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def clean_up(self):
        for load in self.loads.values():
            if isinstance(load, CleansUp):
                await load.clean_up()

    async def until(self, what, enough):
        async def check():
            for task in self.tasks:
                if task.done():
                    task.result()
            return await asyncio.to_thread(
                enough
            ) or None, f"{self.outcomes}, { {k: v[-1:] for k, v in self.samples.items()} }"

        await wait_until(what, check, within_s=60, gap_s=0.2)

    @property
    def outcomes(self):
        return Counter((op.load, op.outcome, op.error[:80]) for op in self.operations)


CHURN = (ServiceChurn, {"rate": "5/s", "services": 6, "service": "web"})


def test_every_stream_stands_and_sees_every_change(consul_servers):
    port = asked(f"{consul_servers.urls[0]}/v1/agent/self")["DebugConfig"]["ServerPort"]
    streams = (Streams, {"count": 60, "service": "web", "port": port, "connections": 2})

    async def main():
        async with Offered(consul_servers, streams=streams, churn=CHURN) as offered:
            samples = offered.samples
            await offered.until("all streams", lambda: samples["streams.open"][-1:] == [60])
            await offered.until(
                "events and their lag", lambda: samples["streams.lag"] and max(samples["streams.events"]) >= 60
            )
            return offered

    offered = asyncio.run(main())
    assert offered.outcomes[("streams", "ok", "")] == 60
    assert min(offered.samples["streams.lag"]) < 5
    asyncio.run(offered.clean_up())
    web = f"{consul_servers.urls[0]}/v1/health/service/web"
    wait("an empty catalog", lambda: not asked(web))  # agents tell it a moment later


async def test_views_stand_in_the_agents_cache(consul_servers):
    views = (Views, {"count": 40, "service": "viewed"})

    async with Offered(consul_servers, views=views) as offered:
        await offered.until("all views", lambda: offered.samples["views.open"][-1:] == [120])
    assert offered.outcomes == {("views", "ok", ""): 120}
    with urllib.request.urlopen(f"{consul_servers.urls[0]}/v1/health/service/viewed?cached&tag=t7", timeout=5) as reply:
        assert reply.headers["X-Cache"] == "HIT"


async def test_watchers_of_keys_and_of_a_service_are_told_and_end_with_what_is_there(consul_servers):
    loads = {
        "writes": (KvWrite, {"rate": "10/s", "keys": 5, "once": "0%"}),
        "keys": (Watch, {"count": 10, "keys_of": "writes", "keys": 5}),
        "service": (Watch, {"count": 6, "service": "web"}),
        "churn": CHURN,
    }

    async with Offered(consul_servers, **loads) as offered:
        await offered.until("many wake-ups", lambda: len([op for op in offered.operations if op.load == "keys"]) > 60)
        told = len([op for op in offered.operations if op.load == "service"])
    keys, service = [await offered.loads[name].final_reads() for name in ("keys", "service")]
    await offered.clean_up()
    assert told > 12
    woken = [op for op in offered.operations if op.load == "keys" and op.value]
    written = {op.value for op in offered.operations if op.load == "writes"}
    assert {op.value for op in woken} <= written
    assert all(0 <= op.end_ns - op.intended_ns < 10e9 for op in woken)
    assert set(keys) == {f"hashidrill/writes/{n}" for n in range(5)}
    assert set(keys.values()) <= written
    assert list(service) == ["web"]
