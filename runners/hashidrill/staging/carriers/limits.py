"""What cannot be carried to a host, whatever the host has: by strace, and over the way that renews a fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hashidrill.core.errors import FaultError
from hashidrill.core.protocols.packets import Block, PacketRule, Redirect
from hashidrill.staging.carriers.shell import Shell


def cut_off(shell: Shell, rules: Sequence[PacketRule]) -> str:
    """Why a host with these rules would not hear of us any more; "" where it would."""
    for rule in rules:
        if isinstance(rule, Redirect):
            continue
        whole = not isinstance(rule, Block) or rule.share == 1
        for port in (rule.port,) if isinstance(rule, Block) else rule.ports:
            if why := shell.cuts(rule.addresses, port, whole=whole):
                return why
    return ""


def spare_the_carrier(shell: Shell, host: str, agent: str) -> None:
    """Raises FaultError for a fault on that agent that would not hear of its end."""
    if agent == shell.carrier:
        raise FaultError(
            f"{host}: {agent} carries faults to this host, and would not carry the end of this one: carry it over SSH"
            " (carriers.ssh)"
        )


def wrong_place(shell: Shell) -> str:
    """What leads to another host than the one that is meant, for messages."""
    return f"what the catalog and {shell.carrier} say of it" if shell.carrier else "carriers.ssh.addresses"


def cannot(rule: Mapping[str, Any]) -> str:
    """Why strace cannot do this to a disk; "" where it can."""
    others = {*rule["operations"]} - {"fsync"}
    if others:
        return f"strace can slow or fail fsync alone, and not {' and '.join(sorted(others))}: sockets are written too"
    if "bytes_per_s" in rule:
        return "strace cannot limit a disk's bandwidth"
    if rule.get("jitter_s") or rule.get("share", 1.0) < 1:
        return "strace does the same to each call: it has no jitter and no percent"
    return ""
