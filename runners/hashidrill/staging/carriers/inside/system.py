"""Calls to the kernel and to a host's tools. Tests replace `System` with a fake."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

_TOOL_WITHIN_S = 10.0


class RefusedError(Exception):
    """Nothing was applied, and nothing will be. `name` is for programs, the text for people."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


def now_s() -> float:
    """Seconds since the host booted, including sleep: a lease also ends while a machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class System:
    """Tools by name, and processes by `PID@START`: the start time distinguishes reused pids."""

    proc = Path("/proc")
    armed_by = Path("/etc/hashidrill/armed-by")
    """The file with the keys that may arm faults here (hashidrill.staging.carriers.inside.armed)."""

    def tool(self, name: str) -> str:
        """The tool's path. Raises RefusedError."""
        path = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/bin:/bin")
        if path is None:
            raise RefusedError("tool-missing", f"{name} is not installed on this host")
        return path

    def run(self, command: list[str], text: str = "") -> tuple[int, str, str]:
        """(exit code, output, errors). Raises RefusedError if the tool is missing."""
        try:
            done = subprocess.run(
                [self.tool(command[0]), *command[1:]],
                input=text,
                capture_output=True,
                text=True,
                timeout=_TOOL_WITHIN_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return 124, "", f"{command[0]} did not end within {_TOOL_WITHIN_S:g}s"
        return done.returncode, done.stdout, done.stderr.strip()

    def stat(self, pid: int) -> tuple[str, int] | None:
        """(state, start time in clock ticks) of a process; None if it is gone."""
        try:
            fields = (self.proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            return None
        return fields[0], int(fields[19])

    def state(self, reference: str) -> str:
        """The state of that very process, like S, T, Z; "" if it is gone."""
        pid, start = parted(reference)
        found = self.stat(pid)
        return found[0] if found is not None and found[1] == start else ""

    def gone(self, reference: str) -> bool:
        """Whether that very process has ended; a zombie has."""
        return self.state(reference) in {"", "Z", "X"}

    def reference(self, pid: int) -> str:
        """`PID@START`; "" if the process is gone."""
        found = self.stat(pid)
        return "" if found is None else f"{pid}@{found[1]}"

    def signal(self, reference: str, number: int) -> bool:
        """Returns False if that very process is gone."""
        if not self.state(reference):
            return False
        try:
            os.kill(parted(reference)[0], signal.Signals(number))
        except ProcessLookupError:
            return False
        return True

    def tracers(self, pid: int) -> set[int]:
        """The tracers of a process's threads: 0 for none; empty if it has ended."""
        found: set[int] = set()
        try:
            threads = list((self.proc / str(pid) / "task").iterdir())
        except OSError:
            return found
        for thread in threads:
            try:
                status = (thread / "status").read_text()
            except OSError:
                continue  # it ended meanwhile
            found.add(int(status.partition("TracerPid:")[2].split()[0]))
        return found

    def command(self, pid: int) -> list[str]:
        """The command line of a process; empty if it has ended, or for a kernel thread."""
        try:
            return (self.proc / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
        except OSError:
            return []

    def pids(self) -> list[int]:
        return [int(one.name) for one in self.proc.iterdir() if one.name.isdigit()]

    def is_root(self) -> bool:
        return os.geteuid() == 0

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def parted(reference: str) -> tuple[int, int]:
    pid, _, start = reference.partition("@")
    return int(pid or 0), int(start or 0)
