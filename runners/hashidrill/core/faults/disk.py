"""Slow, failing and full disks, under a running agent.

Latency, errors and bandwidth act on the system calls of every process on the host
(hashidrill.lab.local.inside.diskd). A full disk is real: a small file system, filled. The observer is the host's
canary, which makes the same calls on a file next to the agent's data: before the fault, while it is in force, and
afterwards.
"""

from __future__ import annotations

import errno
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, Field, field_validator, model_validator

from hashidrill.core.errors import FaultError
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.faults.base import BaseFault, Cases, patient
from hashidrill.core.faults.significance import (
    SMALLEST_SHARE,
    Counts,
    counts,
    delays_over,
    most_before,
    smallest_share,
    trials_for,
)
from hashidrill.core.protocols.abc import (
    Claim,
    Evidence,
    Host,
    Observer,
    Place,
    Requires,
    Target,
    Timing,
    Trouble,
    Undo,
)
from hashidrill.core.protocols.capabilities import DiskCanary, DiskControl, DiskSpace
from hashidrill.core.protocols.claims import CANARY_TIMES, DISK, HOST, needs, takes
from hashidrill.core.units import Bandwidth, Duration, Percent, Size
from hashidrill.core.util.wait import all_at_once

P = TypeVar("P", bound=Strict)
OBSERVER = Observer("the canary's own calls on a file next to the agent's data")
_BYTES = 4096
_BASELINE_WITHIN_S, _WITHIN_S = 4.0, 20.0
DRIFT_S = 0.005
"""How much a disk's latency without a fault may change between two looks, when another process starts to write.

Quiet SSDs sync in 0.2 ms, and in 4 ms next to another writer: such a change affects every operation of a look, so
that no count of hits distinguishes it from a delay. The requested delay must exceed the baseline by more than this.
"""


@dataclass(frozen=True)
class Tried:
    """Results of the canary's operations of one kind. `before_s`: their typical time in the baseline."""

    operation: str
    trials: int
    hits: int
    typical_s: float
    median_hit_s: float
    longest_s: float
    before_s: float = 0.0


def acts_on(kind: str, operations: Iterable[str]) -> Sequence[Claim]:
    """The claims of a fault on these operations: one fault may slow reads while another fails writes."""
    parts = frozenset(operations)
    why = "both act on every {parts} there, and the effect of one would hide the other's"
    return (needs(HOST), takes(kind, parts=parts), takes(DISK, why, parts=parts))


