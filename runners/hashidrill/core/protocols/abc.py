"""The protocols of faults, loads, probes and hosts, on one page.

A run reads like this: a `Datacenter` starts its hosts; `Load`s and `Probe`s emit operations and samples into a
recording; each step of the method puts one `Fault` on one `Target`; hypotheses judge the recording afterwards.

Times are nanoseconds of the run's own clock (CLOCK_MONOTONIC minus the run's start) unless a name says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, runtime_checkable

from pydantic import BaseModel

from hashidrill.core.protocols.capabilities import (
    AgentApi,
    AgentFiles,
    AgentProcess,
    ApiAnswer,
    Barrier,
    Capable,
    CpuCanary,
    CpuControl,
    DiskCanary,
    DiskControl,
    DiskSpace,
    Exchange,
    ExchangeRequest,
    NetworkCanary,
    PacketFilter,
    ProcessControl,
    Processes,
    Proxies,
    Timing,
    Toxic,
)
from hashidrill.core.protocols.claims import HOST, Claim, Place, Restarts, needs, takes
from hashidrill.core.protocols.rights import Left, Right
from hashidrill.core.units import Quantity

C = TypeVar("C")

__all__ = [
    "TOOLS",
    "AgentApi",
    "AgentFiles",
    "AgentProcess",
    "ApiAnswer",
    "AsksAgents",
    "AsksMoreAgents",
    "Barrier",
    "Claim",
    "ClientTap",
    "CpuCanary",
    "CpuControl",
    "Datacenter",
    "Detail",
    "DiskCanary",
    "DiskControl",
    "DiskSpace",
    "EmitOperation",
    "Evidence",
    "Exchange",
    "ExchangeRequest",
    "Fault",
    "Host",
    "Hosts",
    "Load",
    "LoadCost",
    "NetworkCanary",
    "Observer",
    "Operation",
    "PacketFilter",
    "Place",
    "Probe",
    "ProbeKind",
    "ProcessControl",
    "Processes",
    "Proxies",
    "Reason",
    "Requires",
    "Restarts",
    "Right",
    "Sample",
    "Target",
    "Timing",
    "Toxic",
    "Trouble",
    "Undo",
]

Trouble = tuple[tuple[str | int, ...], str]
"""A part of a step, like `("with", "from")`, and what is wrong with it."""

Undo = Mapping[str, Any]
"""All that `Fault.revert` needs, as plain JSON: it is written to the journal before the fault is applied."""


@dataclass(frozen=True)
class Target:
    """The target of one fault: a host, and one of its agents if the fault is about a process.

    For a fault of a tap, `host` is the name of the client behind it, and `agent` is `client`. `reference` names one
    incarnation of the target, like the agent's process when the target was resolved; "" if there was none. Only
    the driver that made a reference interprets it; others pass it on and compare it.
    """

    host: str
    address: str
    agent: str = ""
    reference: str = ""


@dataclass(frozen=True)
class Observer:
    """The means by which a fault is observed, and what they have in common with the injector.

    `shares` is empty for an observer that shares nothing. A shared part could deceive injector and observer alike, so
    the reference and the report name it.
    """

    through: str
    shares: str = ""


@dataclass(frozen=True)
class Evidence:
    """What an observer measured: `ok` says whether that proves the effect asked for."""

    ok: bool
    asked: str
    measured: str
    figures: Mapping[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True)
class Sample:
    """One value of one signal at one time. A sick target is `ok=False` with the reason in `text`."""

    signal: str
    value: float | None = None
    text: str = ""
    host: str = ""
    ok: bool = True


class Reason(StrEnum):
    """Why an operation was not ok."""

    OVERLOADED = "overloaded"
    """The generator itself could not send it, which says nothing about the datacenter."""
    CANCELLED = "cancelled"
    """Still in flight when the load was stopped."""
    NOT_SENT = "not-sent"
    """There was no connection: the operation certainly had no effect."""
    NO_ANSWER = "no-answer"
    """It may have been sent, but no complete answer came."""
    REFUSED = "refused"
    """Answered with 4xx, or refused in the body."""
    SERVER_ERROR = "server-error"
    """Answered with 5xx."""
    UNEXPECTED = "unexpected"
    """Answered with something that is not an answer to this kind of operation."""
    SERVICE_ENDED = "service-ended"
    """A long-running client exited without being stopped; this does not count as an operation."""
    UNREPORTED = "unreported"
    """A long-running client went silent; in its steady state it would have reported this operation by then."""


@dataclass(frozen=True, slots=True)
class Detail:
    """Additional columns for the operations of one kind of load: a row of the table `detail_TABLE` of a recording."""

    table: str
    fields: Mapping[str, str | float | bool | None]


class Operation(NamedTuple):
    """One operation of a load.

    `outcome` is `ok` (acknowledged), `fail` (certainly not applied) or `unknown` (may have been applied). Latency is
    `end_ns - intended_ns`: how long a user who came at the scheduled moment had to wait.
    """

    load: str
    intended_ns: int
    start_ns: int
    end_ns: int
    outcome: str
    key: str = ""
    value: str = ""
    status: int = 0
    error: str = ""
    """The error in words, for people; no code may depend on it."""
    reason: str = ""
    """The error as a code, for judging: a `Reason`, or a code of the load, `PRODUCT.what-happened`."""
    detail: Detail | None = None

    @property
    def plain(self) -> tuple[Any, ...]:
        """All fields but `detail`, in order."""
        return self[:-1]


EmitOperation = Callable[[Operation], None]


@runtime_checkable
class Host(Protocol):
    """A machine of the datacenter: a name, an address, and capabilities (hashidrill.core.protocols.capabilities)."""

    name: str
    address: str
    roles: dict[str, str]
    """The role of each of its agents, by service: `{"consul": "client", "nomad": "client"}`.

    If the role is `spare`, no agent of that service runs there.
    """

    @property
    def role(self) -> str:
        """The role of its first agent; "" if it has no agent."""

    def can(self, capability: type[Any]) -> bool:
        """Whether the host has this capability."""

    def use(self, capability: type[C]) -> C:
        """The capability, to call its methods. Raises FaultError that names the host and what it lacks."""


class ClientTap(Protocol):
    """The tap of one client: `fail` and `let_pass` are for the injector, `look` is for the observer."""

    async def fail(self, fault_id: str, fault: str, share: float, seed: int) -> None:
        """Fails that share of the attempts, 0 to 1, from now on. Raises FaultError."""

    async def let_pass(self, fault_id: str) -> None:
        """Ends the failure, if it is in force and the tap has not ended with its client. Raises FaultError."""

    async def look(self, fault: str, tries: int) -> Sequence[str]:
        """Sends probe requests of the kind this fault affects and returns how each one ended: the fault's name, or the
        result.

        These requests are neither counted nor recorded as the client's.
        """


class Hosts(Protocol):
    """Finds a host by its name; raises SelectorError for an unknown one."""

    def host(self, name: str) -> Host: ...

    def all_hosts(self) -> Sequence[Host]: ...

    def tap(self, client: str) -> ClientTap:
        """The tap of one client of the experiment, by its name."""

    def load_addresses(self) -> Sequence[str]:
        """The addresses from which hashidrill's own loads send; they count as clients."""

    def turn(self, what: str) -> AbstractAsyncContextManager[Any]:
        """A lock with a name: faults on several hosts hold it one after the other, as in a rolling restart."""

    def tool(self, name: str) -> Path:
        """A binary that the fault requires, like `bbolt`. Raises FaultError if it is not available."""

    @property
    def artifacts(self) -> Path:
        """A directory in the recording for evidence that a fault leaves, like a snapshot file."""


