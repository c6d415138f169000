"""Partitions, loss and blocked ports, as nftables rules in the target host's network namespace.

Each fault is one table of rules, so reverting means deleting it. No rule ever names the control address, from which
probes and observers watch. The observers are the hosts' canaries, which use plain sockets.
"""

import errno
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Protocol

from pydantic import Field, StringConstraints, field_validator

from hashidrill.core.errors import FaultError, SelectorError, WaitTimeoutError
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.faults.base import SIDES, BaseFault, Cases, across_troubles, patient, peers_of, table_of
from hashidrill.core.faults.significance import counts, least_share, trials_for
from hashidrill.core.protocols.abc import Barrier, Claim, Evidence, Host, Hosts, Observer, Place, Target, Trouble, Undo
from hashidrill.core.protocols.capabilities import ECHO_PORT, NetworkCanary, PacketFilter
from hashidrill.core.protocols.claims import (
    ANSWERS,
    CANARY_LINKS,
    CANARY_TIMES,
    EVERYWHERE,
    HOST,
    LISTENER,
    ON_CONNECTIONS,
    PACKETS,
    connections,
    needs,
    spoils,
    takes,
)
from hashidrill.core.protocols.packets import Block
from hashidrill.core.units import Percent
from hashidrill.core.util.wait import all_at_once, wait_until

_CONNECT_S = 0.3
_BASELINE_WITHIN_S, _GAP_S = 10.0, 0.2


class _Fault(Protocol):
    kind: ClassVar[str]
    hosts: Hosts


@dataclass(frozen=True)
class Way:
    """One direction: from a host (name) to another host (name and address)."""

    here: str
    there: str
    address: str


@dataclass(frozen=True)
class Attempt:
    """How one connection in one direction ended."""

    way: Way
    errno: int


@dataclass(frozen=True)
class Tried:
    """The attempts that count, and the ways that another fault cuts, with the reason."""

    judged: Sequence[Attempt]
    why: Mapping[Way, str] = field(default_factory=dict)
    tables: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def explained(self) -> int:
        return len(self.why)

    def left_out(self) -> str:
        if not self.why:
            return ""
        return f"; {len(self.why)} not counted, because {', '.join(sorted(set(self.why.values())))}"


async def _barriers(hosts: Hosts, names: set[str]) -> dict[str, Sequence[Barrier]]:
    found: dict[str, Sequence[Barrier]] = {}

    async def one(name: str) -> None:
        found[name] = await hosts.host(name).use(PacketFilter).packet_barriers()

    await all_at_once(partial(one, name) for name in sorted(names))
    return found


def _why(way: Way, here: str, port: int | None, barriers: Mapping[str, Sequence[Barrier]], besides: str) -> str:
    """Why this way is cut. A rule about a port on the connecting host's own side does not affect it."""
    for name, other, ports in ((way.here, way.address, (None,)), (way.there, here, (None, port))):
        for barrier in barriers[name]:
            if barrier.table != besides and other in barrier.addresses and barrier.port in ports:
                return f"{barrier.table} on {name} is in the way"
    return ""


async def explanations(hosts: Hosts, ways: Sequence[Way], port: int | None, *, besides: str) -> dict[Way, str]:
    """Why packets on these ways may be dropped, ignoring the table `besides`; `port` is the TCP port at the far end."""
    barriers = await _barriers(hosts, {name for way in ways for name in (way.here, way.there)})
    return _explained(hosts, ways, port, barriers, besides)


def _explained(
    hosts: Hosts, ways: Sequence[Way], port: int | None, barriers: Mapping[str, Sequence[Barrier]], besides: str
) -> dict[Way, str]:
    found = {way: _why(way, hosts.host(way.here).address, port, barriers, besides) for way in ways}
    return {way: why for way, why in found.items() if why}


async def try_all(hosts: Hosts, ways: Sequence[Way], port: int, *, besides: str) -> Tried:
    """Tries a TCP connection on each way that no other fault cuts. Reads the rules before and after the attempts."""
    names = {name for way in ways for name in (way.here, way.there)}
    before = await _barriers(hosts, names)
    attempts: list[Attempt] = []

    async def attempt(way: Way) -> None:
        timing = await hosts.host(way.here).use(NetworkCanary).connect(way.address, port, _CONNECT_S)
        attempts.append(Attempt(way, timing.errno))

    await all_at_once(partial(attempt, way) for way in ways)
    after = await _barriers(hosts, names)
    why = {**_explained(hosts, ways, port, before, besides), **_explained(hosts, ways, port, after, besides)}
    tables = {name: frozenset(barrier.table for barrier in after[name]) for name in names}
    return Tried([one for one in attempts if one.way not in why], why, tables)


