"""Faults on a machine by Chaos Mesh, through the chaosd that runs there: for agents that do not run in pods.

No kind here uses chaosd's netem actions (delay, loss, corruption, duplication): without netem in the kernel the object
fails, and nothing outside shows beforehand whether the kernel has netem.
"""

from __future__ import annotations

import errno
import signal
import statistics
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from hashidrill.core.errors import FaultError, SelectorError
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.faults.base import Cases, P, across_troubles, patient, peers_of
from hashidrill.core.faults.disk import acts_on
from hashidrill.core.faults.network import Peers
from hashidrill.core.faults.significance import counts, trials_for
from hashidrill.core.protocols.abc import (
    Claim,
    Evidence,
    Exchange,
    ExchangeRequest,
    Host,
    Hosts,
    Observer,
    Place,
    Target,
    Trouble,
    Undo,
)
from hashidrill.core.protocols.capabilities import (
    ECHO_PORT,
    AgentApi,
    ChaosMachine,
    CpuCanary,
    DiskCanary,
    NetworkCanary,
)
from hashidrill.core.protocols.claims import (
    ANSWERS,
    CANARY_LINKS,
    CANARY_TIMES,
    CPU,
    EVERYWHERE,
    HOST,
    ON_CONNECTIONS,
    PACKETS,
    START,
    needs,
    spoils,
    takes,
)
from hashidrill.core.units import Bandwidth, Duration, Percent, Size
from hashidrill.core.util.wait import all_at_once
from hashidrill.kubernetes.chaos_mesh.pods import ChaosMeshFault
from hashidrill.kubernetes.external_fault import OBJECT
from hashidrill.kubernetes.pod_observers import OF_AGENT, Effect, Silent

_NAME = r"^[A-Za-z0-9_.+-]{1,64}$"


class OnMachine(ChaosMeshFault[P]):
    """A fault through the chaosd of the host."""

    injector = ChaosMachine
    object_kind = "PhysicalMachineChaos"


class ProcessParams(Strict):
    """Which processes get which signal."""

    signal: Literal["STOP", "KILL", "TERM"] = "STOP"
    """`STOP`, which chaosd reverts by CONT; `KILL` or `TERM`, which need `restart`."""
    process: Annotated[str, Field(pattern=_NAME)] | None = None
    """The executable's name; none: the product's. chaosd signals every process of that name on the machine."""
    restart: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    """The command with which chaosd starts the process again, like `systemctl start consul`."""

    @model_validator(mode="after")
    def _comes_back(self) -> ProcessParams:
        if self.signal != "STOP" and self.restart is None:
            raise ValueError(
                f"{self.signal} ends the process, and chaosd starts it again only with `restart`, a command like"
                " `systemctl start consul`"
            )
        if self.signal == "STOP" and self.restart is not None:
            raise ValueError("a stopped process is continued, not restarted; `restart` is for KILL and TERM")
        return self


class PhysicalProcess(OnMachine[ProcessParams]):
    """Signals the agent's process through the chaosd on its machine: stops it, or ends it.

    Limits: if a service manager restarts a killed agent, the fault ends early and the run is INVALID. If a machine has
    two agents of one product, both are signalled.
    """

    kind: ClassVar[str] = "chaos_mesh.physical.process"
    cases: ClassVar[Cases] = Cases(each=({}, {"signal": "KILL", "restart": "systemctl start consul"}))
    observer = Observer(OF_AGENT)
    Params = ProcessParams
    capabilities = frozenset({ChaosMachine, AgentApi})
    holds_down = True
    shows = Silent()

    def spec(self, agent: str) -> Mapping[str, Any]:
        """Names the executable, because chaosd finds processes by name, and all of that name on the machine."""
        given: dict[str, Any] = {
            "process": self.params.process or agent,
            "signal": int(signal.Signals[f"SIG{self.params.signal}"]),
        }
        if self.params.restart is not None:
            given["recoverCmd"] = self.params.restart
        return {"action": "process", "process": given}


_LEAST_FILL = Size("1MiB")
_SHARE, _LEFT = 0.9, 0.5
"""Missing shares of `size`: at least `_SHARE` in force, under `_LEFT` once gone; the agent writes meanwhile."""


