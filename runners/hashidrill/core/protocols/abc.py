"""Every protocol of hashidrill, on one page.

A run reads like this: a `Datacenter` starts its hosts; `Load`s and `Probe`s emit what they see into a recording; each
step of the method puts one `Fault` on one `Target`; hypotheses judge the recording afterwards.

Times are nanoseconds of the run's own clock (CLOCK_MONOTONIC minus the run's start) unless a name says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

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
    """The one thing a fault is put on: a host, and (where the fault is about a process) one agent of it.

    For what a tap does, `host` is the name of the client behind it, and `agent` is `client`.
    `reference` names one incarnation of the target, like the agent's process when the target was resolved: "" if there
    was none. Only the driver that made it reads it; others hand it on and compare it.
    """

    host: str
    address: str
    agent: str = ""
    reference: str = ""


@dataclass(frozen=True)
class Observer:
    """What the observer of a fault looks through, and what it has in common with the injector.

    `shares` is empty for an observer that shares nothing. What it shares could deceive both alike, so it is in the
    reference and in the report: a proof is worth what its observer can see by itself.
    """

    through: str
    shares: str = ""


@dataclass(frozen=True)
class Evidence:
    """What an observer measured: `ok` says whether it proves what was asked for."""

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
    """No connection: it certainly had no effect."""
    NO_ANSWER = "no-answer"
    """It may have been sent, but no complete answer came."""
    REFUSED = "refused"
    """Answered with 4xx, or with a plain no."""
    SERVER_ERROR = "server-error"
    """Answered with 5xx."""
    UNEXPECTED = "unexpected"
    """Answered with something that does not answer this kind of operation."""
    SERVICE_ENDED = "service-ended"
    """A long-running client exited by itself; this is no operation of its own."""
    UNREPORTED = "unreported"
    """A long-running client went silent; in its steady state it would have reported this operation by then."""


@dataclass(frozen=True, slots=True)
class Detail:
    """What the operations of one kind of load record in addition: a row of the table `detail_TABLE` of a recording."""

    table: str
    fields: Mapping[str, str | float | bool | None]


@dataclass(frozen=True)
class Operation:
    """One operation of a load.

    `outcome` is `ok` (acknowledged), `fail` (certainly not applied) or `unknown` (may have been applied).
    Latency is `end_ns - intended_ns`: what a user who came at the scheduled moment had to wait.
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
    """For people: what went wrong, in words. Nobody decides anything by it."""
    reason: str = ""
    """For judges: the same as a code, one of `Reason`, or one of the load's own, `PRODUCT.what-happened`."""
    detail: Detail | None = None


EmitOperation = Callable[[Operation], None]


@runtime_checkable
class Host(Protocol):
    """One machine of the datacenter: a name, an address, and the capabilities it has
    (hashidrill.core.protocols.capabilities).
    """

    name: str
    address: str
    roles: dict[str, str]
    """The role of each of its agents, by the service that it belongs to: `{"consul": "client", "nomad": "client"}`.

    A `spare` host has no agent of that service yet, or any more.
    """

    @property
    def role(self) -> str:
        """That of its first agent; "" without any."""

    def can(self, capability: type[Any]) -> bool:
        """Whether the host has this capability."""

    def use(self, capability: type[C]) -> C:
        """The capability, to call its methods. Raises FaultError that names the host and what it lacks."""


class ClientTap(Protocol):
    """The tap of one client: `fail` and `let_pass` are the injector's side, `look` is the observer's."""

    async def fail(self, fault_id: str, fault: str, share: float, seed: int) -> None:
        """From now on that share of the attempts, 0 to 1, fails so. Raises FaultError."""

    async def let_pass(self, fault_id: str) -> None:
        """Ends that again; nothing when it was not there, or the tap is gone with its client. Raises FaultError."""

    async def look(self, fault: str, tries: int) -> Sequence[str]:
        """Send probe requests of the kind this fault affects; return how each ended: the fault's name, or what it saw.

        None of them is the client's, or is recorded as such.
        """


class Hosts(Protocol):
    """Finds a host by its name; raises SelectorError for an unknown one."""

    def host(self, name: str) -> Host: ...

    def all_hosts(self) -> Sequence[Host]: ...

    def tap(self, client: str) -> ClientTap:
        """Of one client of the experiment, by its name."""

    def load_addresses(self) -> Sequence[str]:
        """Where our own loads come from: they count as clients."""

    def turn(self, what: str) -> AbstractAsyncContextManager[Any]:
        """A lock by name: faults on several hosts take turns inside of it, as a rolling restart does."""

    def tool(self, name: str) -> Path:
        """A binary that the fault requires, like `bbolt`. Raises FaultError when it is not at hand."""

    @property
    def artifacts(self) -> Path:
        """A directory in the recording for what a fault leaves there as evidence, like a snapshot file."""