@dataclass(frozen=True)
class Requires:
    """What a fault requires of a datacenter, which the engine starts with all that the method's faults require."""

    capabilities: frozenset[type[Any]] = frozenset()
    """Capabilities that its host must have (hashidrill.core.protocols.capabilities); otherwise the fault is not
    applied.
    """
    tools: frozenset[str] = frozenset()
    """The binaries that the fault needs, out of TOOLS."""
    disk_operations: frozenset[str] = frozenset()
    """The operations that the disk layer must be able to slow or fail, out of fsync, write and read."""
    sized_disk: bool = False
    """The host's disk must be a small file system of its own."""
    memory_groups: bool = False
    """Agents must be in a memory cgroup from their start, because the kernel does not charge earlier memory to it."""
    spare_servers: int = 0
    """Hosts without an agent, on which a fault may start a new server."""
    throttled_cores: float = 0.0
    """The cores that the fault leaves to a host. If the machine has no more, the observer cannot prove the fault."""
    elsewhere: frozenset[type[Any]] = frozenset()
    """Capabilities that its observer needs on some other host of the datacenter."""
    instead: frozenset[type[Any]] = frozenset()
    """An alternative: a host with all of these needs none of the above."""

    def lacking(self, host: Host | Capable) -> list[type[Any]]:
        """The capabilities that the host lacks."""
        if self.other_way(host):
            return []
        return [one for one in self.capabilities if not host.can(one)]

    def other_way(self, host: Host | Capable) -> bool:
        """Whether the fault takes the alternative (`instead`) on that host."""
        return bool(self.instead) and all(host.can(one) for one in self.instead)

    @classmethod
    def of_all(cls, each: Sequence[Requires]) -> Requires:
        """What several faults require together. Each step takes its own spare servers."""
        return cls(
            frozenset[type[Any]]().union(*(one.capabilities for one in each)),
            frozenset[str]().union(*(one.tools for one in each)),
            frozenset[str]().union(*(one.disk_operations for one in each)),
            any(one.sized_disk for one in each),
            any(one.memory_groups for one in each),
            sum(one.spare_servers for one in each),
            max((one.throttled_cores for one in each), default=0.0),
            frozenset[type[Any]]().union(*(one.elsewhere for one in each)),
        )