class DiskTrialFault(BaseFault[P]):
    """A fault that hits all operations of some kinds, or a share of them."""

    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({DiskCanary, DiskControl})

    def requires(self) -> Requires:
        return replace(super().requires(), disk_operations=frozenset(self.operations()))

    def uses(self, place: Place) -> Sequence[Claim]:
        return acts_on(self.kind, self.operations())

    @property
    def size_bytes(self) -> int:
        """The bytes of each trial."""
        return _BYTES

    def rule(self) -> Mapping[str, Any]:
        """The request to the host (`DiskControl`): a carrier that cannot do it refuses before anything begins."""
        raise AssertionError

    async def apply(self, undo: Undo) -> None:
        await self._host(undo).use(DiskControl).set_disk_rule(undo["fault_id"], self.rule())

    def operations(self) -> Sequence[str]:
        """The kinds of operations that the fault names; the canary tries each."""
        raise AssertionError

    def shares(self) -> tuple[float, float]:
        """The lowest and highest share of operations that it hits."""
        raise AssertionError

    def hit(self, timing: Timing) -> bool:
        raise AssertionError

    def near(self, timing: Timing) -> bool:
        """Whether an operation of the baseline would be a hit if the disk were slightly slower without the fault."""
        return self.hit(replace(timing, seconds=timing.seconds + DRIFT_S))

    def refused(self, operation: str, timings: Sequence[Timing], at_most: int) -> str:
        """Why this baseline cannot prove the fault, and what it could prove with `at_most` hits in the baseline."""
        raise AssertionError

    def as_asked(self, tried: Tried) -> bool:
        """Whether the effect is close enough to the requested one, rather than far stronger."""
        return True

    def asked(self, operation: str, *, present: bool) -> str:
        raise AssertionError

    def measured(self, tried: Tried) -> str:
        raise AssertionError

    def figures(self, tried: Tried) -> dict[str, float | str]:
        raise AssertionError

    @property
    def _trials(self) -> int:
        least, most = self.shares()
        return trials_for(least, most)

    def _counts(self, before: int) -> Counts | None:
        least, most = self.shares()
        return counts(self._trials, least, before, highest=most)

    @patient
    async def prior(self, target: Target) -> Mapping[str, Any]:
        """The baseline. Raises FaultError if it could not prove the fault."""
        looked = await self._look(self.hosts.host(target.host), _BASELINE_WITHIN_S)
        baseline = {}
        for operation, timings in looked.items():
            if len(timings) < self._trials:
                raise FaultError(self._too_slow(operation, len(timings)))
            tried = self._tried(operation, timings)
            if self._counts(sum(map(self.near, timings))) is None:
                least, most = self.shares()
                raise FaultError(self.refused(operation, timings, most_before(self._trials, least, highest=most)))
            baseline[operation] = {"hits": tried.hits, "trials": tried.trials, "typical_s": tried.typical_s}
        return {"baseline": baseline}

    def _too_slow(self, operation: str, trials: int) -> str:
        share = smallest_share(trials)
        could = f"use percent: {Percent(share)} or more" if share <= 1 else "this disk is too slow for any share"
        return (
            f"the proof needs {self._trials} {operation}s, but this disk did only {trials} in the time for it: {could}"
        )

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        """Counts the hits of each kind of operation. Raises FaultError if the canary finished none in time."""
        baseline = undo.get("prior", {}).get("baseline", {})
        seen: list[tuple[bool, Tried]] = []
        for operation, timings in (await self._look(self._host(undo), _WITHIN_S)).items():
            before = baseline.get(operation, {})
            if not timings:
                raise FaultError(f"{self.kind} on {undo['host']}: no {operation} of the canary finished in time")
            tried = self._tried(operation, timings, before.get("typical_s", 0.0))
            needed = self._counts(before.get("hits", 0))
            if present:
                ok = needed is not None and needed.shows(tried.hits) and self.as_asked(tried)
            else:
                ok = needed is not None and needed.is_free(tried.hits)
            seen.append((ok and len(timings) == self._trials, tried))
        ok = all(each for each, _ in seen)
        # an operation that contradicts the result, if any
        told = next((tried for each, tried in seen if not each), seen[0][1])
        return Evidence(
            ok,
            self.asked("/".join(self.operations()), present=present),
            self.measured(told),
            {"trials": told.trials, "operations": len(seen), **self.figures(told)},
        )

    def _tried(self, operation: str, timings: Sequence[Timing], before_s: float = 0.0) -> Tried:
        seconds = [timing.seconds for timing in timings]
        hits = [timing.seconds for timing in timings if self.hit(timing)]
        median = statistics.median(hits) if hits else 0.0
        typical = median if len(hits) >= len(timings) * self.shares()[0] / 2 else statistics.median(seconds)
        return Tried(operation, len(timings), len(hits), typical, median, max(seconds), before_s)

    async def _look(self, host: Host, within_s: float) -> dict[str, Sequence[Timing]]:
        seen: dict[str, Sequence[Timing]] = dict.fromkeys(self.operations(), ())

        async def one(operation: str) -> None:
            seen[operation] = await host.use(DiskCanary).canary_disk(operation, self.size_bytes, self._trials, within_s)

        await all_at_once(partial(one, operation) for operation in seen)
        return seen

    async def revert(self, undo: Undo) -> None:
        await self._host(undo).use(DiskControl).clear_disk_rule(undo["fault_id"])