def _large_enough(value: Size) -> Size:
    if value < _LEAST_FILL:
        raise ValueError(f"must be at least {_LEAST_FILL}: the agent itself writes as much; not {value}")
    return value


class FillParams(Strict):
    """How much disk space is allocated, and where."""

    size: Annotated[Size, AfterValidator(_large_enough)]
    """How much space is allocated, at least 1MiB."""
    path: Annotated[str, Field(pattern=r"^/[^\n]*$", max_length=1000)]
    """A folder of the machine, in which chaosd chooses a file name, or a file that does not exist yet; on the disk that
    the agent writes to.
    """


@dataclass(frozen=True)
class Filled:
    """The agent's disk has `size_bytes` less free space, by the file system's own count."""

    size_bytes: int

    async def before(self, hosts: Hosts, target: Target) -> Mapping[str, Any]:
        """Raises FaultError for a size that does not fit: chaosd would say AllInjected and fill nothing."""
        free = await hosts.host(target.host).use(DiskCanary).free_bytes()
        if free < self.size_bytes:
            raise FaultError(
                f"the disk of {target.host} has {Size(free)} free: {Size(self.size_bytes)} do not fit, and chaosd would"
                f" allocate nothing and report success; use at most {Size(free)}"
            )
        return {"free_bytes": free}

    async def look(self, hosts: Hosts, undo: Undo, *, present: bool) -> Evidence:
        free = await hosts.host(undo["host"]).use(DiskCanary).free_bytes()
        before = int(undo.get("prior", {}).get("free_bytes", free))
        missing = before - free
        ok = missing >= _SHARE * self.size_bytes if present else missing < _LEFT * self.size_bytes
        asked = f"{Size(self.size_bytes)} of the disk {'taken' if present else 'free again'}"
        figures = {"free_bytes": free, "free_before_bytes": before, "asked_bytes": self.size_bytes}
        return Evidence(ok, asked, f"{Size(free)} free, {Size(before)} before", figures)


class DiskFill(OnMachine[FillParams]):
    """Allocates a file of `size` in a folder of the machine, through the chaosd that runs there.

    Limits: a `size` that does not fit is refused, because chaosd would allocate nothing and report success. Blocks are
    reserved, but nothing is written: the disk becomes full, but not slow.
    """

    kind: ClassVar[str] = "chaos_mesh.physical.disk_fill"
    cases: ClassVar[Cases] = Cases(each=({"size": "20MB", "path": "/var/lib/consul"},))
    observer = Observer("the free space of the agent's file system, read on that host")
    Params = FillParams
    capabilities = frozenset({ChaosMachine, DiskCanary})

    def uses(self, place: Place) -> Sequence[Claim]:
        return (*acts_on(self.kind, ("write",)), takes(OBJECT))

    def spec(self, agent: str) -> Mapping[str, Any]:
        """The size is in bytes (`c`), because chaosd reads a number without a unit as MiB."""
        filled = {"size": f"{int(self.params.size)}c", "path": self.params.path}
        return {"action": "disk-fill", "disk-fill": filled}

    def effect(self, agent: str) -> Effect:
        return Filled(int(self.params.size))


_WINDOWS, _WINDOW_S = trials_for(1.0), 0.15
_LEAST_CPU_DROP = 0.2
"""A smaller drop of a busy loop's CPU share would look the same as other work on the machine."""
_HALF = 0.5


def _whole_percentage(value: Percent) -> Percent:
    if not 0.1 <= value <= 1 or round(value * 100) != round(value * 100, 6):
        raise ValueError(f"must be a whole percentage from 10% to 100%; not {value}")
    return value


class CpuParams(Strict):
    """How many workers stress-ng has, and how busy each is."""

    workers: Annotated[int, Field(ge=1, le=256)]
    """How many processes burn CPU."""
    load: Annotated[Percent, AfterValidator(_whole_percentage)] = Percent("100%")
    """How busy each process is, from 10%, in whole percent."""


