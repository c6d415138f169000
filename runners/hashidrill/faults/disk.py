"""Slow, failing and full disks, under a running agent.

Latency, errors and bandwidth act on the system calls of everything on the host (hashidrill.datacenter.inside.diskd);
a full disk is a real one: a small file system, filled. The observer is the host's canary, which does the same calls on
a file beside the agent's data.
"""

from __future__ import annotations

import errno
import math
import statistics
from collections.abc import Awaitable, Callable
from typing import ClassVar, Literal

import anyio
from pydantic import Field, field_validator, model_validator

from hashidrill.abc import Evidence, Host, Needs, Timing, Undo
from hashidrill.faults.base import BaseFault
from hashidrill.model import Strict
from hashidrill.units import Bandwidth, Duration, Percent, Size

Op = Literal["fsync", "write", "read", "all"]
_ALL = ("fsync", "write", "read")
_CANARY_BYTES = 4096
_SURE_TRIALS, _SHARE_TRIALS = 3, 60
# the observer's own disk operation takes time too: what is measured may be this much longer than asked for
_SLACK_SHARE, _SLACK_S = 0.25, 0.05


def operations(op: Op) -> tuple[str, ...]:
    return _ALL if op == "all" else (op,)


async def _try(host: Host, op: Op, trials: int) -> list[Timing]:
    """That many canary operations at once, of the first kind that the fault names."""
    calls: dict[str, Callable[[], Awaitable[Timing]]] = {
        "fsync": host.canary_fsync,
        "write": lambda: host.canary_write(_CANARY_BYTES),
        "read": lambda: host.canary_read(_CANARY_BYTES),
    }
    timings: list[Timing] = []

    async def one() -> None:
        timings.append(await calls[operations(op)[0]]())

    async with anyio.create_task_group() as group:
        for _ in range(trials):
            group.start_soon(one)
    return timings


def _share_is(asked: float, hits: int, trials: int) -> bool:
    """Whether `hits` of `trials` fits the share asked for: within four standard errors."""
    return abs(hits / trials - asked) <= 4 * math.sqrt(asked * (1 - asked) / trials) + 1 / trials


class LatencyParams(Strict):
    """A delay before each operation of the kind, for a share of them."""

    op: Op = "fsync"
    delay: Duration
    jitter: Duration = Duration("0s")
    percent: Percent = Percent("100%")

    @model_validator(mode="after")
    def _sensible(self) -> LatencyParams:
        if self.delay <= 0:
            raise ValueError("a delay is longer than 0s")
        if self.jitter > self.delay:
            raise ValueError(f"jitter ({self.jitter}) is longer than delay ({self.delay})")
        if self.percent <= 0:
            raise ValueError("percent is over 0%")
        return self


class DiskLatency(BaseFault[LatencyParams]):
    """Operations take `delay` (plus or minus `jitter`) longer."""

    kind: ClassVar[str] = "disk.latency"
    Params: ClassVar[type[Strict]] = LatencyParams

    def needs(self) -> Needs:
        return Needs(frozenset(operations(self.params.op)))

    async def apply(self, undo: Undo) -> None:
        rule = {
            "operations": operations(self.params.op), "delay_s": float(self.params.delay),
            "jitter_s": float(self.params.jitter), "share": float(self.params.percent),
        }  # fmt: skip
        await self._host(undo).set_disk_rule(undo["fault_id"], rule)

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        share = self.params.percent
        trials = _SHARE_TRIALS if share < 1 else _SURE_TRIALS
        seconds = [timing.seconds for timing in await _try(self._host(undo), self.params.op, trials)]
        shortest, longest = self.params.delay - self.params.jitter, self.params.delay + self.params.jitter
        slow = [second for second in seconds if second >= shortest * 0.98]
        typical = statistics.median(slow if present and slow else seconds)
        if present:
            ok = _share_is(share, len(slow), trials) and bool(slow)
            ok = ok and typical <= longest * (1 + _SLACK_SHARE) + _SLACK_S
        else:
            ok = statistics.median(seconds) < shortest * 0.5 if share > 0.5 else not _share_is(share, len(slow), trials)
        what = f"{operations(self.params.op)[0]} takes"
        return Evidence(
            ok,
            f"{what} {self.params.delay}" + (f" for {share}" if share < 1 else "") if present else f"{what} no longer",
            f"{what} {Duration(round(typical, 6))} ({len(slow)} of {trials} were slow)",
            {"asked_s": float(self.params.delay), "measured_s": typical, "slow_share": len(slow) / trials},
        )

    async def revert(self, undo: Undo) -> None:
        await self._host(undo).clear_disk_rule(undo["fault_id"])


class ErrorParams(Strict):
    """An error instead of the operation, for a share of them."""

    op: Op = "fsync"
    errno: str = Field(default="EIO", description="The name of the error, as in errno(3)")
    percent: Percent = Percent("100%")

    @field_validator("errno")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in errno.errorcode.values():
            raise ValueError(f"there is no errno {value!r}; write it like EIO, ENOSPC or EROFS")
        return value

    @field_validator("percent")
    @classmethod
    def _some(cls, value: Percent) -> Percent:
        if value <= 0:
            raise ValueError("percent is over 0%")
        return value