Op = Literal["fsync", "write", "read", "all"]
_ALL = ("fsync", "write", "read")
OPS = [*_ALL, "all"]
_LONGEST = Duration("10s")
_USED_BYTES = 1 << 20
# measurements may be this much longer than requested: the observer's own work takes time too
_SLACK_SHARE, _SLACK_S = 0.25, 0.02


def operations(op: Op) -> tuple[str, ...]:
    return _ALL if op == "all" else (op,)


def _provable(percent: Percent) -> Percent:
    if percent < SMALLEST_SHARE:
        raise ValueError(f"percent must be at least {Percent(SMALLEST_SHARE)}: less takes too many trials to prove")
    return percent


Share = Annotated[Percent, AfterValidator(_provable)]


class LatencyParams(Strict):
    """A delay before each operation of the kind, for a share of them."""

    op: Op = "fsync"
    """Which operations wait: `fsync`, `write`, `read` or `all`. fsync means fsync, fdatasync and sync_file_range; write
    includes fallocate.
    """
    delay: Duration
    """Added time; with `jitter` at most 10s."""
    jitter: Duration = Duration("0s")
    """Plus or minus up to this, evenly distributed; at most `delay`."""
    percent: Share = Percent("100%")
    """Share of the operations, from 1%."""

    @model_validator(mode="after")
    def _sensible(self) -> LatencyParams:
        if self.delay <= 0:
            raise ValueError("delay must be longer than 0s")
        if self.jitter > self.delay:
            raise ValueError(f"jitter ({self.jitter}) must not be longer than delay ({self.delay})")
        if self.delay + self.jitter > _LONGEST:
            raise ValueError(f"delay and jitter together may be at most {_LONGEST}, because the proof waits that long")
        if delays_over(self.delay, self.jitter)[0] <= DRIFT_S:
            what = "delay less jitter" if self.jitter else "delay"
            raise ValueError(
                f"{what} must be longer than {Duration(DRIFT_S)}: a disk's latency changes by as much when another "
                f"process begins to write"
            )
        return self


class DiskLatency(DiskTrialFault[LatencyParams]):
    """Delays disk operations by `delay`, plus or minus `jitter`.

    A hit is an operation that takes at least 98 % of the shortest delay. If jitter is over half of the delay, that is
    98 % of `delay - jitter/2`, which three in four operations take.

    Limits: does not affect `mmap`, which BoltDB uses for reads. The delay applies per call, not per byte. `for` is at
    least twice `delay` and `jitter` together, because each of the two proofs waits for them.
    """

    kind: ClassVar[str] = "disk.latency"
    observer: ClassVar[Observer] = OBSERVER
    Params: ClassVar[type[Strict]] = LatencyParams
    cases: ClassVar[Cases] = Cases(
        each=(
            {"op": "fsync", "delay": "200ms"},
            {"op": "write", "delay": "100ms", "jitter": "20ms"},
            {"op": "read", "delay": "100ms"},
            {"op": "all", "delay": "50ms", "percent": "50%"},
        ),
        space=({"op": OPS, "delay": "1ms..5000ms", "jitter": "0ms..5000ms", "percent": "1%..100%"},),
        overlaps=({"op": "fsync", "delay": "150ms"}, {"op": "write", "delay": "20ms"}),
    )

    @property
    def observed_within_s(self) -> float:
        """A random share can hit the same observer thread several times."""
        return (6 if self.params.percent < 1 else 4) * (self.params.delay + self.params.jitter)

    def uses(self, place: Place) -> Sequence[Claim]:
        return (*super().uses(place), needs(CANARY_TIMES))

    def troubles(self, place: Place) -> Iterable[Trouble]:
        """Reports a time that is too short for the two proofs, which wait for the delay: it would last longer."""
        look = Duration(self.params.delay + self.params.jitter)
        if place.begins_s is not None and place.ends_s is not None and place.ends_s - place.begins_s < 2 * look:
            text = f"the two proofs of a delay of {look} take {Duration(2 * look)}, and the disk is slow meanwhile"
            yield ("for",), f"{text}; write for: {Duration(2 * look)} or more, or a shorter delay"

    def rule(self) -> Mapping[str, Any]:
        return {
            "operations": operations(self.params.op),
            "delay_s": float(self.params.delay),
            "jitter_s": float(self.params.jitter),
            "share": float(self.params.percent),
        }

    def operations(self) -> Sequence[str]:
        return operations(self.params.op)

    @cached_property
    def _cut_s(self) -> float:
        return delays_over(self.params.delay, self.params.jitter)[0]

    def shares(self) -> tuple[float, float]:
        return self.params.percent * delays_over(self.params.delay, self.params.jitter)[1], float(self.params.percent)

    def hit(self, timing: Timing) -> bool:
        return timing.seconds >= self._cut_s

    def refused(self, operation: str, timings: Sequence[Timing], at_most: int) -> str:
        """Names the shortest provable delay, which at most `at_most` of the disk's own operations reach."""
        own = sorted((timing.seconds for timing in timings), reverse=True)[at_most]
        could = Duration(math.ceil((own + DRIFT_S) / self._cut_s * self.params.delay * 1.05 * 1000) / 1000)
        return f"a delay of {self.params.delay} is within this disk's usual {operation} times; use {could} or more"

    def as_asked(self, tried: Tried) -> bool:
        longest = self.params.delay + self.params.jitter
        return bool(tried.median_hit_s <= longest * (1 + _SLACK_SHARE) + _SLACK_S + 2 * tried.before_s)

    def asked(self, operation: str, *, present: bool) -> str:
        if not present:
            return f"{operation} no longer takes {self.params.delay}"
        share = f" for {self.params.percent}" if self.params.percent < 1 else ""
        return f"{operation} takes {self.params.delay}{share}"

    def measured(self, tried: Tried) -> str:
        typical = Duration(round(tried.typical_s, 6))
        return f"{tried.operation} takes {typical} ({tried.hits} of {tried.trials} were slow)"

    def figures(self, tried: Tried) -> dict[str, float | str]:
        return {
            "asked_s": float(self.params.delay),
            "measured_s": tried.typical_s,
            "slow_share": tried.hits / tried.trials,
        }


