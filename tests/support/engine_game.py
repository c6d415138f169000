"""Whole runs through `engine.run`, in virtual time: hosts, load generator and recording are fakes, the engine is real.

`Game(path, method).run()` plays one run and returns its outcome; the journal and the events say what happened. Times
count from the begin of the method.
"""

from collections import Counter
from pathlib import Path

import anyio

import virtual_time
from hashidrill.core.engine.run import run
from hashidrill.core.errors import SelectorError
from hashidrill.core.experiment.model import Experiment
from hashidrill.core.faults.disk import DiskLatency
from hashidrill.core.loads.schedule import OpenLoop, Waiting
from hashidrill.core.protocols.abc import Operation, Sample
from hashidrill.core.protocols.events import Audience, Bus, Tick
from hashidrill.core.recording.journal import read_journal
from hashidrill.testing.fakes import FakeDatacenter

S = 1_000_000_000
SLOW = {"fault": "disk.latency", "on": "consul:leader", "with": {"delay": "500ms"}, "for": "10s"}
PROOF_S = 0.2
"""What the observers here take, so that a proof is not there at once."""
ALWAYS = {"for": "2s", "within": "5s", "require": ["raft.leader >= 0"]}
"""A steady state that needs no load."""
STEADY = {"for": "5s", "within": "20s", "require": ["kv-writes.latency.p50 < 300ms"]}


class Datacenter(FakeDatacenter):
    """Fake hosts with a life: it starts, gets ready, is probed, and leaves logs. No `leader`: an election goes on."""

    def __init__(self, *, ready_error=None, logs_error=None):
        super().__init__()
        self.life = []
        self._errors = {"ready": ready_error, "logs": logs_error}

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

    async def start(self):
        self.life.append("started")

    async def wait_ready(self):
        self._fail("ready")
        self.life.append("ready")

    def probes(self):
        return [Leader(self)]

    def describe(self):
        return {"hosts": [{"name": name} for name in self.hosts], "config": {}}

    async def collect_logs(self, into):
        self._fail("logs")
        self.life.append("logs")

    def _fail(self, what):
        if self._errors[what] is not None:
            raise self._errors[what]


class Leader:
    """The probe of that datacenter."""

    interval_s = 1.0

    def __init__(self, world):
        self.world = world

    async def sample(self):
        return [Sample("raft.leader", 1.0, self.world.consul.leader)]


class Traffic:
    """Stands for the load generator: it reports what the test says.

    `from_start` runs from when the loads are offered, `during` from the begin of the method; both get this object.
    """

    final_read_errors: dict = {}  # noqa: RUF012 - it is never written to

    def __init__(self, clock, from_start, during, final_reads):
        self.clock = clock
        self.emit = self.sample = self.waiting = None
        self.specifications = ()
        self.told = []
        """(what, argument) of all that the engine told it of the method and its levels."""
        self._from_start, self._during, self._final_reads = from_start, during, final_reads
        self._stopped = False
        self.ended = False

    async def __aenter__(self):
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *exc):
        self.ended = True
        self._tasks.cancel_scope.cancel()
        return await self._tasks.__aexit__(*exc)

    async def start(self, specifications, emit_operation, emit_sample, emit_waiting):
        self.specifications = specifications
        self.emit, self.sample, self.waiting = emit_operation, emit_sample, emit_waiting
        if self._from_start is not None:
            self._tasks.start_soon(self._from_start, self)

    async def begin(self, t_ns):
        self.told.append(("begin", t_ns))
        if self._during is not None:
            self._tasks.start_soon(self._during, self)

    async def level(self, load, level):
        self.told.append((load, level))

    async def hold(self, t_ns):
        self.told.append(("hold", t_ns))

    async def go(self, t_ns):
        self.told.append(("go", t_ns))

    async def stop(self):
        self._stopped = True

    async def final_reads(self):
        assert self._stopped
        return self._final_reads


class Writer:
    """Stands for the recording's writer: it keeps rows in a list."""

    def __init__(self, path, _redactor=None):
        self.path = path
        self.rows = []
        self.run = None
        self.written = Counter()

    def raise_failure(self):
        pass

    def operation(self, op):
        self.rows.append(op)

    def sample(self, t_ns, sample):
        self.rows.append(sample)

    def final_reads(self, load, values):
        self.rows.append((load, dict(values)))

    def write_run(self, info):
        self.run = dict(info)

    def close(self):
        self.rows.append("closed")