@dataclass(frozen=True)
class Crowded:
    """Busy loops on the host, one for each CPU, get less CPU than before.

    The kernel shares the CPUs evenly between the `workers` and the loops.
    """

    workers: int
    load: float

    def drop(self, cpus: int) -> float:
        """The share of its CPU time that a busy loop loses to the stress."""
        return min(self.workers * self.load / cpus, self.workers / (self.workers + cpus))

    async def before(self, hosts: Hosts, target: Target) -> Mapping[str, Any]:
        """The baseline. Raises FaultError if the machine is too busy for the loss to show."""
        host = hosts.host(target.host)
        drop = self.drop(host.use(CpuCanary).cpus)
        if drop < _LEAST_CPU_DROP:
            raise FaultError(
                f"{self.workers} workers with a load of {Percent(self.load)} take {Percent(round(drop, 2))} from busy"
                f" loops on the {host.use(CpuCanary).cpus} CPUs of {target.host}, but less than"
                f" {Percent(_LEAST_CPU_DROP)} cannot be proven; use more workers"
            )
        windows = await self._burn(host)
        cores = statistics.mean(windows)
        hits = self._hits(windows, cores, drop)
        if counts(_WINDOWS, 1.0, hits) is None:
            raise FaultError(
                f"busy loops on {target.host} got {min(windows):.2f} to {max(windows):.2f} cores before the fault: a"
                f" loss of {Percent(round(drop, 2))} of {cores:.2f} would not show; the machine is too busy"
            )
        return {"hits": hits, "cores": cores}

    async def look(self, hosts: Hosts, undo: Undo, *, present: bool) -> Evidence:
        host, before = hosts.host(undo["host"]), undo.get("prior", {})
        drop, own = self.drop(host.use(CpuCanary).cpus), float(before.get("cores", 0.0))
        windows = await self._burn(host)
        hits, needed = self._hits(windows, own, drop), counts(_WINDOWS, 1.0, int(before.get("hits", 0)))
        ok = needed is not None and (needed.shows(hits) if present else needed.is_free(hits))
        got = statistics.mean(windows)
        cut = own * (1 - _HALF * drop)
        return Evidence(
            ok,
            f"busy loops get {'less' if present else 'more'} than {cut:.2f} cores",
            f"{got:.2f} cores ({hits} of {len(windows)} times no more than {cut:.2f}), {own:.2f} before",
            {"measured_cores": got, "cores_before": own},
        )

    async def _burn(self, host: Host) -> Sequence[float]:
        canary = host.use(CpuCanary)
        return await canary.canary_burn(canary.cpus, _WINDOWS, _WINDOW_S)

    def _hits(self, windows: Sequence[float], own: float, drop: float) -> int:
        return sum(cores <= own * (1 - _HALF * drop) for cores in windows)


class Cpu(OnMachine[CpuParams]):
    """Runs stress-ng on the machine, through the chaosd that runs there.

    Limits: everything on the machine becomes slower. If agents have CPU guarantees, the canary sees less than the
    workers use.
    """

    kind: ClassVar[str] = "chaos_mesh.physical.cpu"
    cases: ClassVar[Cases] = Cases(each=({"workers": 4}, {"workers": 2, "load": "50%"}))
    observer = Observer("busy loops of the canary on that host")
    Params = CpuParams
    capabilities = frozenset({ChaosMachine, CpuCanary})

    def uses(self, place: Place) -> Sequence[Claim]:
        return (
            needs(HOST),
            takes(CPU),
            takes(OBJECT),
            spoils(START, "an agent that starts with so little CPU may not answer before its observer gives up"),
            spoils(CANARY_TIMES, "it also slows down the observer that measures the other fault"),
        )

    @patient
    async def prior(self, target: Target) -> Mapping[str, Any]:
        return await super().prior(target)

    def spec(self, agent: str) -> Mapping[str, Any]:
        given = {"workers": self.params.workers, "load": round(self.params.load * 100)}
        return {"action": "stress-cpu", "stress-cpu": given}

    def effect(self, agent: str) -> Effect:
        return Crowded(self.params.workers, float(self.params.load))