TOOLS = frozenset({"toxiproxy", "bbolt"})
"""Binaries that a fault may require: `toxiproxy` puts proxies in front of ports, `bbolt` reads and compacts a
raft.db.
"""


class Fault(Protocol):
    """One way to break exactly one target, without loops, retries or selection, which the engine does.

    Its declarations can be read before there is a datacenter: `hosts` is None then. The protocols after this one are
    optional; `isinstance(fault, FindsTroubles)` tests for them.
    """

    kind: ClassVar[str]
    Params: ClassVar[type[BaseModel]]
    observer: ClassVar[Observer | None]
    """How the fault's effect is observed; every built-in kind has an observer."""

    def __init__(self, params: Any, hosts: Hosts) -> None: ...

    def requires(self) -> Requires:
        """What the datacenter must have for this fault."""

    def plan(self, target: Target, *, fault_id: str) -> Undo:
        """The undo. A pure function: it touches nothing, and the same arguments give the same names."""

    async def apply(self, undo: Undo) -> None:
        """Puts the fault in force. Raises FaultError; the engine calls `revert(undo)` in any case."""

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        """Measures the effect (or its absence) without any help from the injector."""

    async def revert(self, undo: Undo) -> None:
        """Takes the fault away. Idempotent; works from a fresh process and from any phase."""


@runtime_checkable
class ClaimsThings(Protocol):
    """Declares the resources that a fault shares with other faults or needs alone; without this protocol, a fault
    claims its host and its kind.
    """

    def uses(self, place: Place) -> Sequence[Claim]:
        """What the fault takes, needs and spoils at that place. Clashing claims of two faults are refused
        (hashidrill.core.protocols.claims).
        """


def claims_of(fault: Fault, place: Place) -> Sequence[Claim]:
    """The fault's claims at that place."""
    return fault.uses(place) if isinstance(fault, ClaimsThings) else (needs(HOST), takes(fault.kind))


@runtime_checkable
class FindsTroubles(Protocol):
    """A fault that finds mistakes in its place that no pydantic model can express."""

    def troubles(self, place: Place) -> Iterable[Trouble]:
        """What is wrong with the fault at that place: where in the step, and why."""


