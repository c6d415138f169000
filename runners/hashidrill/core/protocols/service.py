"""The protocol of a service, which holds all knowledge of one product, and the data it exchanges with a datacenter.

Every product implements `Service`. The protocols after it are optional; `isinstance(service, HasAcls)` tests a
class or an instance for them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

from pydantic import BaseModel

from hashidrill.core.errors import SelectorError
from hashidrill.core.protocols import registry

if TYPE_CHECKING:
    from hashidrill.core.protocols.abc import ApiAnswer, Host, Hosts, Probe
    from hashidrill.core.protocols.rights import Right


@dataclass(frozen=True)
class AgentPlace:
    """One agent that a service wants on a host. Services that name the same host share it.

    `starts=False`: the agent is configured, but only a fault may start it. `beside` names other services: each one
    that is in the datacenter also puts an agent of its own on this host, as a guest (`Service.guests`).
    """

    host: str
    role: str
    starts: bool = True
    beside: tuple[str, ...] = ()
    guest: bool = False
    """The host belongs to another service; `host:NAME` means that service's agent."""
    armed: bool = False  # the agent breaks its own host, and keeps root's rights over it, unlike other agents


@dataclass(frozen=True)
class Site:
    """What a service needs to configure the agent at one of its places. `addresses`: each host's address, by name."""

    host: str
    role: str
    address: str
    data: Path
    """The agent's existing folder on the host's disk, owned by the user that the agent runs as."""
    config_file: Path
    binaries: Mapping[str, Path]
    addresses: Mapping[str, str]
    roles: Mapping[str, str] = field(default_factory=dict)
    """The role of each agent of this host, by service: `{"nomad": "client", "consul": "client"}`."""
    processes: Path = Path("/proc")  # used on hosts where an armed agent sees only its own host's agents
    agents: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """For each host, its agents in the form of `roles`."""


@dataclass(frozen=True)
class AgentPlan:
    """How an agent is configured and started, and where its API is.

    `url` is `http://ADDRESS:PORT`, https or tcp. While the agent runs, it answers a GET of the path `health`, or, over
    TCP, the line `health`.

    `config` is written to `Site.config_file` as JSON. `environment` is added to the agents' environment.
    `as_root=False`: with user id 0, the program would claim rights that agents never have, like mounting. If agents run
    as the sandbox's user, whose id there is 0, this agent runs under another id.
    """

    config: Mapping[str, Any]
    command: Sequence[str]
    url: str
    health: str
    environment: Mapping[str, str] = field(default_factory=dict)
    as_root: bool = True
    files: Mapping[str, str] = field(default_factory=dict)  # further private files in `Site.data`, like keys


@dataclass(frozen=True)
class Workspace:
    """The tools that a datacenter lends a service while the service runs.

    `folder` is a private folder for this service, removed with the datacenter. `hide` keeps secrets out of all later
    output: call it before a secret is first used.
    """

    folder: Path
    hide: Callable[..., None]


@dataclass(frozen=True)
class Wanted:
    """A binary that a run starts: the one of that version, or the file at the path `explicit`."""

    name: str
    version: str
    explicit: str | None = None


SILENT_S = 5.0
"""How long a probe that samples once or twice a second may be silent."""
LEADS = "leads"
"""The text of a host's term sample while the host reports that it is the leader."""


@dataclass(frozen=True)
class Sampled:
    """The signals of one probe, and how long it may be silent before judgements that use them are in doubt.

    `regular` is a signal that each sample includes: each host is then checked by itself. Without `regular`, a sample of
    any of the signals on any host is enough.
    """

    signals: frozenset[str]
    regular: str = ""
    silent_s: float = SILENT_S


@dataclass(frozen=True)
class Panel:
    """How a report draws a signal over time. A bucket shows its largest sample if `worst`, otherwise their mean."""

    signal: str
    title: str
    unit: str = ""
    worst: bool = True


