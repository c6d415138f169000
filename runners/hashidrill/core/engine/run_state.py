"""The state of a run that its steps share: its outputs, its measurements, the faults in force, and the method's clock.

The clock stands still while the next step waits for an earlier one: the time to reconfigure a datacenter, or to add a
server, depends on the machine. Steps with `after` keep their order on a slow machine: the waiting step and all later
ones begin later, and faults in force last longer by the same time.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeVar, runtime_checkable

import anyio

from hashidrill.core.engine.inject import InForce as Held
from hashidrill.core.engine.load_generator import LoadGenerator, LoadSpecification
from hashidrill.core.engine.monitor import Monitor
from hashidrill.core.experiment.model import Experiment, Mark, Step
from hashidrill.core.experiment.moments import GONE, PROVEN
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.abc import Datacenter, Operation, Probe, Sample, Target, selectors_of
from hashidrill.core.protocols.events import Bus, InForce, Lasting, Note
from hashidrill.core.recording.journal import Clock, Journal
from hashidrill.core.recording.writer import RecordingWriter
from hashidrill.core.util.redaction import Redactor

_NS = 1_000_000_000


class MethodClock:
    """Seconds since the method began, without the time that the clock stood still."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.began_ns = clock.now_ns()
        self._stood_ns = 0
        self._since_ns: int | None = None
        self._waiters = 0
        self._changed = anyio.Event()

    @property
    def now_s(self) -> float:
        return self._now_ns / _NS

    @property
    def _now_ns(self) -> int:
        now = self._clock.now_ns() if self._since_ns is None else self._since_ns
        return now - self.began_ns - self._stood_ns

    def ns(self, at_s: float) -> int:
        """The time on the run's clock when the method reaches `at_s`, unless the method's clock stands still before."""
        return self.began_ns + self._stood_ns + round(at_s * _NS)

    async def until(self, at_s: float) -> None:
        """Returns once the method reaches `at_s`."""
        while (
            left_ns := round(at_s * _NS) - self._now_ns
        ) > 0:  # whole nanoseconds: a tiny fraction would not wait at all
            changed = self._changed
            with anyio.move_on_after(None if self._since_ns is not None else left_ns / _NS):
                await changed.wait()

    async def lasts(self, for_s: float, *, planned_end_s: float = math.inf, until: anyio.Event | None = None) -> None:
        """Returns `for_s` later in the method's time, or when the event is set.

        A fault past its planned end (`planned_end_s`) also ends while the clock stands still, because the waiting step
        may wait for that end.
        """
        async with anyio.create_task_group() as group:
            if until is not None:
                group.start_soon(_then, until.wait, group.cancel_scope.cancel)
            left_ns = round(for_s * _NS)
            while left_ns > 0:
                changed, began_ns = self._changed, self._clock.now_ns()
                counts = self._since_ns is None or self.now_s >= planned_end_s
                with anyio.move_on_after(left_ns / _NS if counts else None):
                    await changed.wait()
                left_ns -= self._clock.now_ns() - began_ns if counts else 0
            group.cancel_scope.cancel()

    @asynccontextmanager
    async def stands_still(
        self, stops: Callable[[], Awaitable[None]], goes: Callable[[int], Awaitable[None]]
    ) -> AsyncIterator[None]:
        """Stops the clock inside the block; several tasks may be in such a block at once.

        Calls `stops()` after the clock stopped, and `goes(for_ns)` when the clock goes on, with the time for which it
        stood still.
        """
        self._waiters += 1
        if self._waiters == 1:
            self._since_ns = self._clock.now_ns()
            self._change()
        try:
            if self._waiters == 1:
                await stops()
            yield
        finally:
            self._waiters -= 1
            if self._waiters == 0 and self._since_ns is not None:
                stood = self._clock.now_ns() - self._since_ns
                self._stood_ns += stood
                self._since_ns = None
                self._change()
                with anyio.CancelScope(shield=True):
                    await goes(stood)

    def _change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