class ErrorParams(Strict):
    """An error instead of the operation, for a share of them."""

    op: Op = "fsync"
    """Which operations fail: `fsync`, `write`, `read` or `all`."""
    errno: str = Field(default="EIO", description="The name of the error, as in errno(3)")
    percent: Share = Percent("100%")
    """Share of the operations, from 1%."""

    @field_validator("errno")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in errno.errorcode.values():
            raise ValueError(f"there is no errno {value!r}; write one like EIO, ENOSPC or EROFS")
        return value


class DiskError(DiskTrialFault[ErrorParams]):
    """Fails disk operations with `errno`.

    A hit is an operation that fails with `errno`.
    """

    kind: ClassVar[str] = "disk.error"
    observer: ClassVar[Observer] = OBSERVER
    Params: ClassVar[type[Strict]] = ErrorParams
    cases: ClassVar[Cases] = Cases(
        each=({"op": "fsync", "errno": "EIO"}, {"op": "write", "errno": "EROFS", "percent": "40%"}),
        space=({"op": OPS, "errno": ["EIO", "ENOSPC", "EROFS"], "percent": "1%..100%"},),
        overlaps="an error on fsync ends the agent, as it should: other faults on the agent would end with it",
    )

    def rule(self) -> Mapping[str, Any]:
        return {
            "operations": operations(self.params.op),
            "errno": getattr(errno, self.params.errno),
            "share": float(self.params.percent),
        }

    def operations(self) -> Sequence[str]:
        return operations(self.params.op)

    def shares(self) -> tuple[float, float]:
        return float(self.params.percent), float(self.params.percent)

    def hit(self, timing: Timing) -> bool:
        return bool(timing.errno == getattr(errno, self.params.errno))

    def refused(self, operation: str, timings: Sequence[Timing], at_most: int) -> str:
        return (
            f"a {operation} on this disk already fails with {self.params.errno} without the fault; find out why, or use"
            " another errno"
        )

    def asked(self, operation: str, *, present: bool) -> str:
        what = f"{operation} fails with {self.params.errno}"
        return f"{what}, {self.params.percent}" if present else f"{operation} no longer fails with {self.params.errno}"

    def measured(self, tried: Tried) -> str:
        return f"{tried.hits} of {tried.trials} {tried.operation}s failed with that error"

    def figures(self, tried: Tried) -> dict[str, float | str]:
        return {"asked_share": float(self.params.percent), "measured_share": tried.hits / tried.trials}