async def passing(fault: _Fault, undo: Undo, ways: Sequence[Way], port: int) -> dict[str, Any]:
    """The baseline of a fault that cuts these ways: all connections succeed, unless another fault explains a failure.

    Waits for an agent that is coming back. Raises FaultError if a connection does not succeed.
    """

    async def all_pass() -> tuple[Tried | None, str]:
        tried = await try_all(fault.hosts, ways, port, besides="")
        failed = next((one for one in tried.judged if one.errno), None)
        if failed is None:
            return tried, ""
        name = errno.errorcode.get(failed.errno, str(failed.errno))
        return None, (
            f"{failed.way.here} cannot connect to port {port} of {failed.way.there} even without it ({name}), so the "
            "fault would not show; find out why, or name other hosts"
        )

    try:
        what = f"the connections that {fault.kind} on {undo['host']} will cut"
        tried = await wait_until(what, all_pass, within_s=_BASELINE_WITHIN_S, gap_s=_GAP_S)
    except WaitTimeoutError as error:
        raise FaultError(str(error)) from None
    return {"connected": len(tried.judged), "explained": tried.explained}


Peers = Annotated[str, StringConstraints(pattern=r"^(all|servers|clients|[a-z]+:[a-z][a-z0-9-]*)$")]
_DATAGRAMS, _ECHO_S = 300, 0.3
_LEAST_LOSS = Percent("0.5%")
OBSERVER = Observer(
    "the canary's own packets and connections",
    "the kernel's list of nftables rules, if other faults cut off everything that the canary could try",
)


async def _empty_table(host: Host, undo: Undo) -> None:
    await host.use(PacketFilter).set_packet_rules(table_of(undo["fault_id"]), [])


class _TableFault(BaseFault[Any]):
    """One table of rules per fault. The parameter `from` names the other side."""

    across: ClassVar[frozenset[type[Any]]] = frozenset({NetworkCanary, PacketFilter})

    def troubles(self, place: Place) -> Iterable[Trouble]:
        return across_troubles(place, self.params.from_)

    def _between(self, place: Place) -> frozenset[tuple[str, str]]:
        there = place.across(self.params.from_)
        return frozenset((host, other) for host in place.hosts for other in there if other != host)

    def plan_more(self, target: Target) -> dict[str, Any]:
        who = self.params.from_
        peers = peers_of(self.hosts, target, who)
        loads = self.hosts.load_addresses() if who in {"all", "clients"} else ()
        if not peers:  # only loads: no host could prove it
            raise SelectorError(
                f"{self.kind} on {target.host}: from {who} names no other host; name one on the other side"
            )
        addresses = [*(peer.address for peer in peers), *loads]
        return {"peers": [peer.name for peer in peers], "addresses": addresses, "address": target.address}

    @staticmethod
    def table(undo: Undo) -> str:
        return table_of(undo["fault_id"])

    def rules(self, undo: Undo) -> Sequence[Block]:
        raise AssertionError

    async def apply(self, undo: Undo) -> None:
        await self._host(undo).use(PacketFilter).set_packet_rules(self.table(undo), self.rules(undo))

    async def revert(self, undo: Undo) -> None:
        await self._host(undo).use(PacketFilter).clear_packet_rules(self.table(undo))


