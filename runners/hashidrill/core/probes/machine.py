"""The probe of the machine itself: what is left of its CPUs, and what other work on it takes."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from hashidrill.core.probes.base import BaseProbe, SickError
from hashidrill.core.protocols.abc import Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hashidrill.core.util.cores import Quota

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_IDLE, _IOWAIT, _STEAL = 3, 4, 7
"""Where these are among the numbers of a line `cpu0` of /proc/stat (proc_stat(5)); guest time is in user time."""
_OWN_FIRST, _OWN_AFTER = 11, 15
"""utime, stime, cutime, cstime in what follows the command in /proc/PID/stat (proc_pid_stat(5))."""


class CpuTimes(NamedTuple):
    """Seconds since the machine started, of all CPUs together that we may run on."""

    busy_s: float
    """Anybody's, and what the hypervisor took."""
    idle_s: float
    own_s: float
    """Of the processes of this PID namespace, and of their children that ended."""


def cpu_times() -> CpuTimes:
    """From /proc. Raises SickError where it does not read like Linux's."""
    try:
        named = dict(line.split(maxsplit=1) for line in (_PROC / "stat").read_text().splitlines() if " " in line)
        each = [[int(number) for number in named[f"cpu{one}"].split()] for one in os.sched_getaffinity(0)]
        idle = sum(ticks[_IDLE] + ticks[_IOWAIT] for ticks in each)
        total = sum(sum(ticks[: _STEAL + 1]) for ticks in each)
    except (OSError, ValueError, LookupError):
        raise SickError(f"{_PROC}/stat is not readable") from None
    own = sum(_own_ticks(folder) for folder in _PROC.iterdir() if folder.name.isdecimal())
    return CpuTimes((total - idle) / _TICKS_PER_S, idle / _TICKS_PER_S, own / _TICKS_PER_S)


def _own_ticks(process: Path) -> int:
    try:
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        return sum(int(number) for number in fields[_OWN_FIRST:_OWN_AFTER])
    except (OSError, ValueError):
        return 0  # it has just ended: its time is in its parent's, or comes with the next sample


class MachineProbe(BaseProbe):
    """`machine.others` and `machine.idle`, in CPUs: what processes outside of the run used, and what nobody used.

    Both of what the run may use: where control groups have quotas (`limits`), idle CPUs beyond them are not for us, and
    who uses those takes nothing from us. It belongs inside of the sandbox, where /proc shows the processes of the run
    alone. Needs two samples.
    """

    signals: ClassVar = ("machine.others", "machine.idle")

    def __init__(
        self,
        limits: Sequence[Quota] = (),
        *,
        read: Callable[[], CpuTimes] = cpu_times,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits
        self._read = read
        self._now_s = now_s
        self._last: tuple[float, CpuTimes, Sequence[float | None]] | None = None

    async def measure(self) -> Sequence[Sample]:
        last, self._last = self._last, None
        now_s, times, used = self._now_s(), self._read(), [limit.used_s() for limit in self._limits]
        self._last = (now_s, times, used)
        if last is None or now_s <= last[0]:
            return []
        then_s, before, used_before = last
        busy, idle, own = (max(0.0, end - start) / (now_s - then_s) for start, end in zip(before, times, strict=True))
        for limit, end, start in zip(self._limits, used, used_before, strict=True):
            taken = own if end is None or start is None else (end - start) / (now_s - then_s)
            idle = min(idle, max(0.0, limit.cores - taken))
        may_use = min((limit.cores for limit in self._limits), default=math.inf)
        others = min(max(0.0, busy - own), max(0.0, may_use - own - idle))
        return [Sample("machine.others", others), Sample("machine.idle", idle)]
