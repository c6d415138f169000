"""Declarations that Consul's faults share: that they target servers, or only one host, or need a majority."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from hashidrill.core.faults.base import BaseFault, P
from hashidrill.core.protocols.abc import Claim, Place, Trouble
from hashidrill.core.protocols.claims import ANSWERS, needs

if TYPE_CHECKING:
    from hashidrill.products.consul.model import Consul

LEADERSHIP = "Consul's leadership"
ELECTIONS = "who can be elected"
"""Faults that decide who can be elected need this; a new server spoils it."""
AGENT_CONFIG = "the agent's configuration file"
ONE_AGENT = "they may target the same host, and one would stop the agent that the other needs, or undo its change"
SELECTED = "what a selector names"
"""A claim on the text of a selector, like consul:leader."""


def servers_in(place: Place) -> tuple[str, ...]:
    return place.having("consul", "server")


def consul_of(place: Place) -> Consul | None:
    consul: Consul | None = place.parts.get("consul")
    return consul


def is_before(version: tuple[int, ...], consul: Consul) -> bool:
    return tuple(map(int, consul.version.split(".")[:2])) < version


def on_one_host(kind: str, place: Place) -> Iterator[Trouble]:
    """Refuses several hosts for a fault that would interfere with itself."""
    if place.many and len(place.hosts) > 1:
        text = f"{kind} needs one host, but {place.on} may be several; write consul:leader or host:NAME"
        yield ("on",), text


class OfServers(BaseFault[P]):
    """Base of faults that target servers."""

    def troubles(self, place: Place) -> Iterable[Trouble]:
        if place.hosts and not place.hosts & {*servers_in(place)}:
            text = f"{self.kind} targets servers, but {place.on} is not a server; write consul:leader or host:consul-1"
            yield ("on",), text


def no_majority(place: Place) -> str:
    """Why a server must not stop or restart while another server does not answer."""
    return f"with one of {len(servers_in(place))} servers away and another one stopping, no majority would be left"


def needs_majority(place: Place, why: str, *, others: bool = False, longer_s: float = 0.0) -> Iterator[Claim]:
    """All servers must answer if two silent servers would leave no majority.

    `others`: if the step certainly targets one server, that server may be silent.
    """
    servers = len(servers_in(place))
    if servers >= 3 and (servers - 2) * 2 <= servers:
        own = place.hosts if others and len(place.hosts) == 1 else frozenset()
        yield needs(ANSWERS, why, where=frozenset(servers_in(place)) - own, longer_s=longer_s, local=False)
