"""strace on running processes: whether it can be had here, what merely attaching costs, and starting it."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from hashidrill.staging.carriers.inside.system import RefusedError, System, parted

_PDEATHSIG = 1
_OLDEST = (4, 22)
"""The first strace with delay_enter."""
_NOBODY_MAY = "3"
_ATTACHES_WITHIN_S = 3.0
_METER = """
import errno, json, os, sys, time
file = os.memfd_create("hashidrill-meter")
def timed(call):
    began, number = time.perf_counter(), 0
    try:
        call()
    except OSError as error:
        number = error.errno
    return time.perf_counter() - began, errno.errorcode.get(number, "")
for line in sys.stdin:
    if line.strip() == "fsync":
        print(json.dumps(timed(lambda: os.fsync(file))), flush=True)
    else:
        print(json.dumps([sorted(timed(os.getppid) for _ in range(2000))[1000][0], ""]), flush=True)
"""
"""A process of our own that makes system calls and times them, when asked to on its standard input."""


def check(system: System, references: list[str]) -> None:
    """Raises RefusedError where strace cannot slow these processes."""
    _, said, _ = system.run(["strace", "-V"])
    version = said.partition("version ")[2].split()[:1]
    numbers = tuple(int(part) for part in (version or ["0"])[0].split(".")[:2] if part.isdigit())
    if numbers < _OLDEST:
        raise RefusedError("strace-old", f"strace {'.'.join(map(str, numbers))} cannot delay calls; 4.22 or later can")
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    if scope.exists() and scope.read_text().strip() == _NOBODY_MAY:
        raise RefusedError("ptrace-forbidden", "this kernel lets nobody trace (kernel.yama.ptrace_scope is 3)")
    for reference in references:
        if system.state(reference) in {"", "Z", "X"}:
            raise RefusedError("process-gone", f"process {reference} is gone")
        if others := system.tracers(parted(reference)[0]) - {0}:
            raise RefusedError("traced", f"process {reference} is traced by process {min(others)} already")


class Strace:
    """A running strace. It ends with the thread that started it, even if that one is killed."""

    def __init__(self, system: System, references: list[str], calls: str, inject: str = "") -> None:
        """Returns once it traces every thread. Raises RefusedError."""
        pids = [parted(one)[0] for one in references]
        command = [
            system.tool("strace"),
            "-f",
            "-qq",
            "-o",
            "/dev/null",
            "-e",
            "signal=none",
            "-e",
            f"trace={calls}",
            *(["-e", f"inject={calls}:{inject}"] if inject else []),
            *(f"--attach={pid}" for pid in pids),
        ]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            preexec_fn=_dies_with_parent,  # noqa: PLW1509 - no thread runs here; prctl has no other way in
        )
        self.reference = system.reference(self.process.pid)
        for _ in range(int(_ATTACHES_WITHIN_S / 0.02)):
            if all(system.tracers(pid) == {self.process.pid} for pid in pids):
                return
            if self.process.poll() is not None:
                break
            system.sleep(0.02)
        self.end()
        said = self.process.stderr.read().decode().strip() if self.process.stderr else ""
        raise RefusedError("strace", f"strace did not attach to {', '.join(references)}: {said or 'no reason given'}")

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(2.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _dies_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGTERM)
    os.setsid()


def reap(pid: int) -> None:
    """Takes note of the end of a child. Raises ChildProcessError where it is none of ours."""
    if pid:
        os.waitpid(pid, os.WNOHANG)


class Meter:
    """A process that makes system calls, to be traced beside the others. It ends with whoever asks it."""

    def __init__(self, system: System) -> None:
        self._process = subprocess.Popen(
            [sys.executable or system.tool("python3"), "-c", _METER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.reference = system.reference(self._process.pid)

    def asked(self, what: str) -> tuple[float, str]:
        """(seconds, name of the error or "") of one `fsync`, or of the median of 2000 calls of `getppid`."""
        if self._process.stdin is None or self._process.stdout is None:
            raise RefusedError("meter", "the meter has no pipes")
        try:
            self._process.stdin.write(what.encode() + b"\n")
            self._process.stdin.flush()
            seconds, error = json.loads(self._process.stdout.readline())
        except (OSError, ValueError):
            raise RefusedError("meter", "the process that times system calls on this host has ended") from None
        return float(seconds), str(error)

    def cost(self, system: System) -> dict[str, float]:
        """What a system call takes, in microseconds: alone, and with strace merely attached."""
        alone = self.asked("call")[0]
        strace = Strace(system, [self.reference], "fsync,fdatasync")
        try:
            attached = self.asked("call")[0]
        finally:
            strace.end()
        return {"call_us": round(alone * 1e6, 2), "call_traced_us": round(attached * 1e6, 2)}

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


def as_injected(inject: str, seconds: float, error: str) -> bool:
    """Whether a call of the meter shows what strace was told to do to it."""
    what, _, value = inject.partition("=")
    return error == value if what == "error" else not error and seconds >= int(value) / 1e6