class FullParams(Strict):
    """The space that stays free."""

    leave: Size = Size("0B")
    """How much stays free; at least 1 MiB less than the disk has."""


class DiskFull(BaseFault[FullParams]):
    """Fills the host's disk until only `leave` is free. Needs `datacenter.disk.size`.

    Its proof involves no chance: a write of more than `leave` fails, while it succeeds before and after the fault.

    Limits: the file system is in memory: it really fills up, but it is faster than a disk. Consul's write-ahead log
    preallocates segments of 64 MB and notices a full disk only when it needs the next one; `raft_logstore: {backend:
    boltdb}` notices at once (`raft/leader-disk-full`).
    """

    kind: ClassVar[str] = "disk.full"
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({DiskCanary, DiskSpace})
    observer: ClassVar[Observer] = OBSERVER
    Params: ClassVar[type[Strict]] = FullParams
    cases: ClassVar[Cases] = Cases(
        each=({}, {"leave": "1MB"}),
        space=({"leave": "0kB..250000kB"},),
        weak=lambda params, noise: Size(params["leave"]) > 200e6,  # noqa: ARG005 - the disk of the fake has 256 MB
        overlaps="it needs a disk of limited size, on which other faults have no room to work",
    )

    _WRITE = 64 * 1024

    def requires(self) -> Requires:
        return replace(super().requires(), sized_disk=True)

    def uses(self, place: Place) -> Sequence[Claim]:
        return acts_on(self.kind, ("write",))

    def troubles(self, place: Place) -> Iterable[Trouble]:
        """Reports a `leave` so large that the disk, minus the least that an agent uses of it, would not be full."""
        disk, leave = place.parts.get("disk"), self.params.leave
        if disk is not None and disk.size is not None and leave + _USED_BYTES > disk.size:
            most = Size(disk.size - _USED_BYTES)
            text = f"a disk of {disk.size} with {leave} left free is not full; leave at most {most}"
            yield ("with", "leave"), text

    @patient
    async def prior(self, target: Target) -> Mapping[str, Any]:
        """Raises FaultError for a disk that is already full."""
        host = self.hosts.host(target.host)
        timing, free = await host.use(DiskCanary).canary_write(self._size), await host.use(DiskCanary).free_bytes()
        if timing.errno or free < self._size:
            name = errno.errorcode.get(timing.errno, "no error")
            could = Size(max(0, free - 2 * self._WRITE))
            raise FaultError(
                f"the disk is already full: a write of {Size(self._size)} gave {name}, and {Size(free)} are free; "
                f"use leave: {could} or less"
                if could
                else f"the disk is already full ({name})"
            )
        return {"free_bytes": free}

    @property
    def _size(self) -> int:
        return int(self.params.leave) + self._WRITE

    async def apply(self, undo: Undo) -> None:
        await self._host(undo).use(DiskSpace).fill_disk(undo["fault_id"], int(self.params.leave))

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        host = self._host(undo)
        timing = await host.use(DiskCanary).canary_write(self._size)
        free = await host.use(DiskCanary).free_bytes()
        name = errno.errorcode.get(timing.errno, "no error")
        return Evidence(
            timing.errno == errno.ENOSPC if present else timing.errno == 0,
            f"a write of {Size(self._size)} {'fails with ENOSPC' if present else 'succeeds'}",
            f"{name}, {Size(free)} free",
            {"free_bytes": free, "errno": name},
        )

    async def revert(self, undo: Undo) -> None:
        await self._host(undo).use(DiskSpace).unfill_disk(undo["fault_id"])


