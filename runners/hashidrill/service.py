"""What a service is: all that knows one product. Its protocol, and what it and a datacenter tell each other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from pydantic import BaseModel

if TYPE_CHECKING:
    from hashidrill.abc import Host, Hosts, Probe


@dataclass(frozen=True)
class AgentPlace:
    """One agent that a service wants on a host. Services that name the same host share it.

    `starts=False`: its agent is configured, and a fault may start it.
    """

    host: str
    role: str
    starts: bool = True


@dataclass(frozen=True)
class Site:
    """What a service needs to know to configure the agent at one of its places. `addresses`: of all hosts, by name."""

    host: str
    role: str
    address: str
    data: Path
    config_file: Path
    binaries: Mapping[str, Path]
    addresses: Mapping[str, str]
    roles: Mapping[str, str] = field(default_factory=dict)
    """All agents of this host, by their services: `{"nomad": "client", "consul": "client"}`."""


@dataclass(frozen=True)
class AgentPlan:
    """How an agent is configured and started, and where its API is: `health` is a path that answers while it runs.

    `environment` is added to what agents get. `as_root=False`: the program takes user id 0 for rights that agents never
    have, like mounting. Where agents run as the user of the sandbox, which is 0 there, it runs under another number.
    """

    config: Mapping[str, Any]
    command: Sequence[str]
    url: str
    health: str
    environment: Mapping[str, str] = field(default_factory=dict)
    as_root: bool = True


@dataclass(frozen=True)
class Workspace:
    """What a datacenter lends a service for as long as it runs.

    `folder` is the service's own, private, and ends with the datacenter. `hide` keeps secrets out of everything that is
    written from then on, wherever they occur: call it before a secret is used for the first time.
    """

    folder: Path
    hide: Callable[..., None]


@dataclass(frozen=True)
class Wanted:
    """A binary that a run starts: of that version, or the one at the path `explicit`."""

    name: str
    version: str
    explicit: str | None = None


class Service(Protocol):
    """All that knows one product, like Consul: built from the product's part of an experiment's `datacenter:`.

    `name` is its key there, the name of its agents, and the prefix of its selectors, like `consul:leader`.
    """

    name: ClassVar[str]
    Spec: ClassVar[type[BaseModel]]
    runs_by_default: ClassVar[bool]
    """Whether it runs in a datacenter that names no service. Only Consul does."""
    roles: ClassVar[tuple[str, ...]]
    """What may follow `name:` in a selector."""
    many: ClassVar[tuple[str, ...]]
    """Those of its roles that several hosts can have at once."""
    served: ClassVar[tuple[str, ...]]
    """Those of its roles that a `via` can always name, because others stand in where nobody has the role."""
    signals: ClassVar[Mapping[str, type[Any] | None]]
    """What its probes measure and a condition may compare, with the unit (None: a plain number)."""
    faults: ClassVar[Mapping[str, str]]
    """The module of each of its kinds of faults; the module's KINDS holds the class."""
    loads: ClassVar[Mapping[str, str]]
    """The same, of its kinds of loads."""

    spec: Any

    def __init__(self, spec: Any, *, spares: int = 0) -> None: ...

    def places(self) -> Sequence[AgentPlace]:
        """The hosts it needs, in order. A datacenter gives them their addresses."""

    def candidates(self, role: str) -> frozenset[str]:
        """The hosts that may have this role at some moment; none where that cannot be."""

    def most(self, role: str) -> int:
        """How many hosts have this role at one time."""

    def impossible(self, role: str) -> str:
        """Why it has no candidates: `the datacenter has no client agents (...)`."""

    def check(self, draft: Any, note: Any) -> None:
        """Note what is wrong with an experiment (experiment.draft.Draft) as far as only this service can tell."""

    def binaries(self) -> Sequence[Wanted]:
        """What its agents are started from. Each is in `Site.binaries` by its name."""

    def open(self, workspace: Workspace) -> None:
        """Once, before any of its agents starts."""

    def agent(self, site: Site) -> AgentPlan:
        """The agent at one of its places."""

    def parts(self, host: Host) -> Mapping[type[Any], Any]:
        """Capabilities of its own that it adds to a host of one of its agents, with what carries them out."""

    async def wait_ready(self, hosts: Hosts, *, within_s: float, agents_run: Callable[[], Awaitable[None]]) -> None:
        """Returns once it can be used. Raises WaitTimeoutError, and what `agents_run` raises (call it at each look)."""

    def access(self) -> Mapping[str, str]:
        """Environment variables that whoever uses it needs once it is ready, like tokens. They count as secrets."""

    async def keep(self, hosts: Hosts, tell: Callable[[str], None]) -> None:
        """Runs beside everything else once the datacenter is ready, until cancelled: what an operator would do by hand.

        `tell` notes in the journal what was done. It may return at once.
        """

    async def select(self, role: str, hosts: Hosts) -> Sequence[Host]:
        """The hosts that have this role now. Raises SelectorError when there is none."""

    async def serving(self, role: str, hosts: Hosts) -> Sequence[Host]:
        """The hosts whose agents a load goes through, for a `via` of that role. Raises SelectorError."""

    def probes(self, hosts: Hosts) -> Sequence[Probe]:
        """What it watches during a run."""

    def describe(self, configs: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        """What run.json says about it, from the configuration of its agents by host."""


class BaseService:
    """What most services need not say: nobody has to look after them, and they ask for no token."""

    def open(self, workspace: Workspace) -> None:
        """It keeps nothing, and has no secrets but those of its configuration."""

    def parts(self, host: Host) -> Mapping[type[Any], Any]:  # noqa: ARG002 - the protocol's
        return {}

    async def keep(self, hosts: Hosts, tell: Callable[[str], None]) -> None:
        """Its agents come back by themselves."""

    def access(self) -> Mapping[str, str]:
        return {}
