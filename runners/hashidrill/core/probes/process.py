"""The probe of an agent's process: CPU, memory, bytes written."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import psutil

from hashidrill.core.probes.base import BaseProbe, SickError
from hashidrill.core.protocols.abc import Sample
from hashidrill.core.protocols.capabilities import Processes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hashidrill.core.protocols.abc import Host


class Usage(NamedTuple):
    """What a process has used since it started; `rss_bytes` is what it holds now."""

    cpu_s: float
    rss_bytes: int
    written_bytes: int
    wchar_bytes: int


def usage_of(pid: int) -> Usage:
    """From /proc. Raises SickError when the process is gone or not ours to look at."""
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

    `write_rate` is what was sent to the storage layer, and 0 on a file system that has none (tmpfs, some FUSE);
    `wchar_rate` is what was passed to write calls, sockets included. Rates need two samples of the same process.
    They are samples of the host, or of `label`: of several agents on a host, its own stands for the host, and another
    one has a label, `nomad-1/consul`.
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
