"""Selectors name the hosts that a fault targets or a load goes through: `consul:leader`, `host:consul-2`.

On a host with several agents, a selector means the agent of its role, or the host's own. A slash names another one:
`host:nomad-1/consul`, `nomad:clients/consul`.

The datacenter resolves a role to hosts when the fault is injected. This module parses a selector and says which hosts
it could ever match, so that impossible selectors are found before anything starts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hashidrill.core.errors import UnknownNameError
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.claims import Place
from hashidrill.core.protocols.registry import near
from hashidrill.core.units import shown

if TYPE_CHECKING:
    from hashidrill.core.protocols.service import Service

ROLES: dict[str, tuple[str, ...]] = {name: service.roles for name, service in registry.services().items()}
CLIENT_PREFIX = "client:"
_BY_ROLE = "".join(f"{name}:({'|'.join(roles)})|" for name, roles in ROLES.items() if roles)
_AGENT = f"(/({'|'.join(ROLES)}))?"
SELECTOR_PATTERN = rf"^(({_BY_ROLE}host:[^\s:/]+){_AGENT}|{CLIENT_PREFIX}[^\s:]+)$"
HOST_FORMS = (*(f"{name}:{role}" for name, roles in ROLES.items() for role in roles), "host:NAME")
FORMS = (*HOST_FORMS, f"{CLIENT_PREFIX}NAME")


@dataclass(frozen=True)
class Selector:
    """`service:who`: one of the ROLES of a product, or `host` or `client` and a name.

    The services of a datacenter decide what it can match.
    """

    service: str
    who: str
    agent: str = ""
    """Only the hosts with an agent of this service, and that agent; "": the one of the role, or the host's own."""

    def __str__(self) -> str:
        return f"{self.service}:{self.who}{f'/{self.agent}' if self.agent else ''}"

    @property
    def is_client(self) -> bool:
        """It names a client of the experiment, not a host."""
        return f"{self.service}:" == CLIENT_PREFIX

    @property
    def many(self) -> bool:
        """It means all hosts of a role, not one of them."""
        return self.service in ROLES and self.who in registry.services()[self.service].many

    def most(self, services: Iterable[Service]) -> int:
        """How many hosts it matches at one time, in a datacenter of these services."""
        if not self.many:
            return 1
        return next((service.most(self.who) for service in services if service.name == self.service), 0)

    def candidates(self, services: Iterable[Service]) -> frozenset[str]:
        """The hosts it can match at some moment, in a datacenter of these services."""
        known = list(services)
        found = self._candidates(known)
        return found & frozenset(agents_of(known).get(self.agent, ())) if self.agent else found

    def _candidates(self, services: Sequence[Service]) -> frozenset[str]:
        if self.service == "host":
            return frozenset({self.who}) & frozenset(host_names(services))
        if self.is_client:  # no host has such a name
            return frozenset({str(self)})
        return frozenset[str]().union(*(s.candidates(self.who) for s in services if s.name == self.service))

    def impossible(self, services: Sequence[Service]) -> str:
        """Why it can never match a host; "" if it can."""
        if self.candidates(services):
            return ""
        if self._candidates(services):
            there = sorted(name for name, hosts in agents_of(services).items() if self._candidates(services) & hosts)
            return f"{self} never matches: there is no {self.agent} on these hosts, but {' and '.join(there)}"
        if self.service == "host":
            return f"there is no host {shown(self.who)}: {near(self.who, host_names(services))}"
        why = next((s.impossible(self.who) for s in services if s.name == self.service), "")
        return f"{self} never matches: {why or f'the datacenter has no {self.service}; add datacenter.{self.service}'}"


def agents_of(services: Iterable[Service]) -> dict[str, frozenset[str]]:
    """The hosts with an agent of each service, spare ones too."""
    return {service.name: frozenset(place.host for place in service.places()) for service in services}


def host_names(services: Iterable[Service], *roles: str) -> list[str]:
    """The hosts that the services need (of these roles), without spare ones: `consul-1`, ... and `client-1`, ..."""
    hosts = [place for service in services for place in service.places() if place.starts]
    return list(dict.fromkeys(place.host for place in hosts if not roles or place.role in roles))


def parse_selector(text: str) -> Selector:
    """Raises UnknownNameError that shows similar selectors, or all valid forms."""
    if not re.fullmatch(SELECTOR_PATTERN, text):
        raise UnknownNameError(f"{shown(text)} is not a selector: {near(text, FORMS)}")
    service, _, who = text.partition(":")
    who, _, agent = (who, "", "") if service == CLIENT_PREFIX[:-1] else who.partition("/")
    return Selector(service, who, agent)


def aimed(kind: str, on: str) -> str:
    """`host:NAME` for a fault of a product is about that product's agent there, and not about the host's own."""
    if not on.startswith("host:") or "/" in on:
        return on
    return next((f"{on}/{name}" for name, service in registry.services().items() if kind in service.faults), on)


def _meant(selector: Selector, agents: Mapping[str, Mapping[str, str]]) -> str:
    """The service of the agent that a selector means; "" for a tap, and for a host that is not there."""
    if selector.service == "host":
        return selector.agent or next(iter(agents.get(selector.who, ())), "")
    return selector.agent or ("" if selector.is_client else selector.service)


def place_of(
    on: str | None,
    begins_s: float | None,
    for_s: float | None,
    services: Sequence[Service] | None,
    parts: Mapping[str, Any | None],
) -> Place:
    """Where and when a step applies its fault.

    `services` are those of the datacenter, `parts` the other keys of `datacenter:`; None for what could not be read.
    """
    known = services or ()
    read = {key: part for key, part in parts.items() if part is not None}
    ends_s = None if begins_s is None or for_s is None else begins_s + for_s
    try:
        selector = None if on is None else parse_selector(on)
    except UnknownNameError:  # the check of the selector reports it
        selector = None
    agents: dict[str, dict[str, str]] = {}
    each = [(service.name, place) for service in known for place in service.places() if place.starts]
    for name, place in sorted(each, key=lambda one: one[1].guest):
        agents.setdefault(place.host, {})[name] = place.role
    return Place(
        on or "",
        frozenset() if selector is None or services is None else selector.candidates(known),
        many=selector is not None and selector.many,
        most=1 if selector is None else selector.most(known),
        begins_s=begins_s,
        ends_s=ends_s,
        service="" if selector is None else _meant(selector, agents),
        agents={host: agents[host] for host in host_names(known)},
        parts={**read, **{service.name: service.spec for service in known}},
    )
