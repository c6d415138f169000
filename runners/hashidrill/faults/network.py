"""Partitions, loss and blocked ports, as nftables rules in the target host's network namespace.

Each fault is one nft table of its own, so that reverting is deleting it. The control address, from which probes and
observers watch, is never named by a rule. The observers are the hosts' canaries: plain sockets.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import anyio
from pydantic import Field, StringConstraints

from hashidrill.abc import Evidence, Host, Target, Undo
from hashidrill.datacenter.inside.canary import ECHO_PORT
from hashidrill.errors import FaultError, SelectorError
from hashidrill.faults.base import BaseFault, peers_of, table_of
from hashidrill.model import Strict
from hashidrill.units import Percent

Peers = Annotated[str, StringConstraints(pattern=r"^(all|servers|clients|host:[a-z][a-z0-9-]*)$")]
_CONNECT_S = 0.3
_DATAGRAMS, _ECHO_S = 300, 0.3


class _TableFault(BaseFault[Any]):
    """One nft table a fault."""

    def plan_more(self, target: Target) -> dict[str, Any]:
        peers = peers_of(self.hosts, target, self._peer_words())
        loads = self.hosts.load_addresses() if self._peer_words() in {"all", "clients"} else ()
        if not peers:  # loads alone: no host that could prove it
            raise SelectorError(f"{self.kind} on {target.host}: from {self._peer_words()} names no other host")
        addresses = [*(peer.address for peer in peers), *loads]
        return {"peers": [peer.name for peer in peers], "addresses": addresses, "address": target.address}

    def _peer_words(self) -> str:
        return str(getattr(self.params, "from_", "all"))

    @staticmethod
    def table(undo: Undo) -> str:
        return table_of(undo["fault_id"])

    def rules(self, undo: Undo) -> Sequence[tuple[str, str]]:
        """(chain, rule) pairs; chain is `input` or `output`."""
        raise AssertionError

    async def apply(self, undo: Undo) -> None:
        table = self.table(undo)
        lines = [f"add table inet {table}", f"delete table inet {table}", f"add table inet {table}"]
        lines += [
            f"add chain inet {table} {chain} {{ type filter hook {chain} priority -10; policy accept; }}"
            for chain in ("input", "output")
        ]
        lines += [f"add rule inet {table} {chain} {rule}" for chain, rule in self.rules(undo)]
        await self._host(undo).nft("\n".join(lines) + "\n")

    async def revert(self, undo: Undo) -> None:
        table = self.table(undo)
        await self._host(undo).nft(f"add table inet {table}\ndelete table inet {table}\n")


def _set(addresses: Sequence[str]) -> str:
    return "{ " + ", ".join(addresses) + " }"


class PartitionParams(Strict):
    """Who is on the other side, and which way the packets are lost."""

    from_: Peers = Field(default="all", alias="from")
    direction: Literal["both", "in", "out"] = "both"


class NetworkPartition(_TableFault):
    """No packet passes between the target and `from`."""

    kind: ClassVar[str] = "network.partition"
    Params: ClassVar[type[Strict]] = PartitionParams

    def rules(self, undo: Undo) -> Sequence[tuple[str, str]]:
        addresses = _set(undo["addresses"])
        rules = {"in": ("input", f"ip saddr {addresses} drop"), "out": ("output", f"ip daddr {addresses} drop")}
        return [rule for way, rule in rules.items() if self.params.direction in (way, "both")]

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        """Try a connection each way between the target and each host on the other side."""
        target = self._host(undo)
        passed: list[bool] = []

        async def attempt(one: Host, address: str) -> None:
            passed.append((await one.connect(address, ECHO_PORT, _CONNECT_S)).errno == 0)

        async with anyio.create_task_group() as group:
            for name in undo["peers"]:
                peer = self.hosts.host(name)
                group.start_soon(attempt, peer, undo["address"])
                group.start_soon(attempt, target, peer.address)
        if not passed:
            raise FaultError(f"{self.kind} on {undo['host']}: no other host is there to prove it")
        return Evidence(
            not any(passed) if present else all(passed),
            f"no connection with {', '.join(undo['peers'])}" if present else "all connections",
            f"{sum(passed)} of {len(passed)} connections succeeded",
            {"connections": len(passed), "succeeded": sum(passed)},
        )


class LossParams(Strict):
    """The share of packets lost, each way."""

    percent: Percent = Field(gt=0)
    from_: Peers = Field(default="all", alias="from")


class NetworkLoss(_TableFault):
    """Each packet from and to `from` is lost with that probability: a round trip with 1 - (1 - p)^2."""

    kind: ClassVar[str] = "network.loss"
    Params: ClassVar[type[Strict]] = LossParams

    def rules(self, undo: Undo) -> Sequence[tuple[str, str]]:
        addresses, per_million = _set(undo["addresses"]), round(self.params.percent * 1_000_000)
        dice = f"numgen random mod 1000000 < {per_million} drop"
        return [("input", f"ip saddr {addresses} {dice}"), ("output", f"ip daddr {addresses} {dice}")]

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        """Datagrams to the first host on the other side, and back."""
        if not undo["peers"]:
            raise FaultError(f"{self.kind} on {undo['host']}: no other host is there to prove it")
        peer = self.hosts.host(undo["peers"][0])
        lost = await self._host(undo).echo_loss(peer.address, _DATAGRAMS, _ECHO_S)
        expected = 1 - (1 - self.params.percent) ** 2
        error = 4 * math.sqrt(expected * (1 - expected) / _DATAGRAMS) + 0.01
        return Evidence(
            abs(lost - expected) <= error if present else lost < min(0.05, expected / 2),
            f"{Percent(round(expected, 4))} of round trips lost" if present else "no loss",
            f"{Percent(round(lost, 4))} of {_DATAGRAMS} round trips to {peer.name} lost",
            {"asked_share": expected, "measured_share": lost},
        )


class BlockParams(Strict):
    """A TCP port of the target, closed for some or for all. `drop` is silence, `reject` a refusal."""

    port: int = Field(ge=1, le=65535)
    from_: Peers = Field(default="all", alias="from")
    action: Literal["drop", "reject"] = "drop"


class NetworkBlock(_TableFault):
    """As an iptables rule on the target would: packets to the port are dropped, or refused."""

    kind: ClassVar[str] = "network.block"
    Params: ClassVar[type[Strict]] = BlockParams

    def rules(self, undo: Undo) -> Sequence[tuple[str, str]]:
        action = "drop" if self.params.action == "drop" else "reject with tcp reset"
        return [("input", f"ip saddr {_set(undo['addresses'])} tcp dport {self.params.port} {action}")]

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        """A connection to the port from each host that is shut out."""
        if not undo["peers"]:
            raise FaultError(f"{self.kind} on {undo['host']}: no other host is there to prove it")
        errors: dict[str, int] = {}

        async def attempt(name: str) -> None:
            timing = await self.hosts.host(name).connect(undo["address"], self.params.port, _CONNECT_S)
            errors[name] = timing.errno

        async with anyio.create_task_group() as group:
            for name in undo["peers"]:
                group.start_soon(attempt, name)
        refused = {"drop": (errno.ETIMEDOUT,), "reject": (errno.ECONNREFUSED, errno.ECONNRESET)}[self.params.action]
        blocked = sum(number in refused for number in errors.values())
        return Evidence(
            blocked == len(errors) if present else all(number == 0 for number in errors.values()),
            f"port {self.params.port} {'shut' if present else 'open'} for {', '.join(errors)}",
            ", ".join(f"{name}: {errno.errorcode.get(number, 'connected')}" for name, number in sorted(errors.items())),
            {"tried": len(errors), "blocked": blocked},
        )


KINDS = (NetworkPartition, NetworkLoss, NetworkBlock)
