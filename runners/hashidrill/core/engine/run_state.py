"""The state of a run, which its steps share: where it writes, what it knows, and what is in force."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

import anyio

from hashidrill.core.engine.inject import InForce as Held
from hashidrill.core.engine.load_generator import OffersLoads
from hashidrill.core.engine.method_clock import MethodClock, Settling
from hashidrill.core.engine.monitor import Monitor
from hashidrill.core.experiment.model import Experiment, Mark, Step
from hashidrill.core.protocols.abc import Datacenter, Operation, Probe, Sample, Target
from hashidrill.core.protocols.events import Bus, InForce, Lasting, Note
from hashidrill.core.recording.journal import Clock, Journal
from hashidrill.core.recording.writer import Writes
from hashidrill.core.util.redaction import Redactor


@dataclass(frozen=True)
class Acting:
    """A fault that is about to be applied to the target, to stay there for this long."""

    kind: str
    target: Target
    fault_id: str
    step: int
    for_s: float


Admits = Callable[[Acting], AbstractAsyncContextManager[None]]
"""Around each fault, from before it is planned until it is gone. Raises HashidrillError: then nothing is applied."""


def admits_all(_acting: Acting) -> AbstractAsyncContextManager[None]:
    """In a datacenter of our own every fault is welcome."""
    return nullcontext()


class Attendant(Protocol):
    """Somebody who acts while the faults of a method are in force, as whoever is on call does."""

    @property
    def at_s(self) -> float:
        """When in the method it begins, in seconds: what is in force then stays in force until it returns."""

    async def attend(self, running: Run) -> None:
        """Acts on the datacenter, and writes what it did to the journal (`attended.did`)."""


class RunnableDatacenter(Datacenter, Protocol):
    """What the engine needs from a datacenter, in addition to what faults need."""

    async def start(self) -> None: ...

    async def endpoints(self, via: str | None) -> Sequence[str]:
        """The URLs of the agents that a load goes through; none for None. Raises SelectorError."""

    def tap_control(self, client: str) -> str:
        """Path of the Unix socket that controls a client's tap."""

    def namespace(self, host: str) -> str:
        """Path of the network namespace of a host."""

    def access(self, via: str | None) -> Mapping[str, str]:
        """The variables, like tokens, that a load needs for the agents that it goes through. Raises SelectorError."""

    async def keep(self, tell: Callable[[str], None]) -> None:
        """What somebody has to do by hand as long as it runs, until cancelled; `tell` notes what was done."""

    def probes(self) -> Sequence[Probe]: ...

    def describe(self) -> Mapping[str, Any]:
        """`hosts` and `config`, for run.json."""


@dataclass
class Run:
    """The state of one run: where it writes, what it knows, what is in force."""

    experiment: Experiment
    datacenter: RunnableDatacenter
    clock: Clock
    journal: Journal
    writer: Writes
    monitor: Monitor
    events: Bus
    generator: AbstractAsyncContextManager[OffersLoads]
    phase: str = ""
    phase_ends_ns: int | None = None
    levels: OffersLoads | None = None
    """Who is told about the levels of the loads: nobody before the method."""
    admits: Admits = admits_all
    attendant: Attendant | None = None

    def __post_init__(self) -> None:
        self.method = MethodClock(self.clock)
        """The time of the method; it starts again with the method."""
        self.settling = Settling(self.experiment.method)
        self.in_force: dict[str, InForce] = {}
        self.held: dict[str, Held] = {}
        """The same faults, for whoever has to prove one of them again."""
        self.marks: dict[int, Lasting] = {}
        self.keeping = anyio.CancelScope()
        """What is done by hand is done by the datacenter in here: it ends when somebody comes who does it."""
        self.left = anyio.Event()
        """They have left again."""
        self.turns: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)
        self.proven: list[tuple[str, str]] = []
        """(fault id, kind) of what was proven so far, in order of time."""

    def enter(self, phase: str, for_s: float | None = None) -> None:
        self.phase = phase
        self.phase_ends_ns = None if for_s is None else self.clock.now_ns() + int(for_s * 1e9)
        self.journal.write("phase", phase=phase, ends_ns=self.phase_ends_ns)

    def tell(self, text: str) -> None:
        """Something worth telling an operator."""
        self.journal.write("note", text=text)

    def operation(self, op: Operation) -> None:
        self.writer.operation(op)
        self.monitor.operation(op)

    def probed(self, sample: Sample) -> None:
        self.sample(self.clock.now_ns(), sample)

    def sample(self, t_ns: int, sample: Sample) -> None:
        self.writer.sample(t_ns, sample)
        self.monitor.sample(t_ns, sample)

    async def begins(self, number: int, step: Step | Mark) -> None:
        """Returns when that step of the method may begin: at its time, and after the steps that it comes after.

        While it waits, the method's clock stands still, and with it the levels of the loads.
        """
        await self.method.until(step.at)
        awaited = self.settling.open(number)
        if not awaited:
            return
        names = [str(self.experiment.method[other].name) for other, _ in awaited]
        async with self.stands_still(names):
            for _, settled in awaited:
                await settled.wait()

    def stands_still(self, waits_for: Sequence[str]) -> AbstractAsyncContextManager[None]:
        """The method's clock stands still inside of the block, and with it the levels of the loads."""
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
    """Call it with a line of text. The journal publishes what it keeps, so nothing is told twice."""

    def __init__(self, events: Bus, redactor: Redactor) -> None:
        self._events, self._redactor = events, redactor
        self._keep: Callable[[str], object] | None = None

    def __call__(self, text: str) -> None:
        if self._keep is not None:
            try:
                self._keep(text)
            except OSError:  # a disk that is full must not end the revert that says so
                pass
            else:
                return
        self._events.publish(Note(text=self._redactor.text(text)))

    @contextmanager
    def kept_in(self, journal: Journal) -> Iterator[None]:
        """Inside the block, whatever is told is a note in that journal."""
        self._keep = lambda text: journal.write("note", sync=True, text=text)
        try:
            yield
        finally:
            self._keep = None
