"""Probes of a local datacenter's hosts: the CPU time of the machine, the agents' processes, the disks."""

import errno
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

import psutil

from hashidrill.core.probes.base import BaseProbe, SickError
from hashidrill.core.protocols.abc import Host, Sample
from hashidrill.core.protocols.capabilities import DiskCanary, Processes
from hashidrill.core.util.cores import Quota

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_IDLE, _IOWAIT, _STEAL = 3, 4, 7
"""Positions of these times in the line `cpu0` of /proc/stat (proc_stat(5)); user time includes guest time."""
_OWN_FIRST, _OWN_AFTER = 11, 15
"""Positions of utime, stime, cutime and cstime after the command in /proc/PID/stat (proc_pid_stat(5))."""


class CpuTimes(NamedTuple):
    """Seconds since the machine started, over all CPUs that this process may use."""

    busy_s: float
    """Busy time of all processes, and time that the hypervisor took."""
    idle_s: float
    own_s: float
    """Time of the processes of this PID namespace, and of their ended children."""


def cpu_times() -> CpuTimes:
    """Reads /proc. Raises SickError if its form is not that of Linux."""
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
        return 0  # it has just ended: its time is in that of its parent, or will be at the next sample


class MachineProbe(BaseProbe):
    """`machine.others` and `machine.idle`, in CPUs: those that processes outside of the run use, and unused ones.

    Both count only CPUs that the run may use: CPUs beyond a control group's quota (`limits`) do not help the run if
    they are idle, and cost it nothing if they are busy. The probe belongs inside the sandbox, where /proc shows only
    the processes of the run. Needs two samples.
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


class Usage(NamedTuple):
    """What a process has used since it started; `rss_bytes` is the memory that it holds now."""

    cpu_s: float
    rss_bytes: int
    written_bytes: int
    wchar_bytes: int


def usage_of(pid: int) -> Usage:
    """Reads /proc. Raises SickError when the process has ended or may not be inspected."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            cpu, io = process.cpu_times(), process.io_counters()
            return Usage(cpu.user + cpu.system, process.memory_info().rss, io.write_bytes, io.write_chars)
    except psutil.NoSuchProcess:
        raise SickError(f"process {pid} is gone") from None
    except psutil.AccessDenied:
        raise SickError(f"process {pid}: /proc/{pid} may not be read") from None


class ProcessProbe(BaseProbe):
    """`process.cpu` (cores), `process.rss` (bytes), `process.write_rate` and `process.wchar_rate` (bytes a second).

    `write_rate` counts what was sent to the storage layer, and is 0 on a file system without one (tmpfs, some FUSE);
    `wchar_rate` counts what was passed to write calls, sockets included. Rates need two samples of the same process. A
    host's own agent is sampled under the host's name, any other agent under a `label` like `nomad-1/consul`.
    """

    signals: ClassVar = ("process.cpu", "process.rss", "process.write_rate")

    def __init__(
        self,
        host: Host,
        *,
        agent: str,
        label: str = "",
        read: Callable[[int], Usage] = usage_of,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.host = label or host.name
        self._host = host
        self._agent = agent
        self._read = read
        self._now_s = now_s
        self._last: tuple[str, float, Usage] | None = None

    async def measure(self) -> Sequence[Sample]:
        last, self._last = self._last, None
        process = await self._host.use(Processes).agent_process(self._agent)
        if process is None:
            raise SickError(f"{self._agent} does not run")
        identity = process.reference
        now_s, usage = self._now_s(), self._read(process.pid)
        self._last = (identity, now_s, usage)
        samples = [Sample("process.rss", float(usage.rss_bytes), process.state, self.host)]
        if last is not None and last[0] == identity and now_s > last[1]:
            _, then_s, before = last
            per_s = 1 / (now_s - then_s)
            samples += [
                Sample("process.cpu", (usage.cpu_s - before.cpu_s) * per_s, "", self.host),
                Sample("process.write_rate", (usage.written_bytes - before.written_bytes) * per_s, "", self.host),
                Sample("process.wchar_rate", (usage.wchar_bytes - before.wchar_bytes) * per_s, "", self.host),
            ]
        return samples


class DiskProbe(BaseProbe):
    """`disk.fsync`: seconds that a canary's fsync took, next to the agent's data. A failed sample names the errno."""

    signals: ClassVar = ("disk.fsync",)
    # long, because a slow disk must be measured, not reported as silent
    timeout_s = 10.0

    def __init__(self, host: Host) -> None:
        self.host = host.name
        self._host = host

    async def measure(self) -> Sequence[Sample]:
        timing = await self._host.use(DiskCanary).canary_fsync()
        if timing.errno:
            name = errno.errorcode.get(timing.errno, str(timing.errno))
            raise SickError(f"{name}: {os.strerror(timing.errno)} after {timing.seconds:.3f}s")
        return [Sample("disk.fsync", timing.seconds, "", self.host)]
