"""The probe of the machine itself: what is left of its CPUs, and what other work on it takes."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from hashidrill.abc import Sample
from hashidrill.probes.base import BaseProbe, SickError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_IDLE, _IOWAIT, _STEAL = 3, 4, 7
"""Where these are among the numbers of the line `cpu` of /proc/stat (proc_stat(5)); guest time is in user time."""
_OWN_FIRST, _OWN_AFTER = 11, 15
"""utime, stime, cutime, cstime in what follows the command in /proc/PID/stat (proc_pid_stat(5))."""


class CpuTimes(NamedTuple):
    """Seconds since the machine started, of all CPUs together."""

    busy_s: float
    """Anybody's, and what the hypervisor took."""
    idle_s: float
    own_s: float
    """Of the processes of this PID namespace, and of their children that ended."""


def cpu_times() -> CpuTimes:
    """From /proc. Raises SickError where it does not read like Linux's."""
    try:
        line = (_PROC / "stat").read_text().partition("\n")[0]
        ticks = [int(number) for number in line.split()[1:]]
        idle, total = ticks[_IDLE] + ticks[_IOWAIT], sum(ticks[: _STEAL + 1])
    except (OSError, ValueError, IndexError):
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

    It belongs inside of the sandbox, where /proc shows the processes of the run alone. Needs two samples.
    """

    signals: ClassVar = ("machine.others", "machine.idle")

    def __init__(
        self, *, read: Callable[[], CpuTimes] = cpu_times, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._read = read
        self._now_s = now_s
        self._last: tuple[float, CpuTimes] | None = None

    async def measure(self) -> Sequence[Sample]:
        last, self._last = self._last, None
        now_s, times = self._now_s(), self._read()
        self._last = (now_s, times)
        if last is None or now_s <= last[0]:
            return []
        then_s, before = last
        per_s = 1 / (now_s - then_s)
        others = max(0.0, (times.busy_s - before.busy_s) - max(0.0, times.own_s - before.own_s))
        return [
            Sample("machine.others", others * per_s),
            Sample("machine.idle", max(0.0, times.idle_s - before.idle_s) * per_s),
        ]
