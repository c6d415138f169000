"""Packet rules as data, their statements, and the nft script that applies them on attached hosts.

Faults describe the rules; a host puts them in force (`PacketFilter.set_packet_rules`): a local host by netlink
(hashidrill.lab.sandbox.nf_tables), an attached host by its own `nft`, a fake host in memory by reading the data.
"""

import ipaddress
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hashidrill.core.errors import FaultError

PAYLOADS = ((5, 160), (8, 256))
"""Pairs of TCP's data offset in words and the bit at which data then begins: without options, and with timestamps."""
_OPENED, _PASSED, _CUT = 0x68640001, 0x68640002, 0x68640003
"""Marks of connections (ct mark) whose first bytes are inspected."""
FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16

Word = tuple[Any, ...]
"""A condition or an action, in the form of `_TEXTS` and hashidrill.lab.sandbox.nf_tables."""


@dataclass(frozen=True)
class Chain:
    """The hook and priority at which its statements see a packet."""

    name: str
    kind: Literal["filter", "nat"]
    hook: Literal["prerouting", "input", "forward", "output", "postrouting"]
    priority: int


Statement = tuple[Chain, Sequence[Word]]


@dataclass(frozen=True)
class Block:
    """Drops packets from (`input`) or to (`output`) these addresses, or refuses them with a TCP reset.

    `port`: the TCP destination port; None: all packets. `share`: a random share of these packets is blocked. With
    `resets_pass`, TCP resets pass.
    """

    chain: Literal["input", "output"]
    addresses: tuple[str, ...]
    port: int | None = None
    share: float = 1.0
    refuse: bool = False
    resets_pass: bool = False

    @property
    def place(self) -> Chain:
        return Chain(self.chain, "filter", self.chain, -10)

    def lines(self) -> list[list[Word]]:
        words: list[Word] = [("saddr" if self.chain == "input" else "daddr", _addresses(self.addresses))]
        if self.port is not None:
            words.append(("dport", (self.port,)))
        if self.share < 1:
            words.append(("chance", round(self.share * 1_000_000)))
        if self.resets_pass:
            words.append(("flags", RST, 0))
        return [[*words, ("reset",) if self.refuse else ("drop",)]]


@dataclass(frozen=True)
class Redirect:
    """Redirects new TCP connections from these addresses to `port` of this host to its port `to`.

    `PacketFilter.packet_counts` counts the packets of each `comment`.
    """

    addresses: tuple[str, ...]
    port: int
    to: int
    comment: str = ""

    @property
    def place(self) -> Chain:
        return Chain("prerouting", "nat", "prerouting", -100)

    def lines(self) -> list[list[Word]]:
        opening = ("saddr", _addresses(self.addresses)), ("dport", (self.port,)), ("flags", FIN | SYN | RST | ACK, SYN)
        counted = [("counter",)] if self.comment else []
        return [[*opening, *counted, ("redirect", self.to), *([("comment", self.comment)] if self.comment else [])]]


@dataclass(frozen=True)
class Cut:
    """Resets this host's connections to these addresses and ports if their data begins with one of these bytes.

    `older`: words that match the data of a connection that is older than the rules. `name` is the chain's name. A
    connection's mark records how the connection began.
    """

    name: str
    addresses: tuple[str, ...]
    ports: tuple[int, ...]
    first_bytes: tuple[int, ...]
    older: tuple[tuple[Word, ...], ...] = ()

    @property
    def place(self) -> Chain:
        return Chain(self.name, "filter", "output", -10)

    def lines(self) -> list[list[Word]]:
        to_others: list[Word] = [("daddr", _addresses(self.addresses)), ("dport", self.ports)]
        data: Word = ("flags", PSH, PSH)
        cut: list[Word] = [("set mark", _CUT), ("reset",)]
        firsts = [(("doff", doff), ("data", at, 8, True, byte)) for doff, at in PAYLOADS for byte in self.first_bytes]
        statements: list[list[Word]] = [
            [("flags", RST, RST), ("accept",)],  # by this reset, the other side notices the cut
            [("mark", _CUT), ("reset",)],
            [("mark", _PASSED), ("accept",)],
            [("flags", SYN | ACK, SYN), ("set mark", _OPENED), ("accept",)],
            *([data, ("mark", _OPENED), *first, *cut] for first in firsts),
            [data, ("mark", _OPENED), ("set mark", _PASSED), ("accept",)],
            # connections older than the rules: their purpose shows when they are used
            *([data, ("mark", 0), *what, *cut] for what in self.older),
        ]
        return [[*to_others, *statement] for statement in statements]


