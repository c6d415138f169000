"""The packet rules of a host in memory, which acts them out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hashidrill.core.protocols.packets import Block, Cut, PacketRule, Redirect


@dataclass
class FakeRules:
    """Tables of rules by name."""

    tables: dict[str, list[PacketRule]] = field(default_factory=dict)
    _counted: Counter[tuple[str, str]] = field(default_factory=Counter)

    def set(self, table: str, rules: Sequence[PacketRule]) -> None:
        self.tables[table] = list(rules)
        for rule in self.redirects(table):
            del self._counted[table, rule.comment]

    def redirect(self, source: str, port: int, connections: int = 1) -> int:
        """The port at which connections from that address to `port` arrive: the first rule that fits decides."""
        for table in self.tables:
            for rule in self.redirects(table):
                if rule.port == port and source in rule.addresses:
                    self._counted[table, rule.comment] += connections
                    return rule.to
        return port

    def packets(self, table: str) -> Mapping[str, int]:
        """How many each of its counters, by the comment of the rule, has counted."""
        return {rule.comment: self._counted[table, rule.comment] for rule in self.redirects(table) if rule.comment}

    def redirects(self, table: str) -> list[Redirect]:
        return [rule for rule in self.tables.get(table, []) if isinstance(rule, Redirect)]

    def blocks(self) -> Iterator[tuple[str, Block]]:
        """What packets have to pass, of all tables, each with its table."""
        return ((name, rule) for name, rules in self.tables.items() for rule in rules if isinstance(rule, Block))

    def resets(self, address: str, port: int, first_byte: int) -> bool:
        """Whether a connection there that begins with that byte is reset."""
        cuts = [rule for rules in self.tables.values() for rule in rules if isinstance(rule, Cut)]
        return any(address in cut.addresses and port in cut.ports and first_byte in cut.first_bytes for cut in cuts)
