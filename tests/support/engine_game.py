"""One run's tools on a fake datacenter, in virtual time: for tests of the engine."""

from __future__ import annotations

import anyio

import virtual_time
from hashidrill.abc import Operation
from hashidrill.engine import run as engine
from hashidrill.engine.monitor import Monitor, longest_window_s
from hashidrill.errors import SelectorError
from hashidrill.events import Bus
from hashidrill.experiment.model import Experiment
from hashidrill.faults.disk import DiskLatency
from hashidrill.loads.schedule import OpenLoop
from hashidrill.loads.waiting import Waiting
from hashidrill.recording.journal import Journal, read_journal
from hashidrill.testing.fakes import FakeDatacenter

S = 1_000_000_000
SLOW = {"fault": "disk.latency", "on": "consul:leader", "with": {"delay": "500ms"}, "for": "10s"}
PROOF_S = 0.2
"""What the observers here take, so that a proof is not there at once."""


class Datacenter(FakeDatacenter):
    """Fake hosts, and the selectors that the tests use. No `leader` means that an election goes on."""

    async def select(self, selector):
        if selector.startswith("host:"):
            return [self.target(selector.removeprefix("host:").partition("/")[0])]
        servers = [name for name, host in self.hosts.items() if host.role == "server"]
        chosen = {"consul:servers": servers, "consul:leader": [self.consul.leader] if self.consul.leader else []}[
            selector
        ]
        if not chosen:
            raise SelectorError(f"{selector}: no server is known to a majority as the leader just now")
        return [self.target(name) for name in chosen]

    async def endpoints(self, via):
        return [f"http://{target.address}:8500" for target in await self.select("consul:servers")]

    def access(self, via):
        return {}

    async def keep(self, tell):
        """Nobody has to look after it."""

    def tap_control(self, client):
        return f"/nowhere/tap-{client}"


class Game:
    """One run's tools, without the processes around them."""

    def __init__(self, tmp_path, method, **more):
        document = {
            "apiVersion": "hashidrill/v1",
            "kind": "Experiment",
            "metadata": {"name": "short", "title": "A short one", "why": "It tests the engine"},
            "load": {"kv-writes": {"kind": "consul.kv.write", "rate": "50/s"}},
            "steady_state": {"for": "5s", "within": "20s", "require": ["kv-writes.latency.p50 < 300ms"]},
            "method": method,
            "expect": [{"no_acknowledged_write_lost": {"load": "kv-writes"}}],
            **more,
        }
        self.experiment = Experiment.model_validate(document)
        self.path = tmp_path / "journal.jsonl"
        self.world = Datacenter()
        self.told = []

    def play(self, act):
        """Run `act(running)` in virtual time; returns what it returns."""

        async def main():
            clock = virtual_time.VirtualClock()
            with Journal(self.path, clock) as journal:
                monitor = Monitor(self.experiment.load, longest_window_s(self.experiment))
                running = engine.Run(
                    self.experiment, self.world, clock, journal, None, monitor, Bus(self.told.append), "run-1"
                )
                return await act(running)

        return virtual_time.run(main())

    @property
    def journal(self):
        return read_journal(self.path)

    @property
    def events(self):
        return [entry.event for entry in self.journal]

    def times_s(self, event):
        """{fault_id: seconds} of that event."""
        return {e.data["fault_id"]: e.t_ns / S for e in self.journal if e.event == event}


def slow_observers(monkeypatch):
    """From now on, a proof takes PROOF_S."""
    verify = DiskLatency.verify

    async def slower(self, undo, *, present):
        await anyio.sleep(PROOF_S)
        return await verify(self, undo, present=present)

    monkeypatch.setattr(DiskLatency, "verify", slower)


def feed(running, *, latency_s, outcome="ok", every_s=0.1):
    """A load whose operations end now and took that long; `latency_s` is a function of the time in seconds."""

    async def go():
        while True:
            now = running.clock.now_ns()
            took_ns = int(latency_s(now / S) * S)
            running.monitor.operation(Operation("kv-writes", now - took_ns, now - took_ns, now, outcome))
            await anyio.sleep(every_s)

    return go


def offer(running, perform, *, rate, report_every_s=0.05):
    """A load on the open-loop schedule whose generator reports to the engine, as the load generator does."""

    async def go():
        waiting = Waiting()
        loop = OpenLoop("kv-writes", rate, lambda n: (f"{n}", ""), perform, running.clock, waiting=waiting)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(loop.run, running.monitor.operation)
            while True:
                running.monitor.waiting("kv-writes", *waiting.take(running.clock.now_ns()))
                await anyio.sleep(report_every_s)

    return go


async def beside(task, main):
    async with anyio.create_task_group() as group:
        group.start_soon(task)
        result = await main()
        group.cancel_scope.cancel()
    return result