@dataclass(frozen=True)
class Lane:
    """A signal that a report draws as a state over time: `good` if it is 1 or more, otherwise `bad`.

    With `names`, the good state is the sample's text: the name of the leader. The live view shows it too, as `TITLE
    NAME`. `term` is the signal of each host's term, with the text `LEADS` while the host leads: a new term means an
    election, even if the same host wins.
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
        """Sends one request. Raises FaultError if there is no answer; any status is an answer."""


class Service(Protocol):
    """All knowledge of one product, like Consul: built from the product's part of an experiment's `datacenter:`.

    `name` is its key there, the name of its agents and of its entry point, and the prefix of its selectors.
    """

    name: ClassVar[str]
    Spec: ClassVar[type[BaseModel]]
    roles: ClassVar[tuple[str, ...]]
    """What may follow `name:` in a selector. A role is an agent's role with an `s`, unless the service `MovesRoles`."""
    spec: Any

    def __init__(self, spec: Any, *, spares: int = 0, guests: Sequence[str] = ()) -> None:
        """`guests` are hosts of other services that want an agent of this service (`AgentPlace.beside`)."""

    def places(self) -> Sequence[AgentPlace]:
        """The hosts that the service needs, in order, then its guests. The datacenter gives each host its address.

        Agents of one role start together; the roles start one after the other, in this order.
        """

    def binaries(self) -> Sequence[Wanted]:
        """The binaries of its agents. Each is in `Site.binaries` by its name."""

    def agent(self, site: Site) -> AgentPlan:
        """The agent at one of its places."""

    async def wait_ready(self, hosts: Hosts, *, within_s: float, agents_run: Callable[[], Awaitable[None]]) -> None:
        """Returns once the service is usable. Calls `agents_run` at each look. Raises its errors, WaitTimeoutError."""


class BaseService:
    """Stores a service's specification, spares and guests."""

    def __init__(self, spec: Any, *, spares: int = 0, guests: Sequence[str] = ()) -> None:
        self.spec = spec
        self.spares = spares
        self.guests = guests


# how a service starts, and what it adds


@runtime_checkable
class StartsAfter(Protocol):
    """A service whose agents need other services before they start."""

    after: ClassVar[tuple[str, ...]]
    """The services that must be ready first, if the datacenter has them."""


def after(service: Service) -> frozenset[str]:
    """The services that must be ready before this one starts, if the datacenter has them."""
    return frozenset(service.after if isinstance(service, StartsAfter) else ())


@runtime_checkable
class OnEveryHost(Protocol):
    """A service with one agent on every host of the other services; it starts after them."""

    everywhere: ClassVar[Literal[True]]


@runtime_checkable
class TakesMemory(Protocol):
    """A service whose agents need more or less memory than USUAL_BYTES."""

    agent_bytes: ClassVar[int]
    """Bytes of one agent under an ordinary load, without the pages of the program file."""


USUAL_BYTES = 70_000_000


@runtime_checkable
class Opens(Protocol):
    """A service with its own files or secrets."""

    def open(self, workspace: Workspace) -> None:
        """Called once, before any of its agents starts."""


@runtime_checkable
class AddsCapabilities(Protocol):
    """A service that adds capabilities to its hosts, to break or observe them."""

    def parts(self, host: Host) -> Mapping[type[Any], Any]:
        """Capabilities that it adds to a host of one of its agents, with their implementations."""


@runtime_checkable
class Operates(Protocol):
    """A service that does an operator's manual work."""

    async def keep(self, hosts: Hosts, tell: Callable[[str], None]) -> None:
        """Runs while the datacenter is ready, until cancelled; may return at once. `tell` notes each action."""


