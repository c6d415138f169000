"""Reads what `nft -j list ruleset` says: which packets a host drops or refuses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hashidrill.core.protocols.abc import Barrier


def barriers(items: Iterable[Mapping[str, Any]]) -> list[Barrier]:
    """The rules that name addresses and drop or refuse their packets, all or some of them."""
    found: list[Barrier] = []
    for item in items:
        rule = item.get("rule", {})
        parts = rule.get("expr", [])
        if not any("drop" in part or "reject" in part for part in parts):
            continue
        addresses = _matched(parts, "ip", {"saddr", "daddr"})
        ports = _matched(parts, "tcp", {"dport"})
        named: list[int | None] = [int(port) for port in ports]
        found += [Barrier(rule["table"], rule["chain"], frozenset(addresses), port) for port in named or [None]]
    return [barrier for barrier in found if barrier.addresses]


def _matched(parts: Iterable[Mapping[str, Any]], protocol: str, fields: set[str]) -> list[str]:
    """What a field of the packet is compared with: one value, or a set of them."""
    for part in parts:
        match = part.get("match", {})
        left = match.get("left", {})
        payload = left.get("payload", {}) if isinstance(left, dict) else {}
        if payload.get("protocol") == protocol and payload.get("field") in fields:
            right = match["right"]
            values = right["set"] if isinstance(right, dict) and "set" in right else [right]
            return [str(value) for value in values if isinstance(value, (str, int))]
    return []
