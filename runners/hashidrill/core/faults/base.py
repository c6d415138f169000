"""The base of all built-in faults: the undo holds parameters and host, so that a fresh process can revert."""

import re
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from hashidrill.core.errors import FaultError
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.protocols.abc import Claim, Host, Hosts, Observer, Place, Requires, Target, Trouble, Undo
from hashidrill.core.protocols.claims import HOST, is_across, needs, takes
from hashidrill.core.protocols.registry import near
from hashidrill.core.units import shown
from hashidrill.core.util.wait import pause

P = TypeVar("P", bound=Strict)
F = TypeVar("F")
Prior: TypeAlias = Callable[[F, Target], Coroutine[Any, Any, Mapping[str, Any]]]
_BASELINES, _GAP_S = 3, 0.1


def patient(prior: Prior[F]) -> Prior[F]:
    """Repeats a baseline in which the fault could not be proven: the machine may have been busy for a moment."""

    @wraps(prior)
    async def taken(fault: F, target: Target) -> Mapping[str, Any]:
        for _ in range(_BASELINES - 1):
            try:
                return await prior(fault, target)
            except FaultError:
                await pause(_GAP_S)
        return await prior(fault, target)

    return taken


@dataclass(frozen=True)
class Cases:
    """Test cases of a fault, for the tests of all faults. Parameters are written as in YAML."""

    each: Sequence[Mapping[str, Any]] = ({},)
    """Parameters for `hashidrill.testing.check_fault`, on the fake and in the lab."""
    on: Sequence[tuple[str, Mapping[str, Any]]] = ()
    """Selectors and parameters with which to test a product's fault on a real datacenter of that product."""
    momentary: bool = False
    """Whether the effect ends without a revert, so that an observer cannot find it later."""
    disarm: Callable[[Any, Undo], Coroutine[Any, Any, None]] | str | None = None
    """Removes the effect behind the observer's back, given host and undo; None: as the fault's revert does.

    A text says why there is nothing to remove.
    """
    space: Sequence[Mapping[str, Any]] = ()
    """Alternatives of values from which parameters are drawn, to tell each effect from its absence.

    `"1ms..5000ms"` is a range of whole numbers with a unit, `"0.5..10.0"` one of decimals, a list is a choice.
    """
    weak: Callable[[Mapping[str, Any], Any], bool] | None = None
    """Whether random parameters may be so weak, compared with a machine's noise, that the fault refuses them."""
    overlaps: Sequence[Mapping[str, Any] | tuple[Sequence[str], Mapping[str, Any]]] | str | None = None
    """Parameters for runs in which faults overlap at random, with selectors unless any host will do; None: `each`.

    A text says why it is left out of those runs.
    """


SERVERS = ["host:consul-1", "host:consul-2", "host:consul-3"]
"""Selectors for `Cases.overlaps`."""
SIDES = ["all", "servers", "clients", "host:consul-2", "host:client-1"]
"""Values of the parameter `from` for `Cases.space`."""


class NoParams(Strict):
    """For faults without parameters."""


def peers_of(hosts: Hosts, target: Target, who: str) -> list[Host]:
    """The hosts on the other side of a network fault (`claims.is_across`), never the target."""
    others = [host for host in hosts.all_hosts() if host.name != target.host]
    return [host for host in others if is_across(who, host.name, host.roles, target.agent)]


def across_troubles(place: Place, who: str) -> Iterator[Trouble]:
    """Problems of `from: WHO` of a network fault: an unknown host, or no host on the other side."""
    key, everybody = ("with", "from"), place.agents
    if not everybody:
        return
    there = place.across(who)
    if not there and ":" in who:
        yield key, f"{who} names no host of this datacenter: {near(who, _sides(place))}"
        return
    if unknown := there - {*everybody}:
        yield key, f"there is no host {shown(min(unknown))}: {near(min(unknown), everybody)}"
    elif lonely := next((host for host in sorted(place.hosts) if not there - {host}), ""):
        text = f"from {who} names no host other than {lonely}, and the proof needs another host"
        yield key, f"{text}; name others, or give the datacenter more clients"


def _sides(place: Place) -> list[str]:
    """The values of `from` in this datacenter, apart from single hosts."""
    roles = {f"{service}:{role}s" for agents in place.agents.values() for service, role in agents.items()}
    return ["all", *sorted(roles)]


def table_of(fault_id: str) -> str:
    """The name of the table of packet rules that belongs to this fault alone."""
    return "hashidrill_" + re.sub(r"\W", "_", fault_id)


class BaseFault(Generic[P]):
    """Base of faults on hosts. Its defaults suit a fault that clashes only with faults of the same kind.

    `undo` holds `fault_id`, `kind`, `host`, `agent`, `reference` and `params` (as written in YAML).
    """

    kind: ClassVar[str]
    Params: ClassVar[type[Strict]] = NoParams
    observer: ClassVar[Observer | None] = None
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset()
    """The capabilities that its host must have, for `requires`."""
    elsewhere: ClassVar[frozenset[type[Any]]] = frozenset()
    """The capabilities that its observer needs of other hosts."""
    across: ClassVar[frozenset[type[Any]]] = frozenset()
    """The capabilities that its observer needs of each host on the other side (its parameter `from`)."""
    ends_its_agent: ClassVar[bool] = False
    """Whether it ends the agent's process, so that the agent must be started again."""
    instead: ClassVar[frozenset[type[Any]]] = frozenset()
    """Capabilities for an alternative way, on a host that has all of them (`Requires.instead`)."""
    cases: ClassVar[Cases] = Cases()

    def __init__(self, params: P, hosts: Hosts) -> None:
        self.params = params
        self.hosts = hosts

    def requires(self) -> Requires:
        return Requires(self.capabilities, elsewhere=self.elsewhere)

    def uses(self, place: Place) -> Sequence[Claim]:
        return (needs(HOST), takes(self.kind))

    def plan(self, target: Target, *, fault_id: str) -> Undo:
        return {
            "fault_id": fault_id,
            "kind": self.kind,
            "host": target.host,
            "agent": target.agent,
            "reference": target.reference,
            "params": self.params.model_dump(mode="json", by_alias=True),
            **self.plan_more(target),
        }

    def plan_more(self, target: Target) -> dict[str, Any]:
        """Fields that this kind of fault adds to the undo. Pure."""
        return {}

    def _host(self, undo: Undo) -> Host:
        return self.hosts.host(undo["host"])