class BandwidthParams(Strict):
    """Bytes per second of the disk, for all processes of the host together."""

    rate: Bandwidth
    """Like `256kB/s` or `1MB/s`; from 50B/s."""
    op: Literal["write", "read"] = "write"
    """Which operations queue: `write` or `read`."""

    @field_validator("rate")
    @classmethod
    def _some(cls, value: Bandwidth) -> Bandwidth:
        if value < _SLOWEST:
            raise ValueError(f"a bandwidth must be at least {_SLOWEST}: less makes the proof take too long")
        return value


_SLOWEST = Bandwidth("50B/s")


class DiskBandwidth(DiskTrialFault[BandwidthParams]):
    """Limits disk reads or writes to `rate`; operations queue for it.

    A hit is an operation of as many bytes as `rate` allows in 20 ms that takes at least 95 % of that time.

    Limits: counts the bytes of each call (vectored calls count as 4 KiB); does not model page cache and `mmap`.
    """

    kind: ClassVar[str] = "disk.bandwidth"
    observer: ClassVar[Observer] = OBSERVER
    Params: ClassVar[type[Strict]] = BandwidthParams
    cases: ClassVar[Cases] = Cases(
        each=({"rate": "256kB/s"}, {"rate": "8kB/s", "op": "read"}),
        space=({"rate": "1B/s..1000000000B/s", "op": ["write", "read"]},),
        weak=lambda params, noise: (
            Bandwidth(params["rate"]) * 0.02 / noise.disk_bytes_per_s + noise.slowest_s + DRIFT_S >= 0.018
        ),
        overlaps=({"rate": "512kB/s"}, {"rate": "64kB/s", "op": "read"}),
    )

    _TRIAL_S, _MOST_BYTES = 0.02, 4 << 20
    _QUEUE, _QUEUE_S = 4.0, 1.0  # the agent's own writes may queue in front of the canary's
    _HIT = 0.95

    def uses(self, place: Place) -> Sequence[Claim]:
        return (*super().uses(place), needs(CANARY_TIMES))

    def rule(self) -> Mapping[str, Any]:
        return {"operations": (self.params.op,), "bytes_per_s": float(self.params.rate)}

    def operations(self) -> Sequence[str]:
        return (self.params.op,)

    @property
    def size_bytes(self) -> int:
        return min(self._MOST_BYTES, max(1, int(self.params.rate * self._TRIAL_S)))

    @property
    def _asked_s(self) -> float:
        return self.size_bytes / self.params.rate

    def shares(self) -> tuple[float, float]:
        return 1.0, 1.0

    def hit(self, timing: Timing) -> bool:
        return bool(timing.seconds >= self._asked_s * self._HIT)

    def refused(self, operation: str, timings: Sequence[Timing], at_most: int) -> str:
        own = sorted((timing.seconds for timing in timings), reverse=True)[at_most]
        could = Bandwidth(max(1, self.size_bytes / (own + DRIFT_S) * 0.9 // 1000) * 1000)
        return (
            f"a bandwidth of {self.params.rate} is too close to this disk's usual bandwidth for {operation}; use "
            f"{could} or less"
        )

    def as_asked(self, tried: Tried) -> bool:
        together_s = tried.trials * self._asked_s
        return bool(tried.longest_s <= together_s * self._QUEUE + self._QUEUE_S)

    def asked(self, operation: str, *, present: bool) -> str:
        return f"{operation}s {'at' if present else 'faster than'} {self.params.rate}"

    def measured(self, tried: Tried) -> str:
        size = tried.trials * self.size_bytes
        return f"{size} bytes in {Duration(round(tried.longest_s, 6))}: {Bandwidth(round(self._rate(tried)))}"

    def _rate(self, tried: Tried) -> float:
        return tried.trials * self.size_bytes / max(tried.longest_s, 1e-9)

    def figures(self, tried: Tried) -> dict[str, float | str]:
        return {"asked_bytes_per_s": float(self.params.rate), "measured_bytes_per_s": self._rate(tried)}