@runtime_checkable
class NeedsRights(Protocol):
    """A fault that calls products which may have ACLs."""

    def rights(self) -> Sequence[Right]:
        """The rights that its token needs."""


@runtime_checkable
class KeepsPrior(Protocol):
    """A fault that restores the state that it found."""

    async def prior(self, target: Target) -> Mapping[str, Any]:
        """The state before the fault, which must return after it: plain JSON, kept as `undo["prior"]`.

        Only reads. Raises FaultError if the state cannot be read: then the fault is not applied.
        """


@runtime_checkable
class ObservedSlowly(Protocol):
    """A fault whose observer needs more time than usual (hashidrill.core.engine.inject)."""

    @property
    def observed_within_s(self) -> float: ...


@runtime_checkable
class HappensOnce(Protocol):
    """With `once`, the fault happens at one moment and need not last; all other faults are proven again before their
    revert.
    """

    once: ClassVar[bool]


@runtime_checkable
class UndoneByOthers(Protocol):
    """A fault that faults of the kinds in `undone_by` may undo while it is in force."""

    undone_by: ClassVar[frozenset[str]]


@runtime_checkable
class OnTap(Protocol):
    """With `on_client`, the fault targets the tap of a client (`client:NAME`), not a host."""

    on_client: ClassVar[bool]


@runtime_checkable
class RestartsAgent(Protocol):
    """A fault that restarts its host's agent."""

    restarts: ClassVar[Restarts | None]


@runtime_checkable
class HoldsAgentDown(Protocol):
    """With `holds_down`, the fault keeps its host's agent down, or a restart of the agent would undo the fault.

    No other fault may restart the agent while this one is in force.
    """

    holds_down: ClassVar[bool]


@runtime_checkable
class DisturbsFew(Protocol):
    """The number of its hosts that the fault disturbs at one time: 1 for a rolling change, 0 for none; None (the
    default) means all.
    """

    at_a_time: ClassVar[int | None]


@runtime_checkable
class SetsBack(Protocol):
    """With `sets_back`, the fault resets the state that all agents share.

    All these agents count as disturbed, and interlocks may protect each one.
    """

    sets_back: ClassVar[bool]


class Probe(Protocol):
    """A periodic sample of the datacenter's health."""

    interval_s: float

    async def sample(self) -> Sequence[Sample]:
        """A sick target gives samples with ok=False; an exception is a bug."""


class ProbeKind(Protocol):
    """A kind of probe that experiments declare under `probes:` (hashidrill.core.probes.declared)."""

    kind: ClassVar[str]
    Params: ClassVar[type[BaseModel]]
    signals: ClassVar[Mapping[str, type[Quantity] | None]]
    """The unit of each signal, by its name without the probe's; None: a plain number."""

    def __init__(self, name: str, params: Any, context: Any) -> None: ...

    async def sample(self) -> Sequence[Sample]:
        """A sample of each signal; an unknown value is a failed sample."""


@dataclass(frozen=True)
class LoadCost:
    """What a load costs this machine, as far as its parameters determine that; a cost that depends on events is 0."""

    rate_per_s: float = 0.0
    """Operations per second, at a level of 100%."""
    opened_per_s: float = 0.0
    """Operations per second of a load that opens things and keeps them open: the level does not change this rate."""
    views: float = 0.0
    """Views that each agent keeps ready, at a level of 100%."""


class Load(Protocol):
    """Traffic in an open loop: an operation starts when it is due, however slow the earlier ones are.

    The protocols after this one are optional. The class is tested for the first eight, before it makes a load
    (`isinstance(kind, AsksAgents)`); the load in its generator is tested for the others.
    """

    kind: ClassVar[str]
    Params: ClassVar[type[BaseModel]]

    def __init__(self, name: str, params: Any, context: Any) -> None:
        """`context` is a `hashidrill.core.loads.base.LoadContext`."""

    async def run(self, emit: EmitOperation) -> None:
        """Runs until cancelled. Emits every operation exactly once, cancelled ones as `unknown`."""