class Settling:
    """Progress of the steps that other steps wait for."""

    def __init__(self, method: Sequence[Step | Mark]) -> None:
        numbers = {step.name: number for number, step in enumerate(method) if isinstance(step, Step) and step.name}
        self._awaited = [
            [(numbers[name], _settled_by(step, method[numbers[name]])) for name in step.after if name in numbers]
            for step in method
        ]
        self._settled = {each: anyio.Event() for awaited in self._awaited for each in awaited}
        self._left = dict.fromkeys(self._settled, 1)

    def expect(self, number: int, proofs: int) -> None:
        """Sets how many proofs a step needs to count as proven: one for each host."""
        self._left[number, PROVEN] = proofs

    def settle(self, number: int, what: str) -> None:
        """Records that the step is `PROVEN` on one more host, or `GONE`."""
        self._left[number, what] = self._left.get((number, what), 1) - 1
        if self._left[number, what] <= 0 and (number, what) in self._settled:
            self._settled[number, what].set()

    def reached(self, number: int, what: str) -> bool:
        """Whether the step is `PROVEN` on all its hosts, or `GONE`."""
        return self._left.get((number, what), 1) <= 0

    def open(self, number: int) -> list[tuple[int, anyio.Event]]:
        """The steps that this step still waits for: their numbers, and the events that must be set."""
        awaited = ((each, self._settled[each]) for each in self._awaited[number])
        return [(other, event) for (other, _), event in awaited if not event.is_set()]


def _settled_by(step: Step | Mark, earlier: Step | Mark) -> str:
    return GONE if earlier.at + earlier.for_ <= step.at else PROVEN


async def _then(first: Callable[[], Awaitable[object]], second: Callable[[], None]) -> None:
    await first()
    second()


@dataclass(frozen=True)
class Acting:
    """A fault that is about to be applied to the target for `for_s` seconds."""

    kind: str
    target: Target
    fault_id: str
    step: int
    for_s: float


Admits = Callable[[Acting], AbstractAsyncContextManager[None]]
"""Entered around each fault, from before its plan until it is gone. Raises HashidrillError to refuse it: nothing is
applied.
"""


def admits_all(_acting: Acting) -> AbstractAsyncContextManager[None]:
    """Admits every fault, as in a local datacenter."""
    return nullcontext()


class Attendant(Protocol):
    """A person who acts while the faults of a method are in force, as an on-call engineer does."""

    @property
    def at_s(self) -> float:
        """When the person begins, in seconds of the method; faults in force then stay until `attend` returns."""

    async def attend(self, running: Run) -> None:
        """Acts on the datacenter, and writes each action to the journal (`attended.did`)."""


@runtime_checkable
class LooksAround(Attendant, Protocol):
    """An attendant who sees the datacenter, with its loads, before anything is broken."""

    async def look_around(self) -> None:
        """Returns once the attendant is ready; the steady state must hold before this call, and again after it."""


class RunnableDatacenter(Datacenter, Protocol):
    """The methods that the engine needs of a datacenter, in addition to the methods for faults."""

    @property
    def services(self) -> Sequence[Any]: ...

    async def start(self) -> None: ...

    async def endpoints(self, via: str | None) -> Sequence[str]:
        """The URLs of the agents that a load goes through; empty for None. Raises SelectorError."""

    def tap_control(self, client: str) -> str:
        """Path of the Unix socket that controls a client's tap."""

    def namespace(self, host: str) -> str:
        """Path of the network namespace of a host."""

    def access(self, via: str | None) -> Mapping[str, str]:
        """Variables, like tokens, that a load needs for the agents it goes through. Raises SelectorError."""

    async def keep(self, tell: Callable[[str], None]) -> None:
        """Does an operator's work, like unsealing, until cancelled; calls `tell` with each action."""

    def probes(self) -> Sequence[Probe]: ...

    def describe(self) -> Mapping[str, Any]:
        """`hosts` and `config`, for run.json."""


