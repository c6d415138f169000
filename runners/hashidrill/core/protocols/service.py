"""What a service is: all that knows one product. Its protocol, and what it and a datacenter tell each other.

`BaseService` has all of the protocol that a simple product needs not say.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from pydantic import BaseModel

from hashidrill.core.errors import SelectorError

if TYPE_CHECKING:
    from hashidrill.core.protocols.abc import ApiAnswer, Host, Hosts, Probe
    from hashidrill.core.protocols.rights import Right


@dataclass(frozen=True)
class AgentPlace:
    """One agent that a service wants on a host. Services that name the same host share it.

    `starts=False`: its agent is configured, and a fault may start it. `beside` names other services: each of them that
    the datacenter has puts an agent of its own on this host too, as a guest (`Service.guests`).
    """

    host: str
    role: str
    starts: bool = True
    beside: tuple[str, ...] = ()
    guest: bool = False
    """The host is another service's: that one's agent is what `host:NAME` means."""
    armed: bool = False  # it is there to break its host, and keeps root's rights over it, which agents lose


@dataclass(frozen=True)
class Site:
    """What a service needs to know to configure the agent at one of its places. `addresses`: of all hosts, by name."""

    host: str
    role: str
    address: str
    data: Path
    """The agent's own folder on the host's disk: it is there, and belongs to the user that the agent runs as."""
    config_file: Path
    binaries: Mapping[str, Path]
    addresses: Mapping[str, str]
    roles: Mapping[str, str] = field(default_factory=dict)
    """All agents of this host, by their services: `{"nomad": "client", "consul": "client"}`."""
    processes: Path = Path("/proc")  # where an armed agent sees those of its own host alone


@dataclass(frozen=True)
class AgentPlan:
    """How an agent is configured and started, and where its API is: `health` is a path that answers while it runs.

    `config` is written to `Site.config_file` as JSON. `environment` is added to what agents get. `as_root=False`: the
    program takes user id 0 for rights that agents never have, like mounting. Where agents run as the user of the
    sandbox, which is 0 there, it runs under another number.
    """

    config: Mapping[str, Any]
    command: Sequence[str]
    url: str
    health: str
    environment: Mapping[str, str] = field(default_factory=dict)
    as_root: bool = True
    files: Mapping[str, str] = field(default_factory=dict)  # more of them in `Site.data`, like keys: private


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


SILENT_S = 5.0
"""How long a probe that samples once or twice a second may be silent."""
LEADS = "leads"
"""The text of a host's term while that host says of itself that it leads."""


@dataclass(frozen=True)
class Sampled:
    """The signals of one probe, and how long it may give no sample before what was judged by them is in doubt.

    `regular` is the one that it never leaves out: each host is looked at by itself. Where there is none, a sample of
    any of them on any host will do.
    """

    signals: frozenset[str]
    regular: str = ""
    silent_s: float = SILENT_S


@dataclass(frozen=True)
class Panel:
    """How a report draws a signal over time. A bucket shows its largest sample if `worst`, else their mean."""

    signal: str
    title: str
    unit: str = ""
    worst: bool = True


@dataclass(frozen=True)
class Lane:
    """A signal that a report draws as a state over time: `good` where it is 1 or more, else `bad`.

    With `names`, a good state is the sample's text: who leads. The live view shows it too, as `TITLE NAME`. `term` is
    the signal of each host's term, with the text `LEADS` while it leads: a new term is an election, whoever wins it.
    """

    signal: str
    title: str
    good: str = "yes"
    bad: str = "no"
    names: bool = False
    term: str = ""


