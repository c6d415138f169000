"""A host of a game: what can be seen on it is the same on all hosts of all games, whatever is broken and where.

A slow link needs a toxiproxy, which is on the host's wire (hashidrill.gamedays.training.wires). What observes links
listens on the host itself. `ss -ltn` would tell a trainee which host that is, so the same few ports are used in
every game, and are listened on from the beginning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hashidrill.core.faults.links import BASELINE, FIRST_PORT, PORT_TRIPLES, Ports
from hashidrill.core.protocols.abc import Barrier, Exchange, ExchangeRequest, Toxic
from hashidrill.core.protocols.packets import PacketRule, Redirect
from hashidrill.gamedays.training.wires import Wire
from hashidrill.lab.local.hosts import LocalHost
from hashidrill.lab.sandbox import cgroups
from hashidrill.lab.sandbox.asking import ask
from hashidrill.products.consul.faults.rpc import CANARY_PORT

MOST_LINKS = 2
"""Slow links of one host that nobody sees. More of them work, and are seen."""
_BASE = FIRST_PORT
_CANARIES = range(FIRST_PORT + 2, FIRST_PORT + 3 * PORT_TRIPLES, 3)
_NO_LINK = Ports.of(BASELINE)
LISTENED = (CANARY_PORT, _BASE, *(_BASE + 1 + link for link in range(MOST_LINKS)))


@dataclass
class Slots:
    """Which of the ports of all games is meant by that of a fault's canary, on the host with that address."""

    _links: dict[str, dict[int, int]] = field(default_factory=dict)

    def of(self, address: str, port: int) -> int:
        """Any port that is no canary's is itself."""
        if port not in _CANARIES:
            return port
        if port == _NO_LINK.canary:
            return _BASE
        links = self._links.setdefault(address, {})
        return _BASE + 1 + links.setdefault(port, len(links))


class GameHost(LocalHost):
    """A host that looks like all others of the game."""

    def __init__(self, name: str, address: str, roles: Any, root: Path, pid: int, **more: Any) -> None:
        super().__init__(name, address, roles, root, pid, **more)
        self.slots = Slots()
        """GameDatacenter has one for all of its hosts."""
        self.wire: Wire | None = None

    async def look_alike(self) -> None:
        """From now on it listens where every host of every game does."""
        for port in LISTENED:
            await super().canary_listen(port)

    async def join_cgroup(self) -> None:
        """All that runs on it is in a cgroup of its own, where this user may have one: a shell can see that it is."""
        if (group := cgroups.make(f"{self._root.name}/{self.name}")) is not None:
            await ask(self._hostd, {"op": "join", "files": group.procs_files()})

    # what is on its wire

    def _the_wire(self) -> Wire:
        assert self.wire is not None, "the datacenter of a game lays it before any fault"
        return self.wire

    async def add_proxy(self, name: str, listen: int, port: int, toxics: Sequence[Toxic]) -> None:
        await self._the_wire().add_proxy(name, listen, self.slots.of(self.address, port), toxics)

    async def remove_proxy(self, name: str) -> None:
        await self._the_wire().remove_proxy(name)

    async def proxy_toxics(self, name: str) -> Sequence[Toxic] | None:
        return await self._the_wire().proxy_toxics(name)

    async def set_packet_rules(self, table: str, rules: Sequence[PacketRule]) -> None:
        """Those of a slow link are on the wire, all others on the host."""
        if any(isinstance(rule, Redirect) for rule in rules):
            await self._the_wire().set_packet_rules(table, [self._here(rule) for rule in rules])
        else:
            await super().set_packet_rules(table, rules)

    async def suspend_packet_rules(self, table: str) -> None:
        if table in await self._the_wire().packet_tables():
            await self._the_wire().suspend_packet_rules(table)
        else:
            await super().suspend_packet_rules(table)

    async def clear_packet_rules(self, table: str) -> None:
        await self._the_wire().clear_packet_rules(table)
        await super().clear_packet_rules(table)

    async def packet_counts(self, table: str) -> Mapping[str, int]:
        return {**await super().packet_counts(table), **await self._the_wire().packet_counts(table)}

    async def packet_tables(self) -> Sequence[str]:
        return [*await super().packet_tables(), *await self._the_wire().packet_tables()]

    async def packet_barriers(self) -> Sequence[Barrier]:
        return [*await super().packet_barriers(), *await self._the_wire().packet_barriers()]

    def _here(self, rule: PacketRule) -> PacketRule:
        return replace(rule, port=self.slots.of(self.address, rule.port)) if isinstance(rule, Redirect) else rule

    # observing

    async def canary_listen(self, port: int) -> None:
        await super().canary_listen(self.slots.of(self.address, port))

    async def exchange(self, address: str, port: int, request: ExchangeRequest) -> Sequence[Exchange]:
        return await super().exchange(address, self.slots.of(address, port), request)
