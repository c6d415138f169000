"""The packet rules of a host in memory: it reads the nft scripts that the built-in faults write."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from hashidrill.errors import FaultError

_TABLE = re.compile(r"(add|delete) table inet (\w+)")
_PASS_BY = re.compile(r"(flush chain inet (?P<flushed>\w+) input|insert rule inet (?P<passed>\w+) prerouting accept)")
_RULE = re.compile(
    r"add rule inet (?P<table>\w+) (?P<chain>input|output) ip (?P<way>saddr|daddr) \{ (?P<addresses>[^}]*) \}"
    r"( tcp dport (?P<port>\d+))?( numgen random mod 1000000 < (?P<ppm>\d+))?( tcp flags & rst == 0x0)? "
    r"(?P<action>drop|reject with tcp reset)"
)
_REDIRECT = re.compile(
    r"add rule inet (?P<table>\w+) prerouting ip saddr \{ (?P<addresses>[^}]*) \} tcp dport (?P<port>\d+) "
    r"tcp flags & \(fin\|syn\|rst\|ack\) == syn (?P<counter>counter )?redirect to :(?P<to>\d+)"
    r'( comment "(?P<comment>\w+)")?'
)
_CUT = re.compile(
    r"add rule inet (?P<table>\w+) (?P<what>votes|streams) ip daddr \{ (?P<addresses>[^}]*) \} "
    r"tcp dport \{ (?P<ports>[^}]*) \} .*"
)


@dataclass(frozen=True)
class Cut:
    """Connections to these that begin as Raft's, or gRPC's, are cut (hashidrill.services.consul.faults.rpc)."""

    what: str
    addresses: frozenset[str]
    ports: frozenset[int]


@dataclass
class Redirect:
    addresses: frozenset[str]
    port: int
    to: int
    comment: str | None
    packets: int = 0


@dataclass(frozen=True)
class Filter:
    chain: str
    addresses: frozenset[str]
    port: int | None
    share: float
    action: str


@dataclass
class FakeRules:
    """Understands the tables, chains and rules that the built-in faults write, and refuses anything else."""

    host: str
    tables: dict[str, list[Filter | Redirect | Cut]] = field(default_factory=dict)

    def obey(self, script: str) -> None:
        """As `nft -f -` does. Raises FaultError."""
        for line in script.splitlines():
            if (table := _TABLE.fullmatch(line)) is not None:
                action, name = table.groups()
                if action == "add":
                    self.tables.setdefault(name, [])
                elif self.tables.pop(name, None) is None:
                    raise FaultError(f"{self.host}: nft: no such table {name}")
            elif (rule := _rule(line)) is not None:
                self.tables[rule[0]].append(rule[1])
            elif (passing := _PASS_BY.fullmatch(line)) is not None:
                gone = Filter if passing["flushed"] else Redirect
                name = passing["flushed"] or passing["passed"]
                self.tables[name] = [rule for rule in self.tables[name] if not isinstance(rule, gone)]
            elif not line.startswith("add chain inet "):
                raise FaultError(f"{self.host}: nft: syntax error: {line}")

    def packets(self, table: str) -> Mapping[str, int]:
        """How many each of its counters, by the comment of the rule, has counted."""
        rules = self.tables.get(table, [])
        return {rule.comment: rule.packets for rule in rules if isinstance(rule, Redirect) and rule.comment}

    def filters(self) -> list[Filter]:
        """What packets have to pass, of all tables."""
        return [rule for rules in self.tables.values() for rule in rules if isinstance(rule, Filter)]

    def redirects(self) -> list[Redirect]:
        """What is done to connections before that."""
        return [rule for rules in self.tables.values() for rule in rules if isinstance(rule, Redirect)]

    def cuts(self, address: str, port: int) -> set[str]:
        """What connections there are cut by what they begin with: `votes`, `streams`."""
        cuts = [rule for rules in self.tables.values() for rule in rules if isinstance(rule, Cut)]
        return {cut.what for cut in cuts if address in cut.addresses and port in cut.ports}


def _rule(line: str) -> tuple[str, Filter | Redirect | Cut] | None:
    """The table and the rule that the line adds to it; None for a line that does something else."""
    if (rule := _RULE.fullmatch(line)) is not None:
        port = int(rule["port"]) if rule["port"] else None
        share = int(rule["ppm"]) / 1e6 if rule["ppm"] else 1.0
        return rule["table"], Filter(rule["chain"], _addresses(rule), port, share, rule["action"])
    if (rule := _REDIRECT.fullmatch(line)) is not None:
        comment = rule["comment"] if rule["counter"] else None
        return rule["table"], Redirect(_addresses(rule), int(rule["port"]), int(rule["to"]), comment)
    if (rule := _CUT.fullmatch(line)) is not None:
        ports = frozenset(map(int, rule["ports"].split(", ")))
        return rule["table"], Cut(rule["what"], _addresses(rule), ports)
    return None


def _addresses(rule: re.Match[str]) -> frozenset[str]:
    return frozenset(rule["addresses"].split(", "))
