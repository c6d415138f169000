"""Selectors name the hosts that a fault targets or a load goes through: `consul:leader`, `host:consul-2`.

On a host with several agents, a selector means the agent with the selector's role, or the host's main agent. A slash
names another agent: `host:nomad-1/consul`, `nomad:clients/consul`.

The datacenter resolves a role to hosts when the fault is injected. This module parses a selector and computes which
hosts it could ever match, so that impossible selectors are found before anything starts.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hashidrill.core.errors import UnknownNameError
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.claims import Place
from hashidrill.core.protocols.registry import near
from hashidrill.core.protocols.service import MovesRoles, Service, Standing, roles_of
from hashidrill.core.units import shown

CLIENT_PREFIX = "client:"


def selector_pattern() -> str:
    """A pattern of all selectors, for a schema. Imports all products."""
    roles = {name: service.roles for name, service in registry.services().items()}
    by_role = "".join(f"{name}:({'|'.join(each)})|" for name, each in roles.items() if each)
    return rf"^(({by_role}host:[^\s:/]+)(/({'|'.join(roles)}))?|{CLIENT_PREFIX}[^\s:]+)$"


def host_forms() -> list[str]:
    """The forms of selectors of hosts. Imports all products."""
    return [*(f"{name}:{role}" for name, one in registry.services().items() for role in one.roles), "host:NAME"]


def forms() -> list[str]:
    """The forms of all selectors. Imports all products."""
    return [*host_forms(), f"{CLIENT_PREFIX}NAME"]


@dataclass(frozen=True)
class Selector:
    """`service:who`: a role of a product, or `host` or `client` and a name.

    The services of a datacenter decide what it can match.
    """

    service: str
    who: str
    agent: str = ""
    """Selects only hosts with an agent of this service, and that agent; "": the agent of the role, or the host's
    main agent.
    """

    def __str__(self) -> str:
        return f"{self.service}:{self.who}{f'/{self.agent}' if self.agent else ''}"

    @property
    def is_client(self) -> bool:
        """Whether the selector names a client of the experiment, not a host."""
        return f"{self.service}:" == CLIENT_PREFIX

    @property
    def many(self) -> bool:
        """Whether the selector means all hosts of a role, not one of them."""
        cls = registry.services().get(self.service)
        return cls is not None and self.who in (cls.many if isinstance(cls, MovesRoles) else cls.roles)

    def most(self, services: Iterable[Service]) -> int:
        """The most hosts it can match at one time, in a datacenter of these services."""
        if not self.many:
            return 1
        return next((roles_of(one).most(self.who) for one in services if one.name == self.service), 0)

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
        return frozenset[str]().union(
            *(roles_of(one).candidates(self.who) for one in services if one.name == self.service)
        )

    def impossible(self, services: Sequence[Service]) -> str:
        """Why it can never match a host; "" if it can."""
        if self.candidates(services):
            return ""
        if self._candidates(services):
            there = sorted(name for name, hosts in agents_of(services).items() if self._candidates(services) & hosts)
            return f"{self} never matches: there is no {self.agent} on these hosts, but {' and '.join(there)}"
        if self.service == "host":
            return f"there is no host {shown(self.who)}: {near(self.who, host_names(services))}"
        why = next((self._impossible(one) for one in services if one.name == self.service), "")
        return f"{self} never matches: {why or f'the datacenter has no {self.service}; add datacenter.{self.service}'}"

    def _impossible(self, service: Service) -> str:
        if isinstance(service, Standing):
            return f"no host of the attached datacenter is {self.service}:{self.who}"
        return roles_of(service).impossible(self.who)


def agents_of(services: Iterable[Service]) -> dict[str, frozenset[str]]:
    """The hosts with an agent of each service, including spare hosts."""
    return {service.name: frozenset(place.host for place in service.places()) for service in services}


def host_names(services: Iterable[Service], *roles: str) -> list[str]:
    """The hosts that the services need (of these roles), without spare ones: `consul-1`, ... and `client-1`, ..."""
    hosts = [place for service in services for place in service.places() if place.starts]
    return list(dict.fromkeys(place.host for place in hosts if not roles or place.role in roles))


def parse_selector(text: str) -> Selector:
    """Reads a selector. Raises UnknownNameError that shows similar selectors, or all valid forms."""
    service, _, who = text.partition(":")
    who, slash, agent = (who, "", "") if service == CLIENT_PREFIX[:-1] else who.partition("/")
    known = registry.services()
    named = service in {"host", CLIENT_PREFIX[:-1]} and re.fullmatch(r"[^\s:]+", who)
    if not (named or (service in known and who in known[service].roles)) or (slash and agent not in known):
        of_roles = [f"{name}:{text}" for name in sorted(known) if text in known[name].roles]
        hint = f"did you mean {' or '.join(of_roles)}?" if of_roles else near(text, forms())
        raise UnknownNameError(f"{shown(text)} is not a selector: {hint}")
    return Selector(service, who, agent)


def aimed(kind: str, on: str) -> str:
    """The selector, with the product's agent added if a fault of a product targets `host:NAME`."""
    if not on.startswith("host:") or "/" in on:
        return on
    product = registry.product_of(kind)
    return f"{on}/{product}" if product else on


def _meant(selector: Selector, agents: Mapping[str, Mapping[str, str]]) -> str:
    """The service of the agent that a selector means; "" for a tap, and for an unknown host."""
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

    `services` are the datacenter's, `parts` the other keys of `datacenter:`; what could not be read is None.
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