@dataclass
class Run:
    """The state of one run: its outputs, its measurements, the faults in force."""

    experiment: Experiment
    datacenter: RunnableDatacenter
    clock: Clock
    journal: Journal
    writer: RecordingWriter
    monitor: Monitor
    events: Bus
    generator: AbstractAsyncContextManager[LoadGenerator]
    phase: str = ""
    phase_ends_ns: int | None = None
    levels: LoadGenerator | None = None
    """Sets the loads' levels; None before the method."""
    admits: Admits = admits_all
    attendant: Attendant | None = None
    probe_secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.method = MethodClock(self.clock)
        """The time of the method; the method starts it again."""
        self.settling = Settling(self.experiment.method)
        self.unmet: tuple[str, ...] = ()
        """The conditions of the steady state that do not hold yet, each with its measured value."""
        self.in_force: dict[str, InForce] = {}
        self.held: dict[str, Held] = {}
        """The faults in force, by id, for callers that must prove one again."""
        self.marks: dict[int, Lasting] = {}
        self.keeping = anyio.CancelScope()
        """The scope in which the datacenter does an operator's work; cancelled when a person takes over."""
        self.left = anyio.Event()
        """Set when the person has left."""
        self.turns: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)
        self.proven: list[tuple[str, str]] = []
        """(fault id, kind) of each proven fault, in order of time."""

    def enter(self, phase: str, for_s: float | None = None) -> None:
        self.phase = phase
        self.phase_ends_ns = None if for_s is None else self.clock.now_ns() + int(for_s * 1e9)
        self.journal.write("phase", phase=phase, ends_ns=self.phase_ends_ns)

    def tell(self, text: str) -> None:
        """Tells the operator a line of text."""
        self.journal.write("note", text=text)

    def operation(self, op: Operation) -> None:
        self.writer.operation(op)
        self.monitor.operation(op)

    def probed(self, sample: Sample) -> None:
        self.sample(self.clock.now_ns(), sample)

    def sample(self, t_ns: int, sample: Sample) -> None:
        self.writer.sample(t_ns, sample)
        self.monitor.sample(t_ns, sample)

    def stands_still(self, waits_for: Sequence[str]) -> AbstractAsyncContextManager[None]:
        """Stops the method's clock inside the block, and with it the levels of the loads."""
        return self.method.stands_still(partial(self._stops, waits_for), partial(self._goes, waits_for))

    async def _stops(self, names: Sequence[str]) -> None:
        text = f"the next step waits for {' and '.join(names)}"
        self.journal.write("clock.stops", sync=True, at_s=self.method.now_s, waits_for=names, text=text)
        if self.levels is not None:
            await self.levels.hold(self.clock.now_ns())

    async def _goes(self, names: Sequence[str], stood_ns: int) -> None:
        text = f"the method waited {stood_ns / 1e9:.1f}s for {' and '.join(names)}"
        self.journal.write("clock.goes", sync=True, at_s=self.method.now_s, stood_ns=stood_ns, text=text)
        self.in_force = {key: _later(each, stood_ns) for key, each in self.in_force.items()}
        self.marks = {key: _later(each, stood_ns) for key, each in self.marks.items()}
        if self.phase_ends_ns is not None:
            self.phase_ends_ns += stood_ns
        if self.levels is not None:
            await self.levels.go(self.clock.now_ns())


Ending = TypeVar("Ending", InForce, Lasting)


def _later(each: Ending, by_ns: int) -> Ending:
    return replace(each, ends_ns=None if each.ends_ns is None else each.ends_ns + by_ns)


class Teller:
    """Call it with a line of text. The journal publishes the lines it keeps, so no line is shown twice."""

    def __init__(self, events: Bus, redactor: Redactor) -> None:
        self._events, self._redactor = events, redactor
        self._keep: Callable[[str], object] | None = None

    def __call__(self, text: str) -> None:
        if self._keep is not None:
            try:
                self._keep(text)
            except OSError:  # a full disk must not end the revert that reports it
                pass
            else:
                return
        self._events.publish(Note(text=self._redactor.text(text)))

    @contextmanager
    def kept_in(self, journal: Journal) -> Iterator[None]:
        """Keeps each line as a note in that journal, inside the block."""
        self._keep = lambda text: journal.write("note", sync=True, text=text)
        try:
            yield
        finally:
            self._keep = None


async def load_specifications(experiment: Experiment, datacenter: RunnableDatacenter) -> list[LoadSpecification]:
    """Each load and client with the agents that its `via` selects now. Raises SelectorError."""
    address = next(iter(datacenter.load_addresses()), None)
    specifications = []
    for name, load in experiment.load.items():
        params = load.parameters
        kind = registry.load(load.kind)
        asked = selectors_of(kind, params)
        specification = LoadSpecification(
            name,
            load.kind,
            params,
            await datacenter.endpoints(asked.get("via")),
            address,
            load.profile,
            access={key: token for each in asked.values() for key, token in datacenter.access(each).items()},
            others={name: await datacenter.endpoints(on) for name, on in asked.items() if name != "via"},
        )
        specifications.append(specification)
    for name, client in experiment.clients.items():
        endpoints = await datacenter.endpoints(client.agents)
        specification = LoadSpecification(
            name,
            registry.CLIENT,
            client,
            endpoints,
            address,
            client.profile,
            datacenter.tap_control(name),
            None if client.on is None else datacenter.namespace(client.on.removeprefix("host:")),
            datacenter.access(client.agents),
        )
        specifications.append(specification)
    return specifications