def _named(explained: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({why})" for name, why in sorted(explained.items()))


class PartitionParams(Strict):
    """The hosts on the other side of the partition, and the direction in which packets are lost."""

    from_: Peers = Field(default="all", alias="from")
    """The other side: `all`, `servers`, `clients`, `host:NAME` or `consul:servers`."""
    direction: Literal["both", "in", "out"] = "both"
    """`both`, `in` or `out`, seen from the target."""


class NetworkPartition(_TableFault):
    """Drops all packets between the target and `from`.

    Its proof involves no chance: every connection that succeeded before must hang, in each direction that is cut.

    Limits: packets are dropped silently, so that connections hang rather than break, as behind a dead switch port.
    """

    kind: ClassVar[str] = "network.partition"
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({NetworkCanary, PacketFilter})
    observer: ClassVar[Observer] = OBSERVER
    Params: ClassVar[type[Strict]] = PartitionParams
    cases: ClassVar[Cases] = Cases(
        each=({"from": "all"}, {"from": "servers", "direction": "in"}),
        disarm=_empty_table,
        space=({"from": SIDES, "direction": ["both", "in", "out"]},),
        overlaps=({"from": "all"}, {"from": "servers"}),
    )

    def uses(self, place: Place) -> Sequence[Claim]:
        return (
            *super().uses(place),
            spoils(PACKETS, "if no packet passes, the loss of some cannot be seen", where=self._between(place)),
            spoils(CANARY_LINKS, where=EVERYWHERE, meets=ON_CONNECTIONS),
            spoils(ANSWERS),
        )

    def rules(self, undo: Undo) -> Sequence[Block]:
        addresses = tuple(undo["addresses"])
        rules = {"in": Block("input", addresses), "out": Block("output", addresses)}
        return [rule for way, rule in rules.items() if self.params.direction in (way, "both")]

    def _ways(self, undo: Undo) -> list[Way]:
        """Both directions between the target and each host opposite: cutting one breaks connections in both."""
        there = {name: self.hosts.host(name).address for name in undo["peers"]}
        return [
            way
            for name, address in there.items()
            for way in (Way(name, undo["host"], undo["address"]), Way(undo["host"], name, address))
        ]

    async def prior(self, target: Target) -> Mapping[str, Any]:
        """Raises FaultError if a connection already fails and no other fault explains it."""
        undo = self.plan(target, fault_id="")
        return await passing(self, undo, self._ways(undo), ECHO_PORT)

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        """Tries a connection each way between the target and each host on the other side."""
        tried = await try_all(self.hosts, self._ways(undo), ECHO_PORT, besides=self.table(undo))
        numbers = [one.errno for one in tried.judged]
        silent = sum(number == errno.ETIMEDOUT for number in numbers)
        ok = (silent if present else numbers.count(0)) == len(numbers)
        return Evidence(
            ok and (bool(numbers) or (self.table(undo) in tried.tables[undo["host"]]) is present),
            f"no connection with {', '.join(undo['peers'])}" if present else "all connections",
            f"{numbers.count(0)} of {len(numbers)} connections succeeded, {silent} had no answer{tried.left_out()}",
            {"connections": len(numbers), "succeeded": numbers.count(0), "explained": tried.explained},
        )


class LossParams(Strict):
    """The share of packets lost, each way."""

    percent: Percent = Field(gt=0)
    """Share of packets lost, in each direction; at least 0.5%."""
    from_: Peers = Field(default="all", alias="from")
    """The other side: `all`, `servers`, `clients`, `host:NAME` or `consul:servers`."""

    @field_validator("percent")
    @classmethod
    def _provable(cls, value: Percent) -> Percent:
        if value < _LEAST_LOSS:
            raise ValueError(f"percent must be at least {_LEAST_LOSS}: less takes too many packets to prove")
        return value


class NetworkLoss(_TableFault):
    """Drops packets to and from `from` with probability p, so that a round trip fails with 1 - (1 - p)^2.

    A hit is a datagram to a host on the other side whose echo does not come back.

    Limits: losses are independent; bursts are not modelled. TCP hides a small loss as latency.
    """

    kind: ClassVar[str] = "network.loss"
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({NetworkCanary, PacketFilter})
    observer: ClassVar[Observer] = OBSERVER
    Params: ClassVar[type[Strict]] = LossParams
    observed_within_s = 15.0
    cases: ClassVar[Cases] = Cases(
        each=({"percent": "30%"},),
        disarm=_empty_table,
        space=({"from": SIDES, "percent": "0.5%..100.0%"},),
        weak=lambda params, noise: noise.lost * 5 >= Percent(params["percent"]),
    )

    def uses(self, place: Place) -> Sequence[Claim]:
        return (
            *super().uses(place),
            needs(PACKETS, where=self._between(place)),
            spoils(CANARY_LINKS, where=EVERYWHERE, meets=ON_CONNECTIONS),
            needs(CANARY_TIMES, where=place.hosts | place.across(self.params.from_)),
        )

    @property
    def _expected(self) -> float:
        return float(1 - (1 - self.params.percent) ** 2)

    @property
    def _datagrams(self) -> int:
        return max(_DATAGRAMS, trials_for(self._expected))

    def rules(self, undo: Undo) -> Sequence[Block]:
        addresses, share = tuple(undo["addresses"]), float(self.params.percent)
        return [Block("input", addresses, share=share), Block("output", addresses, share=share)]

    async def _lost(self, undo: Undo, peers: Sequence[str]) -> dict[str, int]:
        host, lost = self._host(undo), dict.fromkeys(peers, 0)

        async def one(name: str) -> None:
            share = await host.use(NetworkCanary).echo_loss(self.hosts.host(name).address, self._datagrams, _ECHO_S)
            lost[name] = round(share * self._datagrams)

        await all_at_once(partial(one, name) for name in peers)
        return lost

    async def _judged(self, undo: Undo) -> tuple[list[str], dict[str, str]]:
        """The peers that only this fault cuts off, and the other obstacles on the ways to the other peers."""
        ways = [Way(undo["host"], name, self.hosts.host(name).address) for name in undo["peers"]]
        explained = await explanations(self.hosts, ways, None, besides=self.table(undo))
        return [way.there for way in ways if way not in explained], {way.there: why for way, why in explained.items()}

    @patient
    async def prior(self, target: Target) -> Mapping[str, Any]:
        """The baseline. Raises FaultError if it could not prove the loss."""
        undo = self.plan(target, fault_id="")
        peers, _ = await self._judged(undo)
        before = await self._lost(undo, peers)
        for name, lost in before.items():
            if counts(self._datagrams, self._expected, lost) is None:
                could = least_share(lost / self._datagrams)
                raise FaultError(
                    f"{Percent(round(lost / self._datagrams, 4))} of the round trips to {name} are lost without it: "
                    f"{self.params.percent} cannot be proven; use {Percent(could)} or more"
                )
        return {"lost": before, "datagrams": self._datagrams}

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        """Sends datagrams to each host on the other side, and counts those that come back."""
        peers, others = await self._judged(undo)
        before = undo.get("prior", {}).get("lost", {})
        lost = await self._lost(undo, peers)
        wrong = []
        for name, hits in lost.items():
            needed = counts(self._datagrams, self._expected, before.get(name, 0))
            if needed is None or not (needed.shows(hits) if present else needed.is_free(hits)):
                wrong.append(name)
        told = (wrong or peers or [""])[0]
        share = lost.get(told, 0) / self._datagrams
        in_the_list = self.table(undo) in await self._host(undo).use(PacketFilter).packet_tables()
        return Evidence(
            not wrong and (bool(peers) or in_the_list is present),
            f"{Percent(round(self._expected, 4))} of round trips lost" if present else "no loss",
            (
                f"{Percent(round(share, 4))} of {self._datagrams} round trips to {told} lost"
                if peers
                else "no host was tried"
            )
            + (f"; left out: {_named(others)}" if others else ""),
            {"asked_share": self._expected, "measured_share": share, "peers": len(peers), "explained": len(others)},
        )


class BlockParams(Strict):
    """A TCP port of the target, closed for some hosts or for all. `drop` is silence, `reject` a refusal."""

    port: int = Field(ge=1, le=65535)
    """8500 is Consul's HTTP API, 8300 its server RPC."""
    from_: Peers = Field(default="all", alias="from")
    """The hosts that are blocked."""
    action: Literal["drop", "reject"] = "drop"
    """`drop` is silence, `reject` a refusal (TCP reset)."""


class NetworkBlock(_TableFault):
    """Blocks a TCP port of the target: drops packets to it, or rejects them.

    Limits: also blocks packets of established connections. Does not affect UDP.
    """

    kind: ClassVar[str] = "network.block"
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({PacketFilter})
    observer: ClassVar[Observer] = OBSERVER
    Params: ClassVar[type[Strict]] = BlockParams
    cases: ClassVar[Cases] = Cases(
        each=({"port": 8500, "from": "all"}, {"port": 8500, "from": "clients", "action": "reject"}),
        disarm=_empty_table,
        space=({"from": SIDES, "port": [8300, 8500], "action": ["drop", "reject"]},),
        overlaps=({"port": 8500, "from": "clients"},),
    )

    def uses(self, place: Place) -> Sequence[Claim]:
        return (
            needs(HOST),
            takes(connections(self.params.port), where=place.connections("in"), meets=ON_CONNECTIONS),
            needs(LISTENER, "a stopped agent does not listen on its port, blocked or not"),
        )

    def rules(self, undo: Undo) -> Sequence[Block]:
        return [Block("input", tuple(undo["addresses"]), port=self.params.port, refuse=self.params.action == "reject")]

    def _ways(self, undo: Undo) -> list[Way]:
        return [Way(name, undo["host"], undo["address"]) for name in undo["peers"]]

    async def prior(self, target: Target) -> Mapping[str, Any]:
        """Raises FaultError if a host cannot connect even without the fault."""
        undo = self.plan(target, fault_id="")
        return await passing(self, undo, self._ways(undo), self.params.port)

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        """Tries a connection to the port from each host that is shut out."""
        tried = await try_all(self.hosts, self._ways(undo), self.params.port, besides=self.table(undo))
        refused = {"drop": (errno.ETIMEDOUT,), "reject": (errno.ECONNREFUSED, errno.ECONNRESET)}[self.params.action]
        numbers = {one.way.here: one.errno for one in tried.judged}
        blocked = sum(number in refused for number in numbers.values())
        wanted = blocked if present else sum(number == 0 for number in numbers.values())
        said = ", ".join(f"{name}: {errno.errorcode.get(n, 'connected')}" for name, n in sorted(numbers.items()))
        return Evidence(
            wanted == len(numbers) and (bool(numbers) or (self.table(undo) in tried.tables[undo["host"]]) is present),
            f"port {self.params.port} {'shut' if present else 'open'} for {', '.join(undo['peers'])}",
            (said or "no host was tried") + tried.left_out(),
            {"tried": len(numbers), "blocked": blocked, "explained": tried.explained},
        )