_CONNECT_S = 0.3
_SLOWEST, _FASTEST = Bandwidth("1KB/s"), Bandwidth("10MB/s")
_TRANSFERS, _TRANSFER_S, _GIVES_UP_S = 3, 1.0, 6.0
_BURST_BYTES, _QUEUE_BYTES = 4_096, 65_536
"""The token bucket's burst and queue. Both are small, so that they do not hide the rate."""
_LEAST, _MOST = 0.7, 4.0
_FIRST_PORT, _PORTS = 31_000, 700
"""The ports on which the canary on the other side answers exchanges; chaosd uses 31766 to 31768."""


class _OnLinks(OnMachine[P]):
    """A fault between the machine and the hosts on the other side. The undo also holds `peers` and `addresses`."""

    across = frozenset({NetworkCanary})
    capabilities = frozenset({ChaosMachine, NetworkCanary})

    def troubles(self, place: Place) -> Iterable[Trouble]:
        return across_troubles(place, self.params.from_)  # type: ignore[attr-defined]

    def plan_more(self, target: Target) -> dict[str, Any]:
        peers = peers_of(self.hosts, target, self.params.from_)  # type: ignore[attr-defined]
        if not peers:
            raise SelectorError(f"{self.kind} on {target.host}: there is no host on the other side; name another host")
        return {"peers": [peer.name for peer in peers], "addresses": [peer.address for peer in peers]}

    def uses(self, place: Place) -> Sequence[Claim]:
        there = place.across(self.params.from_)  # type: ignore[attr-defined]
        between = frozenset((host, other) for host in place.hosts for other in there if other != host)
        return (
            needs(HOST),
            takes(self.kind),
            takes(OBJECT),
            spoils(PACKETS, "it disturbs the packets with which the other fault is measured", where=between),
            spoils(CANARY_LINKS, where=EVERYWHERE, meets=ON_CONNECTIONS),
            spoils(ANSWERS),
        )


class LinkParams(Strict):
    """The hosts on the other side, and the machine's network interface towards them."""

    from_: Peers = Field(default="all", alias="from")
    """The hosts on the other side."""
    device: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.@-]{1,15}$")] = "eth0"
    """The network interface of the machine."""


class PartitionParams(LinkParams):
    """In which direction packets are lost. chaosd cuts one direction at a time; a connection needs both."""

    direction: Literal["in", "out"] = "out"
    """`out`: what the machine sends; `in`: what it receives. chaosd accepts only one of them."""


