"""What a fault declares before anything runs: where a step applies it, and what it claims there.

`Fault.uses(place)` returns claims. `validate` refuses two steps whose claims clash while both are in force, with the
claim's reason. Things are identified by name, so faults of any package can claim the same thing. A thing that
several modules name is a constant here, or in the folder of its product.

    takes(thing)    the fault alone uses the thing: clashes with another fault that takes it
    needs(thing)    the fault relies on the thing, and so may others: clashes with a fault that spoils it
    spoils(thing)   the thing is unreliable while the fault is in force: clashes with a fault that needs it
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

ON_HOST, ON_CONNECTIONS = "on the same host", "on the same connections"
EVERYWHERE: frozenset[Any] = frozenset({"everywhere"})
"""The place of a thing that the datacenter has only once."""

HOST = "the host"
"""Needed by faults that change anything there; spoiled by faults that remove the host from the datacenter."""
AGENT = "the agent"
"""Taken by faults that stop the agent, or need it to answer. The engine lets these faults take turns on each agent."""
ANSWERS = "the agent's answers"
"""Spoiled by faults that keep the agent from answering other agents."""
LISTENER = "the agent's listening ports"
START = "a start of the agent"
PAUSED = "a paused process"
PROCESS = "the agent's process"
CPU = "the host's CPU"
MEMORY = "the host's memory"
DISK = "the disk"
"""Its parts are the operations fsync, write and read."""
OF_ONE_AGENT = frozenset({AGENT, ANSWERS, LISTENER, START, PAUSED, PROCESS})
"""Things that each agent of a host has for itself: two faults clash only if both target the same product's agent."""
PACKETS = "packets that pass"
CANARY_TIMES = "what the canary times"
CONTROL = "control-"
"""The prefix of the roles of control agents: these carry out faults, and are not under test."""
CANARY_LINKS = "what passes between the canaries"


def connections(port: int) -> str:
    """The connections to that TCP port; each of them is a pair of hosts (`Place.connections`)."""
    return f"connections to port {port}"


@dataclass(frozen=True)
class Place:
    """Where and when a step of the method applies a fault, as far as that is known before anything runs.

    A role moves from host to host, so `hosts` are all hosts that the selector may match at some moment. `hosts` is
    empty if they are unknown: the selector is wrong, or the datacenter could not be read.
    """

    on: str = ""
    hosts: frozenset[str] = frozenset()
    many: bool = False
    """Whether the selector means several hosts, like `consul:servers`, unlike `consul:leader`."""
    most: int = 1
    """How many hosts the selector matches at one time."""
    begins_s: float | None = None
    """Seconds after the method began; None if that could not be read."""
    ends_s: float | None = None
    service: str = ""
    """The service of the agent that the step targets: the role's service, or the host's; "" if unknown."""
    agents: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """For each host that is not spare, the role of each agent by service: `{"nomad-1": {"nomad": "client"}}`."""
    parts: Mapping[str, Any] = field(default_factory=dict)
    """The keys of `datacenter:` (`consul`, `disk`) as models, without those that could not be read."""

    def having(self, service: str, role: str) -> tuple[str, ...]:
        """The hosts with an agent of that service in that role: `having("consul", "server")`."""
        return tuple(host for host, roles in self.agents.items() if roles.get(service) == role)

    def across(self, who: str) -> frozenset[str]:
        """The hosts that `from: WHO` names (see `is_across`), even unknown hosts."""
        if who.startswith("host:"):
            return frozenset({who.removeprefix("host:")})
        return frozenset(host for host, roles in self.agents.items() if is_across(who, host, roles, self.service))

    def connections(self, direction: str) -> frozenset[tuple[str, str]]:
        """(from, to) of each connection to (`in`), from (`out`), or to and from (`both`) these hosts.

        `elsewhere` stands for any address outside the datacenter, like hashidrill's own loads.
        """
        everybody = (*self.agents, "elsewhere")
        pairs = {(other, host) for host in self.hosts for other in everybody if other != host}
        coming = pairs if direction in ("in", "both") else set()
        going = {(host, other) for other, host in pairs} if direction in ("out", "both") else set()
        return frozenset(coming | going)