PacketRule = Block | Redirect | Cut


def statements_of(rules: Sequence[PacketRule]) -> list[Statement]:
    """The statements of the rules, in order. Raises FaultError for an invalid address."""
    return [(rule.place, words) for rule in rules for words in rule.lines()]


def chains_of(rules: Sequence[PacketRule]) -> list[Chain]:
    return list(dict.fromkeys(rule.place for rule in rules))


REDIRECTING, BLOCKING = Redirect((), 0, 0).place, Block("input", ()).place
"""In a suspended table the first chain accepts before it redirects, and the second is empty. Both chains stay: they
close the connections of an ending proxy, and the kernel would translate nothing for a new chain.
"""


def script(table: str, rules: Sequence[PacketRule]) -> str:
    """The nft script that replaces the table's content with these rules, in one transaction.

    Raises FaultError for an invalid address.
    """
    return _text_of(
        [
            f"add table inet {table}",
            f"delete table inet {table}",
            f"add table inet {table}",
            *(_chain(table, chain) for chain in chains_of(rules)),
            *(f"add {_rule(table, chain, words)}" for chain, words in statements_of(rules)),
        ]
    )


def suspending(table: str) -> str:
    """The nft script after which the table lets all packets pass, and still translates redirected connections."""
    return _text_of(
        [
            f"add table inet {table}",
            *(_chain(table, chain) for chain in (REDIRECTING, BLOCKING)),
            f"flush chain inet {table} {BLOCKING.name}",
            f"insert {_rule(table, REDIRECTING, [('accept',)])}",
        ]
    )


def _text_of(lines: Sequence[str]) -> str:
    return "\n".join(lines) + "\n"


def _chain(table: str, chain: Chain) -> str:
    hook = f"type {chain.kind} hook {chain.hook} priority {chain.priority}"
    return f"add chain inet {table} {chain.name} {{ {hook}; policy accept; }}"


def _rule(table: str, chain: Chain, words: Sequence[Word]) -> str:
    return f"rule inet {table} {chain.name} {' '.join(map(_text, words))}"


def _text(word: Word) -> str:
    name, *values = word
    return _TEXTS[name](*values)


_TEXTS: Mapping[str, Callable[..., str]] = {
    "saddr": lambda addresses: f"ip saddr {{ {', '.join(addresses)} }}",
    "daddr": lambda addresses: f"ip daddr {{ {', '.join(addresses)} }}",
    "dport": lambda ports: f"tcp dport {{ {', '.join(map(str, ports))} }}",
    "flags": "tcp flags & {:#x} == {:#x}".format,
    "doff": "tcp doff {}".format,
    "data": lambda at, size, same, value: f"@th,{at},{size} {'' if same else '!= '}{value:#0{2 + size // 4}x}",
    "chance": "numgen random mod 1000000 < {}".format,
    "mark": "ct mark {:#x}".format,
    "set mark": "ct mark set {:#x}".format,
    "counter": "counter".format,
    "redirect": "redirect to :{}".format,
    "comment": 'comment "{}"'.format,
    "reset": "reject with tcp reset".format,
    "drop": "drop".format,
    "accept": "accept".format,
}


def _addresses(values: Sequence[str]) -> tuple[str, ...]:
    """Checks the addresses: a catalog that other people write may hold other text, which could inject rules."""
    for one in values:
        try:
            ipaddress.IPv4Address(one)
        except ValueError:
            raise FaultError(f"{one!r} is not an IPv4 address; packet rules only support IPv4") from None
    if not values:
        raise FaultError("packet rules without an address would match no packet")
    return tuple(values)