@dataclass(frozen=True)
class Requires:
    """What a fault requires of a datacenter. The engine starts it with all that the faults of a method require."""

    capabilities: frozenset[type[Any]] = frozenset()
    """What it must be possible to do on its host (hashidrill.core.protocols.capabilities); absent, the fault is not
    applied."""
    tools: frozenset[str] = frozenset()
    """Of TOOLS: binaries that must be at hand."""
    disk_operations: frozenset[str] = frozenset()
    """Of fsync, write, read: those that the disk layer must be able to slow or fail."""
    sized_disk: bool = False
    """The host's disk must be a small file system of its own."""
    memory_groups: bool = False
    """Agents must be in a cgroup for memory from their start: the kernel never charges it for what they had before."""
    spare_servers: int = 0
    """Hosts without an agent, on which a fault may start a new server."""
    throttled_cores: float = 0.0
    """The cores that it leaves to a host: the machine must have more, or its observer cannot tell."""
    elsewhere: frozenset[type[Any]] = frozenset()
    """What its observer must be able to do on other hosts of the datacenter, whichever they are."""
    instead: frozenset[type[Any]] = frozenset()
    """Another way: a host that can do all of these needs none of the above."""

    def lacking(self, host: Host | Capable) -> list[type[Any]]:
        """The capabilities that the host would have to have."""
        if self.other_way(host):
            return []
        return [one for one in self.capabilities if not host.can(one)]

    def other_way(self, host: Host | Capable) -> bool:
        """Whether the fault takes its other way on that host."""
        return bool(self.instead) and all(host.can(one) for one in self.instead)

    @classmethod
    def of_all(cls, each: Sequence[Requires]) -> Requires:
        """What several faults require together. Each takes spare servers of its own."""
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
"""What a fault may require: `toxiproxy` puts proxies in front of ports, `bbolt` reads and compacts a raft.db."""


class Fault(Protocol):
    """One way to break exactly one target: no loops, no retries, no selection in it; the engine has those.

    What is declared is asked without a datacenter (`hosts` is None then), of a fault with its parameters. The protocols
    after this one are optional: a fault that has one is asked (`isinstance(fault, FindsTroubles)`).
    """

    kind: ClassVar[str]
    Params: ClassVar[type[BaseModel]]
    observer: ClassVar[Observer | None]
    """What its proof looks through; every built-in kind has one."""

    def __init__(self, params: Any, hosts: Hosts) -> None: ...

    def requires(self) -> Requires:
        """What the datacenter must have, for this fault to be possible."""

    def plan(self, target: Target, *, fault_id: str) -> Undo:
        """What will be undone. Pure: nothing is touched, and the same arguments give the same names."""

    async def apply(self, undo: Undo) -> None:
        """Put the fault in force. Raises FaultError; the engine calls `revert(undo)` in any case."""

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        """Measure the effect (or its absence) without any help from the injector."""

    async def revert(self, undo: Undo) -> None:
        """Take the fault away. Idempotent; works from a fresh process and from any phase."""


@runtime_checkable
class ClaimsThings(Protocol):
    """It shares things with other faults, or needs them to itself; without this it claims its host and its kind."""

    def uses(self, place: Place) -> Sequence[Claim]:
        """What it takes, needs and spoils there. Claims of two faults that clash are refused
        (hashidrill.core.protocols.claims).
        """


def claims_of(fault: Fault, place: Place) -> Sequence[Claim]:
    """What a fault claims there."""
    return fault.uses(place) if isinstance(fault, ClaimsThings) else (needs(HOST), takes(fault.kind))


@runtime_checkable
class FindsTroubles(Protocol):
    """It can tell mistakes about its place that no model can."""

    def troubles(self, place: Place) -> Iterable[Trouble]:
        """What is wrong with putting it there: where in the step, and why."""


@runtime_checkable
class NeedsRights(Protocol):
    """It asks products that may have ACLs."""

    def rights(self) -> Sequence[Right]:
        """What a token must be allowed."""


@runtime_checkable
class KeepsPrior(Protocol):
    """It puts back what it found."""

    async def prior(self, target: Target) -> Mapping[str, Any]:
        """What is there before the fault and must be there after it: plain JSON, kept as `undo["prior"]`.

        Only looks. Raises FaultError when it cannot be had: then nothing is applied.
        """


@runtime_checkable
class ObservedSlowly(Protocol):
    """Its observer needs longer than others' (hashidrill.core.engine.inject)."""

    @property
    def observed_within_s(self) -> float: ...