def is_across(who: str, host: str, roles: Mapping[str, str], service: str) -> bool:
    """Whether `from: WHO` names a host with these agents.

    WHO is `all`, `host:NAME`, `SERVICE:ROLE` (`consul:servers`, `nomad:all`), or a role alone, for the service whose
    agent the fault targets. Only roles that an agent is started with can be named: `servers`, not `leader`. `all`
    excludes the hosts of control agents (CONTROL), which must be able to revert.
    """
    if who == "all":
        return not any(role.startswith(CONTROL) for role in roles.values())
    kind, named, role = who.rpartition(":")
    if kind == "host":
        return host == role
    of = [roles.get(kind or service, "")] if kind or service else roles.values()
    return any(has and (f"{has}s" == role or bool(named and role == "all")) for has in of)


@dataclass(frozen=True)
class Claim:
    """One resource that a fault claims. Write it with `takes`, `needs` or `spoils`."""

    mode: Literal["takes", "needs", "spoils"]
    thing: str
    why: str = ""
    """Why it clashes with another claim on the thing; `{parts}` is replaced by the parts that both claim."""
    where: frozenset[Any] | None = None
    """The claim's places; two claims clash only at a common place. None: the hosts of the step."""
    parts: frozenset[str] = frozenset()
    """The parts claimed, if faults may share the thing by parts; empty: the whole thing."""
    longer_s: float = 0.0
    """By how many seconds the claim may outlast the step's `for`."""
    meets: str = ON_HOST
    """Where the two faults meet, for a message without a `why`."""
    local: bool = True
    """Whether the clash can be avoided by choosing other hosts."""


takes = partial(Claim, "takes")
"""Only this fault may use the thing."""
needs = partial(Claim, "needs")
"""The fault relies on the thing, and so may others."""
spoils = partial(Claim, "spoils")
"""The thing is unreliable while the fault is in force."""


@dataclass(frozen=True)
class Restarts:
    """When a fault restarts the agent of its host: no other fault may hold the agent down at these moments."""

    within_s: float
    """The longest time that the restart takes, in seconds."""
    beginning: bool = True
    end: bool = False

    def moments(self, place: Place) -> Iterator[float]:
        """The moments of the restarts, in seconds after the method began."""
        if place.begins_s is None or place.ends_s is None:
            return
        if self.beginning:
            yield place.begins_s
        if self.end:
            yield place.ends_s


@dataclass(frozen=True)
class Clash:
    """Why two faults cannot be in force at the same time."""

    said: str
    local: bool

    @property
    def advice(self) -> str:
        return "let one end before the other begins" + (", or name other hosts" if self.local else "")


Claimed = tuple[Place, Iterable[Claim]]
_CLASHING = ({"takes"}, {"needs", "spoils"})


def clash(one: Claimed, two: Claimed) -> Clash | None:
    """The first clash of the claims of two steps; None when both may be in force."""
    return next(
        (
            _clash(mine, theirs, shared)
            for mine in one[1]
            for theirs in two[1]
            if mine.thing == theirs.thing and {mine.mode, theirs.mode} in _CLASHING
            if _together(one[0], mine, two[0], theirs)
            if (shared := _shared(one[0], mine, two[0], theirs)) is not None
        ),
        None,
    )


def _clash(one: Claim, two: Claim, shared: frozenset[str]) -> Clash:
    why = (one.why or two.why).replace("{parts}", " and ".join(sorted(shared)))
    meets = next((claim.meets for claim in (one, two) if claim.meets != ON_HOST), ON_HOST)
    return Clash(f"does: {why}" if why else f"may be {meets}", one.local and two.local)


def _together(here: Place, one: Claim, there: Place, two: Claim) -> bool:
    if here.begins_s is None or here.ends_s is None or there.begins_s is None or there.ends_s is None:
        return False
    return here.begins_s < there.ends_s + two.longer_s and there.begins_s < here.ends_s + one.longer_s


def _shared(here: Place, one: Claim, there: Place, two: Claim) -> frozenset[str] | None:
    """The parts that both steps claim; None if the claims do not meet."""
    if one.thing in OF_ONE_AGENT and here.service and there.service and here.service != there.service:
        return None
    where = [place.hosts if claim.where is None else claim.where for place, claim in ((here, one), (there, two))]
    if not where[0] & where[1]:
        return None
    if not one.parts or not two.parts:
        return one.parts or two.parts
    return one.parts & two.parts or None


def claims_thing(thing: str, claims: Iterable[Claim]) -> bool:
    """Whether one of the claims takes that thing."""
    return any(claim.mode == "takes" and claim.thing == thing for claim in claims)
