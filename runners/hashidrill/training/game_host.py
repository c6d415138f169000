"""A host of a game: what listens on it is the same on all hosts of all games, whatever is broken and where.

A slow link needs a toxiproxy on its host, with three ports of its own, and observers need others. `ss -ltn` would tell
a trainee which host that is. So the same few ports are used in every game, and something listens on each of them from
the beginning: a stand-in, which steps aside for what needs the port.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hashidrill.abc import Exchange, ExchangeRequest, Toxic
from hashidrill.datacenter.local import toxiproxy
from hashidrill.datacenter.local.hosts import LocalHost
from hashidrill.faults.links import BASELINE, FIRST_PORT, PORT_TRIPLES, Ports
from hashidrill.packets import PacketRule, Redirect
from hashidrill.sandbox import cgroups
from hashidrill.sandbox.asking import ask
from hashidrill.services.consul.faults.rpc import CANARY_PORT

MOST_LINKS = 2
"""Slow links of one host that nobody sees. More of them work, and are seen."""
_BASE = FIRST_PORT
_NUMBERED = range(FIRST_PORT, FIRST_PORT + 3 * PORT_TRIPLES)
_NO_LINK = Ports.of(BASELINE)


def proxied(link: int) -> tuple[int, int]:
    """The ports of one slow link on which proxies listen; the one after them is a canary's."""
    return _BASE + 1 + 3 * link, _BASE + 2 + 3 * link


STOOD_IN = (toxiproxy.API_PORT, *(port for link in range(MOST_LINKS) for port in proxied(link)))
LISTENED = (CANARY_PORT, _BASE, *(proxied(link)[1] + 1 for link in range(MOST_LINKS)))


@dataclass
class Slots:
    """Which of the ports of all games is meant by the port of a fault, on the host with that address."""

    _links: dict[str, dict[int, int]] = field(default_factory=dict)

    def of(self, address: str, port: int) -> int:
        """Any port that is no fault's is itself."""
        if port not in _NUMBERED:
            return port
        if port == _NO_LINK.canary:
            return _BASE
        triple, which = divmod(port - FIRST_PORT, 3)
        links = self._links.setdefault(address, {})
        return _BASE + 1 + 3 * links.setdefault(triple, len(links)) + which


class GameHost(LocalHost):
    """A host that looks like all others of the game."""

    def __init__(self, name: str, address: str, roles: Any, root: Path, pid: int, **more: Any) -> None:
        super().__init__(name, address, roles, root, pid, **more)
        self.slots = Slots()
        """GameDatacenter has one for all of its hosts."""
        self._proxied: dict[str, int] = {}

    async def look_alike(self) -> None:
        """From now on it listens where every host of every game does."""
        for port in LISTENED:
            await super().canary_listen(port)
        await self._stand_in(*STOOD_IN)

    async def join_cgroup(self) -> None:
        """All that runs on it is in a cgroup of its own, where this user may have one: a shell can see that it is."""
        if (group := cgroups.make(f"{self._root.name}/{self.name}")) is not None:
            await ask(self._hostd, {"op": "join", "files": group.procs_files()})

    async def _stand_in(self, *ports: int) -> None:
        await ask(self._canary, {"op": "stand_in", "address": self.address, "ports": list(ports)})

    async def add_proxy(self, name: str, listen: int, port: int, toxics: Sequence[Toxic]) -> None:
        own = self.slots.of(self.address, listen)
        await ask(self._canary, {"op": "step_aside", "ports": [toxiproxy.API_PORT, own]})
        await super().add_proxy(name, own, self.slots.of(self.address, port), toxics)
        self._proxied[name] = own

    async def remove_proxy(self, name: str) -> None:
        await super().remove_proxy(name)
        free = [self._proxied.pop(name)] if name in self._proxied else []
        if await self.agent_process(toxiproxy.AGENT) is None:  # it was killed, and all of its ports are free
            free += [toxiproxy.API_PORT, *self._proxied.values()]
        await self._stand_in(*free)

    async def set_packet_rules(self, table: str, rules: Sequence[PacketRule]) -> None:
        await super().set_packet_rules(table, [self._here(rule) for rule in rules])

    def _here(self, rule: PacketRule) -> PacketRule:
        if not isinstance(rule, Redirect):
            return rule
        return replace(rule, port=self.slots.of(self.address, rule.port), to=self.slots.of(self.address, rule.to))

    async def canary_listen(self, port: int) -> None:
        await super().canary_listen(self.slots.of(self.address, port))

    async def exchange(self, address: str, port: int, request: ExchangeRequest) -> Sequence[Exchange]:
        return await super().exchange(address, self.slots.of(address, port), request)


def guard(addresses: Sequence[str]) -> str:
    """What slows links down answers no host: neither its API, nor a proxy, but for what the kernel redirects to it."""
    own = ", ".join(str(port) for link in range(MOST_LINKS) for port in proxied(link))
    return (
        "table inet guard {\n chain input {\n  type filter hook input priority -20\n"
        f"  ip saddr {{ 127.0.0.0/8, {', '.join(addresses)} }} tcp dport {toxiproxy.API_PORT} drop\n"
        f"  tcp dport {{ {own} }} ct status dnat accept\n  tcp dport {{ {own} }} drop\n }}\n}}\n"
    )
