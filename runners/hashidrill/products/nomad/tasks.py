"""The processes of Nomad's tasks, read from /proc, independently of Nomad's servers and agents."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import anyio

from hashidrill.core.protocols.abc import Host, Hosts
from hashidrill.core.protocols.capabilities import AgentFiles

_ALLOC, _JOB, _FOLDER = "NOMAD_ALLOC_ID", "NOMAD_JOB_ID", "NOMAD_ALLOC_DIR"
_AFTER_NAME = 2
"""/proc/PID/stat counts fields from 1; the first after the name, which may hold spaces, is the third."""
_STATE, _START = 3 - _AFTER_NAME - 1, 22 - _AFTER_NAME - 1


@dataclass(frozen=True)
class TaskProcess:
    """One process of a task. Only this process has this `pid` and this `start_time` (clock ticks since boot)."""

    alloc: str
    job: str
    pid: int
    start_time: int
    state: str
    catches: frozenset[int] = frozenset()
    """The signals for which it has a handler."""

    @property
    def reference(self) -> str:
        return f"{self.pid}@{self.start_time}"


@runtime_checkable
class TaskProcesses(Protocol):
    """See the processes of Nomad's tasks on the host."""

    async def task_processes(self) -> Sequence[TaskProcess]: ...


class ProcTasks:
    """Finds the tasks of one host: Nomad puts each task's identity and folder into the task's environment."""

    def __init__(self, host: Host, proc: Path = Path("/proc")) -> None:
        self._host = host
        self._proc = proc

    async def task_processes(self) -> Sequence[TaskProcess]:
        return await anyio.to_thread.run_sync(self._look)

    def _look(self) -> list[TaskProcess]:
        disk = f"{self._host.use(AgentFiles).data}{os.sep}"
        found = (_task(folder, disk) for folder in self._proc.iterdir() if folder.name.isdecimal())
        return [task for task in found if task is not None]


def _task(folder: Path, disk: str) -> TaskProcess | None:
    try:
        told = dict(
            entry.split("=", 1)
            for entry in (folder / "environ").read_text(errors="replace").split("\0")
            if entry.startswith("NOMAD_") and "=" in entry
        )
        if _ALLOC not in told or not told.get(_FOLDER, "").startswith(disk):
            return None
        fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
        lines = (folder / "status").read_text(errors="replace").splitlines()
    except OSError:
        return None
    caught = next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")), 0)
    return TaskProcess(
        told[_ALLOC],
        told.get(_JOB, ""),
        int(folder.name),
        int(fields[_START]),
        fields[_STATE],
        frozenset(number for number in range(1, 65) if caught >> (number - 1) & 1),
    )


async def on_all_nodes(hosts: Hosts) -> list[TaskProcess]:
    """The processes of tasks on every host whose processes can be read."""
    found: list[TaskProcess] = []
    for host in hosts.all_hosts():
        if host.can(TaskProcesses):
            found += await host.use(TaskProcesses).task_processes()
    return found
