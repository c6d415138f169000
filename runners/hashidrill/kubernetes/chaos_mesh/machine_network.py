"""Partitions and slow links of a machine, by the chaosd that runs there: iptables, ipset and a token bucket of tc.

What chaosd does by netem (delay, loss, corruption, duplication) has no kind here: a kernel without it lets the object
fail, and nobody can tell beforehand from outside.
"""

from __future__ import annotations

import errno
import statistics
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from hashidrill.core.errors import FaultError, SelectorError
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.faults.base import Cases, P, across_troubles, patient, peers_of
from hashidrill.core.faults.network import Peers
from hashidrill.core.protocols.abc import (
    Claim,
    Evidence,
    Exchange,
    ExchangeRequest,
    Hosts,
    Observer,
    Place,
    Target,
    Trouble,
    Undo,
)
from hashidrill.core.protocols.capabilities import ECHO_PORT, ChaosMachine, NetworkCanary
from hashidrill.core.protocols.claims import (
    ANSWERS,
    CANARY_LINKS,
    EVERYWHERE,
    HOST,
    ON_CONNECTIONS,
    PACKETS,
    needs,
    spoils,
    takes,
)
from hashidrill.core.units import Bandwidth, Duration
from hashidrill.core.util.wait import all_at_once
from hashidrill.kubernetes.chaos_mesh.physical import OnMachine
from hashidrill.kubernetes.injected import OBJECT
from hashidrill.kubernetes.observing import Effect

_CONNECT_S = 0.3
_SLOWEST, _FASTEST = Bandwidth("1KB/s"), Bandwidth("10MB/s")
_TRIALS, _TRIAL_S, _GIVES_UP_S = 3, 1.0, 6.0
_BURST_BYTES, _QUEUE_BYTES = 4_096, 65_536
"""Of the token bucket: what passes at once, and what may wait. Both are small, so that they do not hide the rate."""
_LEAST, _MOST = 0.7, 4.0
_FIRST_PORT, _PORTS = 31_000, 700
"""Where the canary on the other side answers exchanges; chaosd listens on 31766 to 31768."""


class _OnLinks(OnMachine[P]):
    """Between the machine and the hosts on the other side. The undo also holds `peers` and `addresses`."""

    across: ClassVar[frozenset[type[Any]]] = frozenset({NetworkCanary})
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({ChaosMachine, NetworkCanary})

    def troubles(self, place: Place) -> Iterable[Trouble]:
        return across_troubles(place, self.params.from_)  # type: ignore[attr-defined]

    def plan_more(self, target: Target) -> dict[str, Any]:
        peers = peers_of(self.hosts, target, self.params.from_)  # type: ignore[attr-defined]
        if not peers:
            raise SelectorError(f"{self.kind} on {target.host}: nobody is on the other side; name another host")
        return {"peers": [peer.name for peer in peers], "addresses": [peer.address for peer in peers]}

    def uses(self, place: Place) -> Sequence[Claim]:
        there = place.across(self.params.from_)  # type: ignore[attr-defined]
        between = frozenset((host, other) for host in place.hosts for other in there if other != host)
        return (
            needs(HOST),
            takes(self.kind),
            takes(OBJECT),
            spoils(PACKETS, "it disturbs the packets by which the other one is seen", where=between),
            spoils(CANARY_LINKS, where=EVERYWHERE, meets=ON_CONNECTIONS),
            spoils(ANSWERS),
        )


class LinkParams(Strict):
    """Who is on the other side, and the machine's network interface towards it."""

    from_: Peers = Field(default="all", alias="from")
    """Who is on the other side."""
    device: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.@-]{1,15}$")] = "eth0"
    """The network interface of the machine."""


class PartitionParams(LinkParams):
    """In which direction packets are lost. chaosd cuts one of them at a time; a connection needs both."""

    direction: Literal["in", "out"] = "out"
    """`out`: what the machine sends; `in`: what it receives. chaosd takes one of them."""


