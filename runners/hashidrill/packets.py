"""Packet rules as data, and the nftables script that they are on a host.

Faults say what is to happen to which packets; a host puts it in force (`PacketFilter.set_packet_rules`): a local one as
the script below, one in memory by reading the same data. What these rules cannot say is nft text of a fault's own
(`PacketFilter.nft`), which a host in memory does not act out.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hashidrill.errors import FaultError

PAYLOADS = (("tcp doff 5", 160), ("tcp doff 8", 256))
"""Where a segment's first byte of data is, in bits: without TCP options and with timestamps, which is all there is."""
_OPENED, _PASSED, _CUT = "0x68640001", "0x68640002", "0x68640003"
"""Marks of connections (ct mark) whose beginning is looked at."""


@dataclass(frozen=True)
class Block:
    """Packets from (`input`) or to (`output`) these addresses are dropped, or refused with a TCP reset.

    `port`: of TCP, the destination; None for all packets. `share`: of all these packets, by chance. With
    `resets_pass`, TCP resets are left alone.
    """

    chain: Literal["input", "output"]
    addresses: tuple[str, ...]
    port: int | None = None
    share: float = 1.0
    refuse: bool = False
    resets_pass: bool = False

    @property
    def hook(self) -> tuple[str, str]:
        return self.chain, f"filter hook {self.chain} priority -10"

    def lines(self) -> list[str]:
        words = [f"ip {'saddr' if self.chain == 'input' else 'daddr'} {_addresses(self.addresses)}"]
        if self.port is not None:
            words.append(f"tcp dport {self.port}")
        if self.share < 1:
            words.append(f"numgen random mod 1000000 < {round(self.share * 1_000_000)}")
        if self.resets_pass:
            words.append("tcp flags & rst == 0x0")
        return [" ".join([*words, "reject with tcp reset" if self.refuse else "drop"])]


@dataclass(frozen=True)
class Redirect:
    """New TCP connections from these addresses to `port` of this host arrive at its port `to`.

    With a `comment`, `PacketFilter.nft_packets` counts them by it.
    """

    addresses: tuple[str, ...]
    port: int
    to: int
    comment: str = ""

    @property
    def hook(self) -> tuple[str, str]:
        return "prerouting", "nat hook prerouting priority -100"

    def lines(self) -> list[str]:
        opening = f"ip saddr {_addresses(self.addresses)} tcp dport {self.port} tcp flags & (fin|syn|rst|ack) == syn"
        if self.comment:
            return [f'{opening} counter redirect to :{self.to} comment "{self.comment}"']
        return [f"{opening} redirect to :{self.to}"]


@dataclass(frozen=True)
class Cut:
    """Connections of this host to these addresses and ports are reset when they begin with one of these bytes.

    `older`: nft matches by which a connection from before the rules is known, once its data is seen. `name` is the
    chain's. The rules remember in a connection's mark what it began with.
    """

    name: str
    addresses: tuple[str, ...]
    ports: tuple[int, ...]
    first_bytes: tuple[int, ...]
    older: tuple[str, ...] = ()

    @property
    def hook(self) -> tuple[str, str]:
        return self.name, "filter hook output priority -10"

    def lines(self) -> list[str]:
        to_others = f"ip daddr {_addresses(self.addresses)} tcp dport {_set(map(str, self.ports))}"
        cut, data = f"ct mark set {_CUT} reject with tcp reset", "tcp flags & psh == psh"
        firsts = [f"{doff} @th,{at},8 {number:#04x}" for doff, at in PAYLOADS for number in self.first_bytes]
        statements = [
            "tcp flags & rst == rst accept",  # by which the other side learns of it when it sends something
            f"ct mark {_CUT} reject with tcp reset",
            f"ct mark {_PASSED} accept",
            f"tcp flags & (syn | ack) == syn ct mark set {_OPENED} accept",
            *(f"{data} ct mark {_OPENED} {first} {cut}" for first in firsts),
            f"{data} ct mark {_OPENED} ct mark set {_PASSED} accept",
            # connections that are older than the rules: what they are for is seen when they are used
            *(f"{data} ct mark 0 {what} {cut}" for what in self.older),
        ]
        return [f"{to_others} {statement}" for statement in statements]


PacketRule = Block | Redirect | Cut


def script(table: str, rules: Sequence[PacketRule]) -> str:
    """The nft script that makes these rules all that the table holds, in one transaction.

    Raises FaultError for an address that is none.
    """
    return "\n".join(
        [
            *_anew(table),
            *_chains(table, rules),
            *(f"add rule inet {table} {rule.hook[0]} {line}" for rule in rules for line in rule.lines()),
        ]
    ) + "\n"  # fmt: skip


def suspending(table: str) -> str:
    """The nft script after which the table's rules touch no packet, and what they redirected is still translated.

    The connections of a proxy that ends are closed through its chains.
    """
    chains = _chains(table, [Redirect((), 0, 0), Block("input", ())])
    still = [f"flush chain inet {table} input", f"insert rule inet {table} prerouting accept"]
    return "\n".join([f"add table inet {table}", *chains, *still]) + "\n"


def clearing(table: str) -> str:
    """The nft script after which the table is not there, whether it was or not."""
    return "\n".join(_anew(table)[:2]) + "\n"


def _anew(table: str) -> list[str]:
    return [f"add table inet {table}", f"delete table inet {table}", f"add table inet {table}"]


def _chains(table: str, rules: Sequence[PacketRule]) -> list[str]:
    hooks = dict(rule.hook for rule in rules)
    return [f"add chain inet {table} {name} {{ type {hook}; policy accept; }}" for name, hook in hooks.items()]


def _addresses(values: Sequence[str]) -> str:
    """They may come from a catalog, in which others write: whatever is no address could be rules of theirs."""
    for one in values:
        try:
            ipaddress.IPv4Address(one)
        except ValueError:
            raise FaultError(f"{one!r} is no IPv4 address, and packet rules are about these alone") from None
    return _set(values)


def _set(values: Sequence[str] | map[str]) -> str:
    return "{ " + ", ".join(values) + " }"