@dataclass(frozen=True)
class CutOff:
    """No connection succeeds between the machine and any host on the other side, in either direction."""

    who: str

    async def before(self, hosts: Hosts, target: Target) -> Mapping[str, Any]:
        """Raises FaultError if a connection already fails, because a cut would not show."""
        peers = [peer.name for peer in peers_of(hosts, target, self.who)]
        for (here, there), number in (await self._tried(hosts, target.host, peers)).items():
            if number:
                name = errno.errorcode.get(number, str(number))
                raise FaultError(
                    f"{here} cannot connect to port {ECHO_PORT} of {there} even before the fault ({name}): a partition"
                    " would not show; find out why, or name other hosts"
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
        numbers: dict[tuple[str, str], int] = {}

        async def one(here: str, there: str) -> None:
            canary = hosts.host(here).use(NetworkCanary)
            numbers[here, there] = (await canary.connect(hosts.host(there).address, ECHO_PORT, _CONNECT_S)).errno

        await all_at_once(partial(one, *way) for peer in peers for way in ((host, peer), (peer, host)))
        return numbers


class Partition(_OnLinks[PartitionParams]):
    """Drops all packets of one direction between the machine and `from`, by iptables.

    Limits: only hosts are cut off, not hashidrill's loads and observers.
    """

    kind: ClassVar[str] = "chaos_mesh.physical.partition"
    cases: ClassVar[Cases] = Cases(
        each=({"from": "servers"}, {"from": "host:consul-3", "direction": "in", "device": "ens5"})
    )
    observer = Observer("the canaries' own connections, each way between the hosts")
    Params = PartitionParams

    def spec(self, agent: str) -> Mapping[str, Any]:
        """The spec without addresses, which `wanted` adds; the API accepts a partition without a source."""
        way = {"out": "to", "in": "from"}[self.params.direction]
        return {"action": "network-partition", "network-partition": {"device": self.params.device, "direction": way}}

    def wanted(self, undo: Undo) -> Mapping[str, Any]:
        spec = self.spec(undo["agent"])
        cut = {**spec["network-partition"], "ip-address": ",".join(undo["addresses"])}
        return {**spec, "network-partition": cut}

    def effect(self, agent: str) -> Effect:
        return CutOff(self.params.from_)


def _provable_rate(value: Bandwidth) -> Bandwidth:
    if not _SLOWEST <= value <= _FASTEST:
        raise ValueError(f"must be from {_SLOWEST} to {_FASTEST}: the proof sends for a second; not {value}")
    return value


class BandwidthParams(LinkParams):
    """Bytes per second that the machine may send."""

    rate: Annotated[Bandwidth, AfterValidator(_provable_rate)]
    """Bytes per second, from 1KB/s to 10MB/s."""


@dataclass(frozen=True)
class Narrow:
    """Data that the host sends to another host takes as long as `rate` implies."""

    who: str
    rate: float

    @property
    def _bytes(self) -> int:
        """The bytes that take a second at `rate`, plus the burst."""
        return int(self.rate * _TRANSFER_S) + _BURST_BYTES

    async def before(self, hosts: Hosts, target: Target) -> Mapping[str, Any]:
        """Raises FaultError if sending already takes so long that the limit would not show."""
        peer = peers_of(hosts, target, self.who)[0]
        port = _FIRST_PORT + zlib.crc32(f"{target.host}/{peer.name}".encode()) % _PORTS
        await peer.use(NetworkCanary).canary_listen(port)
        took = await self._sent(hosts, target.host, peer.name, port)
        failed = [one for one in took if one.errno]
        slowest = max(one.seconds for one in took)
        if failed or slowest > _LEAST * _TRANSFER_S / 2:
            why = errno.errorcode.get(failed[0].errno, "an error") if failed else f"it takes {Duration(slowest)}"
            raise FaultError(
                f"{self._bytes} bytes from {target.host} to {peer.name} before the fault: {why}; {Bandwidth(self.rate)}"
                " would not show"
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
        ok = (
            quickest >= _LEAST * _TRANSFER_S and slowest <= _MOST * _TRANSFER_S
            if present
            else slowest < _TRANSFER_S / 2
        )
        rate = Bandwidth(round(self._bytes / statistics.median(whole)))
        measured = f"{self._bytes} bytes in {quickest:.2f} to {slowest:.2f}s: {rate}"
        return Evidence(ok, asked, measured, {"asked_bytes_per_s": self.rate, "measured_bytes_per_s": float(rate)})

    async def _sent(self, hosts: Hosts, host: str, peer: str, port: int) -> Sequence[Exchange]:
        request = ExchangeRequest(self._bytes, 1, _GIVES_UP_S, connections=_TRANSFERS, at_once=1)
        return await hosts.host(host).use(NetworkCanary).exchange(hosts.host(peer).address, port, request)


class LinkBandwidth(_OnLinks[BandwidthParams]):
    """Limits what the machine sends on an interface to `rate`, by a token bucket of tc.

    Limits: chaosd 1.4.0 reads bytes as bits, so hashidrill requests eight times the rate that you wrote. With a fixed
    chaosd the fault is not proven, and the run is INVALID.
    """

    kind: ClassVar[str] = "chaos_mesh.physical.bandwidth"
    cases: ClassVar[Cases] = Cases(each=({"rate": "64KB/s"},))
    observer = Observer("how long the canary on that host takes to send to the canary on another host")
    Params = BandwidthParams

    @property
    def observed_within_s(self) -> float:
        return super().observed_within_s + _TRANSFERS * _GIVES_UP_S

    @patient
    async def prior(self, target: Target) -> Mapping[str, Any]:
        return await super().prior(target)

    def spec(self, agent: str) -> Mapping[str, Any]:
        """Limits everything that leaves by the interface; `from` only names the hosts that measure.

        chaosd 1.4.0, the newest, passes a number of bytes to tc as bits: without the factor, the link would be eight
        times as slow. With a fixed chaosd it is eight times as fast, and the fault is not proven.
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