class Calls(Protocol):
    """Requests to one product by address, with the token and the TLS files of its login."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        timeout_s: float = 5.0,
    ) -> ApiAnswer:
        """Raises FaultError where nobody answers; nothing for a status."""


class Service(Protocol):
    """All that knows one product, like Consul: built from the product's part of an experiment's `datacenter:`.

    `name` is its key there, the name of its agents, and the prefix of its selectors, like `consul:leader`.
    """

    name: ClassVar[str]
    Spec: ClassVar[type[BaseModel]]
    runs_by_default: ClassVar[bool]
    """Whether it runs in a datacenter that names no service. Only Consul does."""
    agent_bytes: ClassVar[int]
    """The memory that one of its agents takes under an ordinary load, beside the program's own pages."""
    acls: ClassVar[bool]  # whether it has policies and tokens: `hashidrill acl` prints one
    alive: ClassVar[str]  # a path that a server answers below 500 while it serves; "" for none
    everywhere: ClassVar[bool]  # whether it has a guest on every host of the other services
    after: ClassVar[tuple[str, ...]]
    """Services that are ready before its agents are started, where the datacenter has them."""
    roles: ClassVar[tuple[str, ...]]
    """What may follow `name:` in a selector."""
    many: ClassVar[tuple[str, ...]]
    """Those of its roles that several hosts can have at once."""
    served: ClassVar[tuple[str, ...]]
    """Those of its roles that a `via` can always name, because others stand in where nobody has the role."""
    signals: ClassVar[Mapping[str, type[Any] | None]]
    """What its probes measure and a condition may compare, with the unit (None: a plain number)."""
    faults: ClassVar[Mapping[str, str]]
    """The module of each of its kinds of faults: `registry.kinds_in` the package of its faults."""
    loads: ClassVar[Mapping[str, str]]
    """The same, of its kinds of loads."""
    address_variable: ClassVar[str]
    """The environment variable that tells its command line an agent's URL: `CONSUL_HTTP_ADDR`; "" for none."""
    attach: ClassVar[str]
    """The module that knows how a running one is logged in to and looked through (its ATTACH); "" for none."""
    ui: ClassVar[str]  # where its agents have a page for people, `/ui/`; "" for none
    look: ClassVar[str]  # a command to look around with, on one of its hosts: `consul members`; "" for none
    probed: ClassVar[Sequence[Sampled]]
    """What its probes sample, for the judge: nothing is judged by what a silent probe did not see."""
    periods: ClassVar[Mapping[str, tuple[str, str]]]
    """Its kinds of loads that have no `rate`, and are due again and again: the parameter that says how often, and its
    default."""
    panels: ClassVar[Sequence[Panel]]
    lanes: ClassVar[Sequence[Lane]]
    undrawn: ClassVar[frozenset[str]]
    """Signals that no report draws; those in neither of the three are drawn under their names."""

    stands: ClassVar[bool]  # whether its agents are there already, and are not ours: see `standing`

    spec: Any
    guests: Sequence[str]
    transport: Any
    """What carries its HTTP requests to its agents, for httpx; None: plain HTTP to their addresses."""

    def __init__(self, spec: Any, *, spares: int = 0, guests: Sequence[str] = ()) -> None:
        """`guests` are hosts of other services that asked for an agent of this one (`AgentPlace.beside`)."""

    def places(self) -> Sequence[AgentPlace]:
        """The hosts it needs, in order, then its guests. A datacenter gives them their addresses.

        Agents of one role start together, and those of another role after them, in this order.
        """

    def candidates(self, role: str) -> frozenset[str]:
        """The hosts that may have this role at some moment; none where that cannot be."""

    def most(self, role: str) -> int:
        """How many hosts have this role at one time."""

    def impossible(self, role: str) -> str:
        """Why it has no candidates: `the datacenter has no client agents (...)`."""

    def check(self, experiment: Any, note: Any) -> None:
        """Note what is wrong with an experiment (experiment.model.Experiment) as far as only this service can tell."""

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

    def login(self) -> Mapping[str, str]:
        """The same for the operator, who may do everything: `hashidrill shell` sets them. They count as secrets."""

    def left(self) -> Mapping[str, str]:
        """What it has written for people once it is ready, by what it is: `{"kubeconfig": PATH}`. `up` tells them."""

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

    def rights(self) -> Sequence[Right]:
        """What a token must be allowed for its probes, its selectors, and to be looked through beforehand."""

    def policy(self, rights: Iterable[Right], why: Mapping[Right, str]) -> str:
        """Its part of these rights as a policy that its command line takes; `why` is who needs each of them."""

    async def lacking(self, calls: Calls, rights: Iterable[Right]) -> Sequence[Right]:
        """Its part of these rights that the token has not. It only reads. Raises InterlockError where it cannot say."""

    def describe(self, configs: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        """What run.json says about it, from the configuration of its agents by host."""


class BaseService:
    """What a service need not say. Its places are the source of the rest: a role of a selector is that of an agent.

    Override `roles`, `many` and the methods of roles where a role moves (`nomad:leader`), or where its plural is not
    the agent's role with an `s`.
    """

    name: ClassVar[str]
    Spec: ClassVar[type[BaseModel]]
    runs_by_default: ClassVar[bool] = False
    agent_bytes: ClassVar[int] = 70_000_000
    acls: ClassVar[bool] = False
    alive: ClassVar[str] = ""
    everywhere: ClassVar[bool] = False
    after: ClassVar[tuple[str, ...]] = ()
    roles: ClassVar[tuple[str, ...]] = ()
    many: ClassVar[tuple[str, ...]] = ()
    served: ClassVar[tuple[str, ...]] = ()
    signals: ClassVar[Mapping[str, type[Any] | None]] = {}
    faults: ClassVar[Mapping[str, str]] = {}
    loads: ClassVar[Mapping[str, str]] = {}
    attach: ClassVar[str] = ""
    address_variable: ClassVar[str] = ""
    ui: ClassVar[str] = ""
    look: ClassVar[str] = ""
    probed: ClassVar[Sequence[Sampled]] = ()
    periods: ClassVar[Mapping[str, tuple[str, str]]] = {}
    panels: ClassVar[Sequence[Panel]] = ()
    lanes: ClassVar[Sequence[Lane]] = ()
    undrawn: ClassVar[frozenset[str]] = frozenset()
    stands: ClassVar[bool] = False
    transport: Any = None

    def __init__(self, spec: Any, *, spares: int = 0, guests: Sequence[str] = ()) -> None:
        self.spec = spec
        self.spares = spares
        self.guests = guests

    def places(self) -> Sequence[AgentPlace]:
        raise NotImplementedError

    def candidates(self, role: str) -> frozenset[str]:
        """The hosts with an agent of the role, `servers` of `server`; with any agent for `all`."""
        return frozenset(p.host for p in self.places() if p.starts and role in {"all", f"{p.role}s"})

    def most(self, role: str) -> int:
        return len(self.candidates(role)) if role in self.many else 1

    def impossible(self, role: str) -> str:
        return f"the datacenter has no {self.name} {role}"

    def check(self, experiment: Any, note: Any) -> None:
        """Nothing can be wrong."""

    def binaries(self) -> Sequence[Wanted]:
        return []

    def open(self, workspace: Workspace) -> None:
        """It keeps nothing, and has no secrets but those of its configuration."""

    def parts(self, host: Host) -> Mapping[type[Any], Any]:  # noqa: ARG002 - the protocol's
        return {}

    def left(self) -> Mapping[str, str]:
        return {}

    async def keep(self, hosts: Hosts, tell: Callable[[str], None]) -> None:
        """Its agents come back by themselves."""

    def access(self) -> Mapping[str, str]:
        return {}

    def login(self) -> Mapping[str, str]:
        """What everybody who uses it needs is enough for an operator."""
        return self.access()

    async def select(self, role: str, hosts: Hosts) -> Sequence[Host]:
        """By the roles that hosts have now. Raises SelectorError where none has this one."""
        mine = [(host, host.roles[self.name]) for host in hosts.all_hosts() if self.name in host.roles]
        chosen = [host for host, has in mine if has != "spare" and role in {"all", f"{has}s"}]
        if not chosen:
            raise SelectorError(f"{self.name}:{role} matches no host of this datacenter")
        return chosen

    async def serving(self, role: str, hosts: Hosts) -> Sequence[Host]:
        return await self.select(role, hosts)

    def probes(self, hosts: Hosts) -> Sequence[Probe]:  # noqa: ARG002 - the protocol's
        return []

    def rights(self) -> Sequence[Right]:
        return ()

    def policy(self, rights: Iterable[Right], why: Mapping[Right, str]) -> str:  # noqa: ARG002 - the protocol's
        return ""

    async def lacking(self, calls: Calls, rights: Iterable[Right]) -> Sequence[Right]:  # noqa: ARG002 - the protocol's
        """It has no ACLs."""
        return ()

    def describe(self, configs: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        """For run.json: each agent's configuration, by host."""
        return {self.name: {"config": configs}}


def standing(cls: Any, places: Sequence[AgentPlace]) -> Any:
    """The class of a service whose agents are there already: it starts none, and configures none."""
    return type(cls.__name__, (_Standing, cls), {"_standing": tuple(places)})


class _Standing:
    """What is different about a service whose agents are there already."""

    name: ClassVar[str]
    stands: ClassVar[bool] = True
    _standing: ClassVar[tuple[AgentPlace, ...]]

    def places(self) -> Sequence[AgentPlace]:
        return self._standing

    def binaries(self) -> Sequence[Wanted]:
        return []

    def impossible(self, role: str) -> str:
        return f"no host of the attached datacenter is {self.name}:{role}"