@runtime_checkable
class AsksAgents(Protocol):
    """A load that queries agents, at `LoadContext.endpoints`."""

    @classmethod
    def via(cls, params: Any) -> str | None:
        """The selector of the agents' hosts; None if the load has none."""


@runtime_checkable
class AsksMoreAgents(Protocol):
    """A load that queries further agents, like those of another product, at `LoadContext.others`."""

    @classmethod
    def also(cls, params: Any) -> Mapping[str, str]:
        """The selectors of the other hosts, by the parameter that names them."""


def selectors_of(kind: type[Load], params: Any) -> dict[str, str]:
    """The selectors of the agents that a load queries, by parameter; the first parameter is `via`."""
    via = kind.via(params) if isinstance(kind, AsksAgents) else None
    found: dict[str, str] = {} if via is None else {"via": via}
    return {**found, **kind.also(params)} if isinstance(kind, AsksMoreAgents) else found


@runtime_checkable
class HasCost(Protocol):
    """A load that knows beforehand what it costs this machine."""

    @classmethod
    def cost(cls, params: Any) -> LoadCost: ...


def cost_of(kind: type[Load], params: Any) -> LoadCost:
    """What a load costs this machine."""
    return kind.cost(params) if isinstance(kind, HasCost) else LoadCost()


@runtime_checkable
class NeedsLoadRights(Protocol):
    """A load that queries products which may have ACLs."""

    @classmethod
    def rights(cls, name: str, params: Any) -> Sequence[Right]:
        """The rights that a token needs for a load of that name."""


@runtime_checkable
class LeavesThings(Protocol):
    """A load whose runs, even killed ones, may leave data in an attached datacenter; `leaves` names that data."""

    @classmethod
    def leaves(cls, name: str, params: Any, run_id: str) -> Sequence[Left]: ...


@runtime_checkable
class HasSignals(Protocol):
    """A load that has more signals than its operations and its level."""

    signals: ClassVar[Mapping[str, type[Quantity] | None]]
    """The unit of each signal; None: a plain number."""


@runtime_checkable
class NotByAddress(Protocol):
    """A load that cannot run against agents of which only the API's address is known."""

    not_by_address: ClassVar[str]
    """The reason why it cannot."""


@runtime_checkable
class WorksOnAgents(Protocol):
    """A load whose work runs on agents of one role of its product, and waits while there is no such agent."""

    works_on: ClassVar[str]


@runtime_checkable
class Divides(Protocol):
    """With `divides`, several generators can share the load: all its operations come from an OpenLoop on its context's
    course, and operation n is the same in every generator. Only the first generator prepares, reads back and cleans
    up.
    """

    divides: ClassVar[bool]


def divides(kind: type[Load]) -> bool:
    """Whether several generators can share such a load."""
    return isinstance(kind, Divides) and kind.divides


@runtime_checkable
class HearsTotal(Protocol):
    """A divided load whose final reads depend on the number of operations offered."""

    def reached(self, n: int) -> None:
        """Before the final reads: all generators together offered n operations."""


@runtime_checkable
class Prepares(Protocol):
    """A load that prepares something before the steady state, in parallel with all other loads."""

    async def prepare(self) -> None:
        """Raises HashidrillError, which ends the run."""


@runtime_checkable
class ReadsBack(Protocol):
    """A load that writes, and can check which of its writes are stored."""

    async def final_reads(self) -> Mapping[str, str | None]:
        """What the datacenter holds, at the end, for each key this load wrote. Raises HashidrillError."""


@runtime_checkable
class CleansUp(Protocol):
    """A load that removes its own data."""

    async def clean_up(self) -> None:
        """Called once, after `run` has ended and all loads have made their final reads.

        The call may take a few seconds, but does not wait for a sick agent.
        """


class Datacenter(Hosts, Protocol):
    """The HashiStack under test."""

    async def select(self, selector: str) -> Sequence[Target]: ...

    async def wait_ready(self) -> None: ...

    async def collect_logs(self, into: Path) -> None: ...
