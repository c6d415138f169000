"""Whether one host reaches another, and if not, which other fault explains it.

Several faults may cut the same two hosts apart: partitions of both of them, a partition and a loss. Then what fails
says nothing about the one that is judged. Which packet rules are there is read from the kernels of both hosts, so that
a fresh process sees it too.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Protocol

from hashidrill.abc import Barrier, Hosts, Undo
from hashidrill.capabilities import NetworkCanary, PacketFilter
from hashidrill.errors import FaultError, WaitTimeoutError
from hashidrill.util.tasks import all_at_once
from hashidrill.util.wait import wait_until

_CONNECT_S = 0.3
_BASELINE_WITHIN_S, _GAP_S = 10.0, 0.2


class _Fault(Protocol):
    kind: ClassVar[str]
    hosts: Hosts


@dataclass(frozen=True)
class Way:
    """From a host by its name to another one, which has that address."""

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
    """The attempts to be judged; how many ways another fault explains, and the nft tables by host."""

    judged: Sequence[Attempt]
    why: Mapping[Way, str] = field(default_factory=dict)
    tables: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def explained(self) -> int:
        return len(self.why)

    def left_out(self) -> str:
        if not self.why:
            return ""
        return f"; {len(self.why)} left out, where {', '.join(sorted(set(self.why.values())))}"


async def _barriers(hosts: Hosts, names: set[str]) -> dict[str, Sequence[Barrier]]:
    found: dict[str, Sequence[Barrier]] = {}

    async def one(name: str) -> None:
        found[name] = await hosts.host(name).use(PacketFilter).nft_barriers()

    await all_at_once(partial(one, name) for name in sorted(names))
    return found


def _why(way: Way, here: str, port: int | None, barriers: Mapping[str, Sequence[Barrier]], besides: str) -> str:
    """A port that is shut on the host that connects is none of this way."""
    for name, other, ports in ((way.here, way.address, (None,)), (way.there, here, (None, port))):
        for barrier in barriers[name]:
            if barrier.table != besides and other in barrier.addresses and barrier.port in ports:
                return f"{barrier.table} on {name} is in the way"
    return ""


async def explanations(hosts: Hosts, ways: Sequence[Way], port: int | None, *, besides: str) -> dict[Way, str]:
    """Why packets on these ways may be dropped, whatever the table `besides` does; `port` is the TCP port there."""
    barriers = await _barriers(hosts, {name for way in ways for name in (way.here, way.there)})
    return _explained(hosts, ways, port, barriers, besides)


def _explained(
    hosts: Hosts, ways: Sequence[Way], port: int | None, barriers: Mapping[str, Sequence[Barrier]], besides: str
) -> dict[Way, str]:
    found = {way: _why(way, hosts.host(way.here).address, port, barriers, besides) for way in ways}
    return {way: why for way, why in found.items() if why}


async def try_all(hosts: Hosts, ways: Sequence[Way], port: int, *, besides: str) -> Tried:
    """A TCP connection on each way that no other fault explains. Rules are read before and after: they may change."""
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
    """The baseline of a fault that cuts these ways: all connections succeed but those that another fault explains.

    An agent that is on its way back is waited for. Raises FaultError when one does not succeed.
    """

    async def all_pass() -> tuple[Tried | None, str]:
        tried = await try_all(fault.hosts, ways, port, besides="")
        failed = next((one for one in tried.judged if one.errno), None)
        if failed is None:
            return tried, ""
        name = errno.errorcode.get(failed.errno, str(failed.errno))
        return None, (
            f"{failed.way.here} cannot connect to port {port} of {failed.way.there} even without it ({name}), so "
            "nothing would be seen of the fault; find out why, or name other hosts"
        )

    try:
        what = f"the connections that {fault.kind} on {undo['host']} is to cut"
        tried = await wait_until(what, all_pass, within_s=_BASELINE_WITHIN_S, gap_s=_GAP_S)
    except WaitTimeoutError as error:
        raise FaultError(str(error)) from None
    return {"connected": len(tried.judged), "explained": tried.explained}