@dataclass(frozen=True)
class CutOff:
    """No connection comes about between the machine and any host on the other side, in either direction."""

    who: str

    async def before(self, hosts: Hosts, target: Target) -> Mapping[str, Any]:
        """Raises FaultError where a connection already fails: that it is cut would not show."""
        peers = [peer.name for peer in peers_of(hosts, target, self.who)]
        for (here, there), number in (await self._tried(hosts, target.host, peers)).items():
            if number:
                name = errno.errorcode.get(number, str(number))
                raise FaultError(
                    f"{here} cannot connect to port {ECHO_PORT} of {there} as it is ({name}): that it is cut off would"
                    " not show; find out why, or name other hosts"
                )
        return {}

    async def look(self, hosts: Hosts, undo: Undo, *, present: bool) -> Evidence:
        numbers = [*(await self._tried(hosts, undo["host"], undo["peers"])).values()]
        silent, open_ = numbers.count(errno.ETIMEDOUT), numbers.count(0)
        others = ", ".join(undo["peers"])
        return Evidence(
            (silent if present else open_) == len(numbers),
            f"no connection with {others}" if present else f"all connections with {others}",
            f"{open_} of {len(numbers)} connections succeeded, {silent} had no answer",
            {"connections": len(numbers), "succeeded": open_},
        )

    @staticmethod
    async def _tried(hosts: Hosts, host: str, peers: Sequence[str]) -> dict[tuple[str, str], int]:
        """(from, to) to the errno of a connection to the other one's canary."""
        numbers: dict[tuple[str, str], int] = {}

        async def one(here: str, there: str) -> None:
            canary = hosts.host(here).use(NetworkCanary)
            numbers[here, there] = (await canary.connect(hosts.host(there).address, ECHO_PORT, _CONNECT_S)).errno

        await all_at_once(partial(one, *way) for peer in peers for way in ((host, peer), (peer, host)))
        return numbers


class Partition(_OnLinks[PartitionParams]):
    """Drops all packets of one direction between the machine and `from`, by iptables.

    Limits: only hosts are cut off: our loads and observers are not.
    """

    kind: ClassVar[str] = "chaos_mesh.physical.partition"
    observer: ClassVar[Observer] = Observer("the canaries' own connections, each way between the hosts")
    Params: ClassVar[type[Strict]] = PartitionParams
    cases: ClassVar[Cases] = Cases(
        each=({"from": "servers"}, {"from": "host:consul-3", "direction": "in", "device": "ens5"})
    )

    def spec(self, agent: str) -> Mapping[str, Any]:
        """Without addresses, which `wanted` adds: a partition from nobody is one that the API takes."""
        way = {"out": "to", "in": "from"}[self.params.direction]
        return {"action": "network-partition", "network-partition": {"device": self.params.device, "direction": way}}

    def wanted(self, undo: Undo) -> Mapping[str, Any]:
        spec = self.spec(undo["agent"])
        cut = {**spec["network-partition"], "ip-address": ",".join(undo["addresses"])}
        return {**spec, "network-partition": cut}

    def effect(self, agent: str) -> Effect:
        return CutOff(self.params.from_)


def _provable(value: Bandwidth) -> Bandwidth:
    if not _SLOWEST <= value <= _FASTEST:
        raise ValueError(f"must be from {_SLOWEST} to {_FASTEST}: the proof sends for a second; not {value}")
    return value


class BandwidthParams(LinkParams):
    """Bytes per second that the machine may send."""

    rate: Annotated[Bandwidth, AfterValidator(_provable)]
    """Bytes per second, from 1KB/s to 10MB/s."""