class Game:
    """One experiment, and one run of it."""

    def __init__(self, path, method, *, world=None, **more):
        document = {
            "apiVersion": "hashidrill/v1",
            "kind": "Experiment",
            "metadata": {"name": "short", "title": "A short one", "why": "It tests the engine"},
            "load": {"kv-writes": {"kind": "consul.kv.write", "rate": "50/s"}},
            "steady_state": ALWAYS,
            "recovery": {"for": "1s"},
            "method": method,
            "expect": [{"no_acknowledged_write_lost": {"load": "kv-writes"}}],
            **more,
        }
        self.experiment = Experiment.model_validate(document)
        self.path = path
        self.world = Datacenter() if world is None else world
        self.told = []
        self.writer = self.traffic = None

    @virtual_time.ran
    async def run(
        self,
        *,
        during=None,
        from_start=None,
        final_reads=None,
        cancel_after_s=None,
        subscribers=(),
        trainee=None,
        writer=Writer,
        **more,
    ):
        """How the run ended; None when it was cancelled, `cancel_after_s` after its start. `more`: for the engine."""
        events = Bus(*subscribers, self.told.append)
        if trainee is not None:
            events.subscribe(trainee, Audience.TRAINEE)

        def generator(clock, _run_id):
            self.traffic = Traffic(clock, from_start, during, final_reads or {})
            return self.traffic

        def recording(path, redactor):
            self.writer = writer(path, redactor)
            return self.writer

        with anyio.CancelScope() as scope:
            if cancel_after_s is not None:
                scope.deadline = anyio.current_time() + cancel_after_s
            return await run(
                self.experiment,
                self.world,
                self.path,
                {"id": "run-1", "root": "/nowhere"},
                clock=virtual_time.VirtualClock(),
                events=events,
                load_generator=generator,
                recording_writer=recording,
                **more,
            )

    @property
    def journal(self):
        return read_journal(Path(self.path) / "journal.jsonl")

    @property
    def events(self):
        return [entry.event for entry in self.journal]

    @property
    def error(self):
        """What the journal's `end` says of it."""
        return self.journal[-1].data["error"]

    @property
    def ticks(self):
        return [event for event in self.told if isinstance(event, Tick)]

    def phases_s(self):
        """{phase: seconds since the start of the run}."""
        return {entry.data["phase"]: entry.t_ns / S for entry in self.journal if entry.event == "phase"}

    def since_method_s(self, t_ns):
        return t_ns / S - self.phases_s()["method"]

    def at_s(self, event):
        """The one time at which that event was journalled."""
        [entry] = [entry for entry in self.journal if entry.event == event]
        return self.since_method_s(entry.t_ns)

    def times_s(self, event):
        """{fault_id: seconds} of that event."""
        return {e.data["fault_id"]: self.since_method_s(e.t_ns) for e in self.journal if e.event == event}


def slow_observers(monkeypatch):
    """From now on, a proof takes PROOF_S."""
    verify = DiskLatency.verify

    async def slower(self, undo, *, present):
        await anyio.sleep(PROOF_S)
        return await verify(self, undo, present=present)

    monkeypatch.setattr(DiskLatency, "verify", slower)


def feed(*, latency_s, outcome="ok", every_s=0.1):
    """A load whose operations end now and took that long; `latency_s` is a function of the seconds since it began."""

    async def go(traffic):
        began_ns = traffic.clock.now_ns()
        while True:
            now = traffic.clock.now_ns()
            took_ns = int(latency_s((now - began_ns) / S) * S)
            traffic.emit(Operation("kv-writes", now - took_ns, now - took_ns, now, outcome))
            await anyio.sleep(every_s)

    return go


def offer(perform, *, rate, report_every_s=0.05):
    """A load on the open-loop schedule, reported to the engine as the load generator does.

    `perform(n, now_s)` is one operation; it gets its number and the seconds since the load began.
    """

    async def go(traffic):
        began_ns = traffic.clock.now_ns()
        waiting = Waiting()

        async def operation(n, _key, _value):
            return await perform(n, (traffic.clock.now_ns() - began_ns) / S)

        loop = OpenLoop("kv-writes", rate, lambda n: (f"{n}", ""), operation, traffic.clock, waiting=waiting)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(loop.run, traffic.emit)
            while True:
                traffic.waiting("kv-writes", *waiting.take(traffic.clock.now_ns()))
                await anyio.sleep(report_every_s)

    return go