@runtime_checkable
class Describes(Protocol):
    """A service that writes something other than its agents' configuration to run.json."""

    def describe(self, configs: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        """What run.json says about this service; `configs` holds the configuration of each host's agent."""


@runtime_checkable
class ChecksExperiments(Protocol):
    """A service that finds mistakes in an experiment which no pydantic model can express."""

    def check(self, experiment: Any, note: Any) -> None:
        """Notes mistakes in an experiment (experiment.model.Experiment) that only this service can find."""


@runtime_checkable
class Reachable(Protocol):
    """A service whose agents have an HTTP API, possibly reached through another transport."""

    transport: Any
    """The httpx2 transport; None: plain HTTP to the agents' addresses."""


# for people who use it


@runtime_checkable
class HandsOutTokens(Protocol):
    """A service whose users need environment variables, like tokens."""

    def access(self) -> Mapping[str, str]:
        """The variables that each user needs once the service is ready. The values count as secrets."""


@runtime_checkable
class HasOperator(Protocol):
    """A service whose operators, who may do everything, need other variables than its users."""

    def login(self) -> Mapping[str, str]:
        """The variables that `hashidrill lab shell` sets. The values count as secrets."""


@runtime_checkable
class HasCommandLine(Protocol):
    """A service with a command line."""

    address_variable: ClassVar[str]
    """The environment variable with an agent's URL: `CONSUL_HTTP_ADDR`."""
    look: ClassVar[str]
    """A first command to try on one of its hosts: `consul members`."""


@runtime_checkable
class HasPage(Protocol):
    """A service whose agents serve a page for people."""

    ui: ClassVar[str]
    """The path, like `/ui/`."""


@runtime_checkable
class WritesFiles(Protocol):
    """A service that writes files for people once it is ready."""

    def left(self) -> Mapping[str, str]:
        """The path of each file, by the kind of file: `{"kubeconfig": PATH}`. `hashidrill lab up` shows them."""


# its measurements


@runtime_checkable
class Watched(Protocol):
    """A service that probes watch during a run. `hashidrill.signals` has an entry point for its signals' first word."""

    signals: ClassVar[Mapping[str, type[Any] | None]]
    """Signals that its probes measure and conditions may compare, with units (None: a plain number)."""

    def probes(self, hosts: Hosts) -> Sequence[Probe]: ...


LEADER_ELECTED, SNAPSHOT_BEGINS, SNAPSHOT_INSTALLED = "leader elected", "snapshot begins", "snapshot installed"
BEHIND = "entries behind"


@runtime_checkable
class ShowsMoments(Protocol):
    """A service that shows moments at which a step of a method may begin (hashidrill.core.experiment.moments)."""

    name: ClassVar[str]
    moments: ClassVar[Mapping[str, str]]
    """For each kind of moment, the hosts' signal that shows it. LEADER_ELECTED: the term, with the text LEADS while the
    host leads; BEHIND: the commit index, read together with that term; others: a count that rises each time.
    """

    def moment_probes(self, hosts: Hosts) -> Sequence[Probe]:
        """New probes of these signals, perhaps among others; the caller samples and closes them."""


def shower(services: Iterable[Any], kind: str, product: str = "") -> Any:
    """The service (Service and ShowsMoments) that shows that kind of moment. Raises SelectorError, with the reason, if
    there is not exactly one.
    """
    known = list(services)
    able = [one for one in known if isinstance(one, ShowsMoments) and {kind, LEADER_ELECTED} <= one.moments.keys()]
    found = [one for one in able if not product or one.name == product]
    if len(found) == 1:
        return found[0]
    names = " and ".join(one.name for one in able)
    if found:
        raise SelectorError(f"{names} all show it: name one, like `{kind} in {found[0].name}`")
    has = f"only {names} shows it" if able else f"{' and '.join(one.name for one in known) or 'nothing'} cannot show it"
    raise SelectorError(f"the datacenter cannot show {kind!r}{f' in {product}' if product else ''}: {has}")


@runtime_checkable
class NeedsProbes(Protocol):
    """A service on whose probes judgements depend: a silent probe puts the judgements in doubt."""

    probed: ClassVar[Sequence[Sampled]]
    """The signals that its probes sample, for the judge."""


@runtime_checkable
class Drawn(Protocol):
    """A service that says how reports draw its signals; other signals are drawn under their names."""

    panels: ClassVar[Sequence[Panel]]
    lanes: ClassVar[Sequence[Lane]]
    undrawn: ClassVar[frozenset[str]]


@runtime_checkable
class ServesProfiles(Protocol):
    """A service whose servers serve Go profiles (pprof) over HTTP."""

    name: ClassVar[str]
    profiles: ClassVar[str]
    """The path below which the profiles are: `/debug/pprof/`."""

    def unprofiled(self) -> str:
        """Why its servers, as configured, serve no profiles; "" if they do."""


@runtime_checkable
class AsksServers(Protocol):
    """A service whose client agents forward requests to a server: a sick server that no agent uses hurts no user."""

    name: ClassVar[str]
    asks: ClassVar[str]
    """A signal of each client agent's host. Its text names the server that the agent uses and then, after commas, other
    servers that it is connected to.
    """


def asks() -> dict[str, str]:
    """The signals that tell which server each client agent uses, by product."""
    return {product.name: product.asks for product in registry.services_with(AsksServers)}


def lanes() -> list[Lane]:
    """The lanes of all products."""
    return [lane for product in registry.services_with(Drawn) for lane in product.lanes]


@runtime_checkable
class HasPeriods(Protocol):
    """A service with kinds of loads that have no `rate`; their operations recur after a period."""

    periods: ClassVar[Mapping[str, tuple[str, str]]]
    """For each kind of load, the parameter that holds the period, and its default."""


@runtime_checkable
class HasClosedLoops(Protocol):
    """A service with kinds of loads that start no operation while `at_once` operations are in flight (OpenLoop)."""

    at_once: ClassVar[Mapping[str, tuple[str, int]]]
    """For each kind of load, the parameter with the number of operations at once, and its default."""


# its users' rights


@runtime_checkable
class HasAcls(Protocol):
    """A service with policies and tokens: `hashidrill staging acl` prints a policy."""

    def rights(self) -> Sequence[Right]:
        """The rights that its probes, its selectors and the check before a run need."""

    def policy(self, rights: Iterable[Right], why: Mapping[Right, str]) -> str:
        """The part of the rights for this product, as a policy for its command line; `why`: what needs each right."""

    async def lacking(self, calls: Calls, rights: Iterable[Right]) -> Sequence[Right]:
        """The rights for this product that the token lacks. Only reads. Raises InterlockError if that is unknown."""


# its roles


@runtime_checkable
class MovesRoles(Protocol):
    """A service whose roles move from host to host, as `consul:leader` does."""

    @property
    def many(self) -> tuple[str, ...]:
        """The roles that several hosts can have at once."""

    @property
    def served(self) -> tuple[str, ...]:
        """The roles that a `via` can always name, because other hosts serve if no host has the role."""

    def candidates(self, role: str) -> frozenset[str]:
        """The hosts that may have this role at some moment; empty if none ever can."""

    def most(self, role: str) -> int:
        """How many hosts have this role at one time."""

    def impossible(self, role: str) -> str:
        """Why the role has no candidates: `the datacenter has no client agents (...)`."""

    async def select(self, role: str, hosts: Hosts) -> Sequence[Host]:
        """The hosts that have this role now. Raises SelectorError when there is none."""

    async def serving(self, role: str, hosts: Hosts) -> Sequence[Host]:
        """The hosts whose agents a load uses if its `via` names that role. Raises SelectorError."""


class RolesOfPlaces:
    """The roles of a service whose roles never move: `servers` are its hosts with an agent whose role is `server`."""

    served: tuple[str, ...] = ()

    def __init__(self, service: Service) -> None:
        self._service = service
        self.many = service.roles

    def candidates(self, role: str) -> frozenset[str]:
        places = self._service.places()
        return frozenset(p.host for p in places if p.starts and role in {"all", f"{p.role}s"})

    def most(self, role: str) -> int:
        return len(self.candidates(role))

    def impossible(self, role: str) -> str:
        return f"the datacenter has no {self._service.name} {role}"

    async def select(self, role: str, hosts: Hosts) -> Sequence[Host]:
        name = self._service.name
        mine = [(host, host.roles[name]) for host in hosts.all_hosts() if name in host.roles]
        chosen = [host for host, has in mine if has != "spare" and role in {"all", f"{has}s"}]
        if not chosen:
            raise SelectorError(f"{name}:{role} matches no host of this datacenter")
        return chosen

    serving = select


def roles_of(service: Service) -> MovesRoles:
    """The service's roles, moving or fixed."""
    return service if isinstance(service, MovesRoles) else RolesOfPlaces(service)


# services whose agents run already


class Standing:
    """A service whose agents already run: the datacenter neither starts nor configures them."""

    _standing: ClassVar[tuple[AgentPlace, ...]]

    def places(self) -> Sequence[AgentPlace]:
        return self._standing

    def binaries(self) -> Sequence[Wanted]:
        return []


def standing(cls: Any, places: Sequence[AgentPlace]) -> Any:
    """The service class with `Standing`, for agents that run already."""
    return type(cls.__name__, (Standing, cls), {"_standing": tuple(places)})


_OF_HOSTS = (
    Sampled(frozenset({"disk.fsync"}), "disk.fsync", 15.0),
    Sampled(frozenset({"process.cpu", "process.rss", "process.write_rate", "process.wchar_rate"}), "process.rss"),
)
"""The probes of any host. The disk's probe waits up to 10 s for an answer."""


def probed() -> list[Sampled]:
    """The probes of hosts and of all services.

    A probe of a sick target writes failed samples; only a probe that does not sample at all is silent.
    """
    return [*_OF_HOSTS, *(each for product in registry.services_with(NeedsProbes) for each in product.probed)]