@dataclass(frozen=True)
class Narrow:
    """What the host sends to another one takes as long as `rate` needs for it."""

    who: str
    rate: float

    @property
    def _bytes(self) -> int:
        """What takes a second, beside what passes at once."""
        return int(self.rate * _TRIAL_S) + _BURST_BYTES

    async def before(self, hosts: Hosts, target: Target) -> Mapping[str, Any]:
        """Raises FaultError where sending takes half as long as it is."""
        peer = peers_of(hosts, target, self.who)[0]
        port = _FIRST_PORT + zlib.crc32(f"{target.host}/{peer.name}".encode()) % _PORTS
        await peer.use(NetworkCanary).canary_listen(port)
        took = await self._sent(hosts, target.host, peer.name, port)
        failed = [one for one in took if one.errno]
        slowest = max(one.seconds for one in took)
        if failed or slowest > _LEAST * _TRIAL_S / 2:
            why = errno.errorcode.get(failed[0].errno, "an error") if failed else f"it takes {Duration(slowest)}"
            raise FaultError(
                f"{self._bytes} bytes from {target.host} to {peer.name} as it is: {why}; {Bandwidth(self.rate)} could"
                " not be told from that"
            )
        return {"port": port, "peer": peer.name, "typical_s": statistics.median(one.seconds for one in took)}

    async def look(self, hosts: Hosts, undo: Undo, *, present: bool) -> Evidence:
        prior = undo.get("prior", {})
        took = await self._sent(hosts, undo["host"], prior["peer"], prior["port"])
        whole = [one.seconds for one in took if not one.errno]
        asked = f"{undo['host']} sends {'at' if present else 'faster than'} {Bandwidth(self.rate)}"
        if len(whole) < len(took):
            return Evidence(False, asked, f"{len(took) - len(whole)} of {len(took)} transfers did not end")
        quickest, slowest = min(whole), max(whole)
        ok = quickest >= _LEAST * _TRIAL_S and slowest <= _MOST * _TRIAL_S if present else slowest < _TRIAL_S / 2
        rate = Bandwidth(round(self._bytes / statistics.median(whole)))
        measured = f"{self._bytes} bytes in {quickest:.2f} to {slowest:.2f}s: {rate}"
        return Evidence(ok, asked, measured, {"asked_bytes_per_s": self.rate, "measured_bytes_per_s": float(rate)})

    async def _sent(self, hosts: Hosts, host: str, peer: str, port: int) -> Sequence[Exchange]:
        request = ExchangeRequest(self._bytes, 1, _GIVES_UP_S, connections=_TRIALS, at_once=1)
        return await hosts.host(host).use(NetworkCanary).exchange(hosts.host(peer).address, port, request)


class LinkBandwidth(_OnLinks[BandwidthParams]):
    """Limits what the machine sends on an interface to `rate`, by a token bucket of tc.

    Limits: chaosd 1.4.0 reads bytes as bits, and hashidrill asks for eight times as much to get what you wrote. With a
    chaosd that is fixed the fault is not proven, and the run is INVALID.
    """

    kind: ClassVar[str] = "chaos_mesh.physical.bandwidth"
    observer: ClassVar[Observer] = Observer(
        "how long the canary on that host takes to send to the canary on another one"
    )
    Params: ClassVar[type[Strict]] = BandwidthParams
    cases: ClassVar[Cases] = Cases(each=({"rate": "64KB/s"},))

    @property
    def observed_within_s(self) -> float:
        return super().observed_within_s + _TRIALS * _GIVES_UP_S

    @patient
    async def prior(self, target: Target) -> Mapping[str, Any]:
        return await super().prior(target)

    def spec(self, agent: str) -> Mapping[str, Any]:
        """Of everything that leaves by the interface, to whomever: `from` says who watches.

        chaosd 1.4.0, its newest, gives tc a number of bytes for one of bits: asked for what we want, it would be eight
        times as slow. One that is fixed is eight times as fast, and not proven.
        """
        bucket = {
            "device": self.params.device,
            "rate": f"{round(8 * self.params.rate)}bps",
            "limit": _QUEUE_BYTES,
            "buffer": _BURST_BYTES,
        }
        return {"action": "network-bandwidth", "network-bandwidth": bucket}

    def effect(self, agent: str) -> Effect:
        return Narrow(self.params.from_, float(self.params.rate))
