"""Selectors: which hosts a fault is put on, or a load goes through. `consul:leader`, `host:consul-2`.

A selector of a role is resolved to hosts by the datacenter, when the fault is injected. Here it is read, and asked
which hosts it could ever match, so that impossible ones are found before anything has started.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hashidrill.claims import Place
from hashidrill.errors import UnknownNameError
from hashidrill.registry import near
from hashidrill.units import shown

CONSUL_ROLES = ("leader", "followers", "one-follower", "servers", "clients", "all")
_MANY = ("followers", "servers", "clients", "all")
"""Roles that several hosts can have at once."""
CLIENT_PREFIX = "client:"
SELECTOR_PATTERN = rf"^(consul:({'|'.join(CONSUL_ROLES)})|host:[^\s:]+|{CLIENT_PREFIX}[^\s:]+)$"
HOST_FORMS = (*(f"consul:{role}" for role in CONSUL_ROLES), "host:NAME")
FORMS = (*HOST_FORMS, f"{CLIENT_PREFIX}NAME")


@dataclass(frozen=True)
class Selector:
    """`service:who`. `service` is `consul` (then `who` is one of CONSUL_ROLES), or `host` or `client` (then a name)."""

    service: str
    who: str

    def __str__(self) -> str:
        return f"{self.service}:{self.who}"

    @property
    def is_client(self) -> bool:
        """It names a client of the experiment, and no host at all."""
        return f"{self.service}:" == CLIENT_PREFIX

    @property
    def many(self) -> bool:
        """It means all hosts of a role, and not one."""
        return self.service == "consul" and self.who in _MANY

    def most(self, servers: int, clients: int) -> int:
        """How many hosts it matches at one time, in a datacenter of that many servers and clients."""
        if not self.many:
            return 1
        return len(self.candidates(servers, clients)) - (self.who == "followers")

    def candidates(self, servers: int, clients: int) -> frozenset[str]:
        """The hosts it can match at some moment, in a datacenter of that many servers and clients."""
        if self.service == "host":
            return frozenset({self.who}) & frozenset(host_names(servers, clients))
        if self.is_client:  # no host has such a name
            return frozenset({str(self)})
        if self.who == "clients":
            return frozenset(host_names(0, clients))
        if self.who == "all":
            return frozenset(host_names(servers, clients))
        if self.who in {"followers", "one-follower"} and servers < 2:
            return frozenset()
        return frozenset(host_names(servers, 0))  # leadership moves: each server may lead, and may follow

    def impossible(self, servers: int, clients: int) -> str:
        """Why it can never match a host, or "" when it can."""
        if self.candidates(servers, clients):
            return ""
        if self.service == "host":
            return f"there is no host {shown(self.who)}: {near(self.who, host_names(servers, clients))}"
        if self.who == "clients":
            return f"{self} never matches: the datacenter has no clients (datacenter.consul.clients is 0)"
        return f"{self} never matches: a single server has no followers (datacenter.consul.servers is {servers})"


def host_names(servers: int, clients: int) -> list[str]:
    """`consul-1`, ... for servers, then `client-1`, ... for clients."""
    return [f"consul-{n}" for n in range(1, servers + 1)] + [f"client-{n}" for n in range(1, clients + 1)]


def parse_selector(text: str) -> Selector:
    """Raises UnknownNameError that shows near selectors, or all forms there are."""
    if not re.fullmatch(SELECTOR_PATTERN, text):
        raise UnknownNameError(f"{shown(text)} is not a selector: {near(text, FORMS)}")
    service, _, who = text.partition(":")
    return Selector(service, who)


def place_of(on: str | None, begins_s: float | None, for_s: float | None, parts: Mapping[str, Any | None]) -> Place:
    """Where and when a step puts its fault. `parts` are those of `datacenter:`; None for what could not be read."""
    read = {key: part for key, part in parts.items() if part is not None}
    ends_s = None if begins_s is None or for_s is None else begins_s + for_s
    consul = read.get("consul")
    try:
        selector = None if on is None else parse_selector(on)
    except UnknownNameError:  # which is said where the selector is checked
        selector = None
    servers, clients = (0, 0) if consul is None else (consul.servers, consul.clients)
    return Place(
        on or "",
        frozenset() if selector is None or consul is None else selector.candidates(servers, clients),
        many=selector is not None and selector.many,
        most=1 if selector is None else selector.most(servers, clients),
        begins_s=begins_s,
        ends_s=ends_s,
        servers=tuple(host_names(servers, 0)),
        clients=tuple(host_names(0, clients)),
        parts=read,
    )