class DiskError(BaseFault[ErrorParams]):
    """Operations fail with `errno`."""

    kind: ClassVar[str] = "disk.error"
    Params: ClassVar[type[Strict]] = ErrorParams

    def needs(self) -> Needs:
        return Needs(frozenset(operations(self.params.op)))

    async def apply(self, undo: Undo) -> None:
        rule = {
            "operations": operations(self.params.op), "errno": getattr(errno, self.params.errno),
            "share": float(self.params.percent),
        }  # fmt: skip
        await self._host(undo).set_disk_rule(undo["fault_id"], rule)

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        share = self.params.percent
        trials = _SHARE_TRIALS if share < 1 else _SURE_TRIALS
        timings = await _try(self._host(undo), self.params.op, trials)
        hits = sum(timing.errno == getattr(errno, self.params.errno) for timing in timings)
        what = f"{operations(self.params.op)[0]} fails with {self.params.errno}"
        return Evidence(
            _share_is(share, hits, trials) and hits > 0 if present else hits == 0,
            f"{what}, {share}" if present else f"{what} no longer",
            f"{hits} of {trials} failed so",
            {"asked_share": float(share), "measured_share": hits / trials},
        )

    async def revert(self, undo: Undo) -> None:
        await self._host(undo).clear_disk_rule(undo["fault_id"])


class FullParams(Strict):
    """How much is left free."""

    leave: Size = Size("0B")


class DiskFull(BaseFault[FullParams]):
    """The host's file system is filled, up to `leave`. It must have a size (`datacenter.disk.size`)."""

    kind: ClassVar[str] = "disk.full"
    Params: ClassVar[type[Strict]] = FullParams

    _WRITE = 64 * 1024

    def needs(self) -> Needs:
        return Needs(sized_disk=True)

    async def apply(self, undo: Undo) -> None:
        await self._host(undo).fill_disk(undo["fault_id"], int(self.params.leave))

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        host = self._host(undo)
        size = int(self.params.leave) + self._WRITE
        timing = await host.canary_write(size)
        free = await host.free_bytes()
        name = errno.errorcode.get(timing.errno, "no error")
        return Evidence(
            timing.errno == errno.ENOSPC if present else timing.errno == 0,
            f"a write of {Size(size)} {'fails with ENOSPC' if present else 'succeeds'}",
            f"{name}, {Size(free)} free",
            {"free_bytes": free, "errno": name},
        )

    async def revert(self, undo: Undo) -> None:
        await self._host(undo).unfill_disk(undo["fault_id"])


class BandwidthParams(Strict):
    """Bytes per second that the disk takes, over all processes of the host."""

    rate: Bandwidth
    op: Literal["write", "read"] = "write"

    @field_validator("rate")
    @classmethod
    def _some(cls, value: Bandwidth) -> Bandwidth:
        if value <= 0:
            raise ValueError("a bandwidth is over 0B/s")
        return value


class DiskBandwidth(BaseFault[BandwidthParams]):
    """Reads or writes queue for a disk that moves no more than `rate`."""

    kind: ClassVar[str] = "disk.bandwidth"
    Params: ClassVar[type[Strict]] = BandwidthParams

    _LONG_S, _MIN_BYTES = 0.4, 4096
    _QUEUE = 4.0  # the agent's own writes queue before the canary's

    def needs(self) -> Needs:
        return Needs(frozenset({self.params.op}))

    async def apply(self, undo: Undo) -> None:
        rule = {"operations": (self.params.op,), "bytes_per_s": float(self.params.rate)}
        await self._host(undo).set_disk_rule(undo["fault_id"], rule)

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        """Time one canary operation of as many bytes as take some 400 ms at that rate."""
        host = self._host(undo)
        size = min(4 << 20, max(self._MIN_BYTES, int(self.params.rate * self._LONG_S)))
        call = host.canary_write if self.params.op == "write" else host.canary_read
        if self.params.op == "read":
            size = self._MIN_BYTES  # as much as the canary's file holds
        timing = await call(size)
        asked_s = size / self.params.rate
        measured = size / max(timing.seconds, 1e-9)
        slow = asked_s * 0.95 <= timing.seconds <= asked_s * self._QUEUE + 1.0
        return Evidence(
            slow if present else timing.seconds < asked_s * 0.5,
            f"{self.params.op}s {'at' if present else 'faster than'} {self.params.rate}",
            f"{size} bytes in {Duration(round(timing.seconds, 6))}: {Bandwidth(round(measured))}",
            {"asked_bytes_per_s": float(self.params.rate), "measured_bytes_per_s": measured},
        )

    async def revert(self, undo: Undo) -> None:
        await self._host(undo).clear_disk_rule(undo["fault_id"])


KINDS = (DiskLatency, DiskError, DiskFull, DiskBandwidth)