@runtime_checkable
class HappensOnce(Protocol):
    """With `once`, it is done once and need not last: others are proven again before their revert."""

    once: ClassVar[bool]


@runtime_checkable
class UndoneByOthers(Protocol):
    """Faults of these kinds are meant to undo it while it is in force."""

    undone_by: ClassVar[frozenset[str]]


@runtime_checkable
class OnTap(Protocol):
    """With `on_client`, it is put on the tap of a client (`client:NAME`), and not on a host."""

    on_client: ClassVar[bool]


@runtime_checkable
class RestartsAgent(Protocol):
    """It restarts the agent of its host."""

    restarts: ClassVar[Restarts | None]


@runtime_checkable
class HoldsAgentDown(Protocol):
    """With `holds_down`, it holds the agent of its host down, or a restart would undo it.

    No restart of another fault may fall into it.
    """

    holds_down: ClassVar[bool]


@runtime_checkable
class DisturbsFew(Protocol):
    """It disturbs this many of its hosts at one time: 1 for a rolling change, 0 for none; None, as without, for all."""

    at_a_time: ClassVar[int | None]


@runtime_checkable
class SetsBack(Protocol):
    """With `sets_back`, it sets back what all agents share.

    All of them count as disturbed, and so may be what interlocks keep there.
    """

    sets_back: ClassVar[bool]


class Probe(Protocol):
    """A periodic sample of the datacenter's health."""

    interval_s: float

    async def sample(self) -> Sequence[Sample]:
        """A sick target gives samples with ok=False; an exception is a bug of ours."""


@dataclass(frozen=True)
class LoadCost:
    """What a load takes of this machine, where its parameters say it; 0 where that depends on what happens."""

    rate_per_s: float = 0.0
    """Operations per second, at a level of 100%."""
    opened_per_s: float = 0.0
    """The operations per second of a load that opens things and keeps them: the level does not change it."""
    views: float = 0.0
    """Views that each agent keeps ready, at a level of 100%."""


class Load(Protocol):
    """Traffic, open loop: an operation starts when it is due, however slow the earlier ones are.

    `hashidrill.core.loads.base.BaseLoad` has all of this but `kind`, `Params` and `run`, for a load that asks no
    agents, reads nothing back and leaves nothing behind.
    """

    kind: ClassVar[str]
    Params: ClassVar[type[BaseModel]]
    signals: ClassVar[Mapping[str, type[Quantity] | None]]
    """What it samples beside its operations and its level, and the unit (None: a plain number)."""
    not_by_address: ClassVar[str]
    """Why it cannot be offered to agents that are only reached by their API's address; "" if it can."""
    divides: ClassVar[bool]
    """Whether several generators can share it: all its operations come from an OpenLoop on its context's course, and
    operation n is the same whoever offers it. Only the first of them prepares it, reads back and cleans up."""

    def __init__(self, name: str, params: Any, context: Any) -> None:
        """`context` is a `hashidrill.core.loads.context.LoadContext`."""

    @classmethod
    def via(cls, params: Any) -> str | None:
        """The selector of the agents that it asks (`LoadContext.endpoints`); None for none."""

    @classmethod
    def also(cls, params: Any) -> Mapping[str, str]:
        """Selectors of further agents that it asks, like those of another product, by the parameter that names them."""

    @classmethod
    def cost(cls, params: Any) -> LoadCost:
        """What it takes of this machine."""

    @classmethod
    def rights(cls, name: str, params: Any) -> Sequence[Right]:
        """What a token must be allowed for a load of that name, where the products have ACLs."""

    @classmethod
    def leaves(cls, name: str, params: Any, run_id: str) -> Sequence[Left]:
        """What a run of that load may leave, also one that died: a datacenter of somebody else gets rid of it."""

    async def prepare(self) -> None:
        """Before the steady state, beside all other loads. Raises HashidrillError: then the run ends."""

    async def run(self, emit: EmitOperation) -> None:
        """Until cancelled. Emits every operation exactly once, cancelled ones as `unknown`."""

    def reached(self, n: int) -> None:
        """Before the final reads of a load that several generators share: they offered n operations between them."""

    async def final_reads(self) -> Mapping[str, str | None]:
        """What the datacenter holds, at the end, for each key this load wrote. Empty for loads that do not write."""

    async def clean_up(self) -> None:
        """Take away what it put there, once the final reads of all loads were made. Called once, after `run` has ended.

        For a few seconds at most: an agent that is sick is not waited for.
        """


class Datacenter(Hosts, Protocol):
    """The HashiStack under test."""

    async def select(self, selector: str) -> Sequence[Target]: ...

    async def wait_ready(self) -> None: ...

    async def collect_logs(self, into: Path) -> None: ...
