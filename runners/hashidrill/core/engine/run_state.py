"""The state of a run that its steps share: its outputs, its measurements, and the faults in force."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeVar, runtime_checkable

import anyio

from hashidrill.core.engine.inject import InForce as Held
from hashidrill.core.engine.load_generator import LoadGenerator, LoadSpecification
from hashidrill.core.engine.method_clock import MethodClock, Settling
from hashidrill.core.engine.monitor import Monitor
from hashidrill.core.experiment.model import Experiment
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.abc import Datacenter, Operation, Probe, Sample, Target, selectors_of
from hashidrill.core.protocols.events import Bus, InForce, Lasting, Note
from hashidrill.core.recording.journal import Clock, Journal
from hashidrill.core.recording.writer import RecordingWriter
from hashidrill.core.util.redaction import Redactor


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
        """When the person begins, in seconds of the method; faults in force then stay in force until `attend`
        returns.
        """

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
