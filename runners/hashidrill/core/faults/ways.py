"""Whether one host reaches another, and if not, which other fault explains it.

Several faults may separate the same two hosts: partitions of both, or a partition and a loss. A failed connection then
says nothing about the fault that is being proven. The packet rules are read from the kernels of both hosts, so that a
fresh process sees them too.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Protocol

from hashidrill.core.errors import FaultError, WaitTimeoutError
from hashidrill.core.protocols.abc import Barrier, Hosts, Undo
from hashidrill.core.protocols.capabilities import NetworkCanary, PacketFilter
from hashidrill.core.util.wait import all_at_once, wait_until

_CONNECT_S = 0.3
_BASELINE_WITHIN_S, _GAP_S = 10.0, 0.2


class _Fault(Protocol):
    kind: ClassVar[str]
    hosts: Hosts


@dataclass(frozen=True)
class Way:
    """From one host, by name, to another one, by name and address."""

    here: str
    there: str
    address: str


@dataclass(frozen=True)
class Attempt:
    """One connection on a way: how it ended."""

    way: Way
    errno: int


@dataclass(frozen=True)
class Tried:
    """The attempts that count; the ways that another fault explains, and why."""

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
    """Why this way is cut. A rule about a port on the connecting host's own side does not concern it."""
    for name, other, ports in ((way.here, way.address, (None,)), (way.there, here, (None, port))):
        for barrier in barriers[name]:
            if barrier.table != besides and other in barrier.addresses and barrier.port in ports:
                return f"{barrier.table} on {name} is in the way"
    return ""


async def explanations(hosts: Hosts, ways: Sequence[Way], port: int | None, *, besides: str) -> dict[Way, str]:
    """Why packets on these ways may be dropped, apart from the table `besides`; `port`: TCP, at the far end."""
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
    """The baseline of a fault that cuts these ways: all connections succeed, except where another fault explains it.

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
