"""Slows running processes: their system calls by strace, their CPU time by stopping and continuing them."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hashidrill.staging.carriers.inside.system import RefusedError, System, parted

if TYPE_CHECKING:
    from collections.abc import Callable

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
"""A process that makes and times system calls on request from its standard input."""


def check(system: System, references: list[str]) -> None:
    """Raises RefusedError if strace cannot slow these processes."""
    _, said, _ = system.run(["strace", "-V"])
    version = said.partition("version ")[2].split()[:1]
    numbers = tuple(int(part) for part in (version or ["0"])[0].split(".")[:2] if part.isdigit())
    if numbers < _OLDEST:
        raise RefusedError("strace-old", f"strace {'.'.join(map(str, numbers))} cannot delay calls; 4.22 or later can")
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    if scope.exists() and scope.read_text().strip() == _NOBODY_MAY:
        raise RefusedError(
            "ptrace-forbidden", "this kernel forbids ptrace for all users (kernel.yama.ptrace_scope is 3)"
        )
    for reference in references:
        if system.gone(reference):
            raise RefusedError("process-gone", f"process {reference} is gone")
        if others := system.tracers(parted(reference)[0]) - {0}:
            raise RefusedError("traced", f"process {reference} is traced by process {min(others)} already")


class Strace:
    """A running strace. The child ends with the thread that started it, even if that thread is killed."""

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


class Helper:
    """A process that answers each line with a line. The program ends when its standard input ends."""

    ended = ("", "")
    """The name and the text of the refusal after it has ended."""

    def __init__(self, system: System, code: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable or system.tool("python3"), "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.reference = system.reference(self._process.pid)

    def _ask(self, line: str) -> Any:
        try:
            self._process.stdin.write(line.encode() + b"\n")  # type: ignore[union-attr]
            self._process.stdin.flush()  # type: ignore[union-attr]
            return json.loads(self._process.stdout.readline())  # type: ignore[union-attr]
        except (OSError, ValueError):
            raise RefusedError(*self.ended) from None


class Meter(Helper):
    """Makes system calls and times them, to be traced together with the agents."""

    ended = ("meter", "the process that times system calls on this host has ended")

    def __init__(self, system: System) -> None:
        super().__init__(system, _METER)

    def asked(self, what: str) -> tuple[float, str]:
        """(seconds, name of the error or "") of one `fsync`, or of the median of 2000 calls of `getppid`."""
        seconds, error = self._ask(what)
        return float(seconds), str(error)

    def cost(self, system: System) -> dict[str, float]:
        """The time of a system call, in microseconds: alone, and with strace merely attached."""
        alone = self.asked("call")[0]
        strace = Strace(system, [self.reference], "fsync,fdatasync")
        try:
            attached = self.asked("call")[0]
        finally:
            strace.end()
        return {"call_us": round(alone * 1e6, 2), "call_traced_us": round(attached * 1e6, 2)}


def as_injected(inject: str, seconds: float, error: str) -> bool:
    """Whether a call of the meter shows strace's requested effect."""
    what, _, value = inject.partition("=")
    return error == value if what == "error" else not error and seconds >= int(value) / 1e6


_PERIOD_S, _LOOK_S = 0.1, 0.001
_CPUCLOCK_SCHED = 2
_BURN_S = 0.6
_OVER, _LATE = 1.35, 0.05
"""Tolerance above the quota for a short measurement (hashidrill.core.faults.cpu)."""
_BURNER = """
import hashlib, json, sys, threading, time
def burn(ends):
    while time.monotonic() < ends:
        hashlib.sha256(bytes(1 << 15))
for line in sys.stdin:
    threads, seconds = json.loads(line)
    began, used = time.monotonic(), time.process_time()
    busy = [threading.Thread(target=burn, args=(began + seconds,)) for _ in range(threads)]
    for one in busy:
        one.start()
    for one in busy:
        one.join()
    print((time.process_time() - used) / (time.monotonic() - began), flush=True)
"""


class Burner(Helper):
    """Uses all available CPU on request."""

    ended = ("burner", "the process that measures CPU on this host has ended")

    def __init__(self, system: System) -> None:
        super().__init__(system, _BURNER)

    def cores(self, threads: int) -> float:
        """The cores that `threads` busy threads get together. Raises RefusedError."""
        return float(self._ask(json.dumps([threads, _BURN_S])))


def at_most(cores: float) -> float:
    """The most that a busy process may get under a quota of `cores`, in a short time."""
    return cores * _OVER + _LATE


def throttler(system: System, references: list[str], cores: float) -> str:
    """Starts a process that stops and continues `references`. It ends with the agent, and continues them then."""
    agent = os.getpid()
    pid = os.fork()
    if not pid:
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
                signal.signal(number, signal.SIG_IGN)
            ended: list[int] = []
            signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
            ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGTERM)
            _cycle(system, references, cores, lambda: bool(ended) or os.getppid() != agent)
        finally:
            os._exit(0)
    return system.reference(pid)


def _cycle(system: System, references: list[str], cores: float, over: Callable[[], bool]) -> None:
    """In each period the processes run until they have used their share; overuse is deducted from the next period."""
    spent = {one: _spent_s(one) for one in references}
    allowed = 0.0
    try:
        while not over():
            ends = time.monotonic() + _PERIOD_S
            allowed = min(allowed, 0.0) + cores * _PERIOD_S
            if allowed > 0:
                continued(system, references)
            while time.monotonic() < ends and not over():
                if allowed > 0:
                    time.sleep(_LOOK_S)
                    for one in references:
                        now = _spent_s(one)
                        allowed -= max(0.0, now - spent[one])
                        spent[one] = now
                else:
                    for one in references:
                        if system.state(one) not in {"T", ""}:
                            system.signal(one, signal.SIGSTOP)
                    time.sleep(max(0.0, ends - time.monotonic()))
    finally:
        continued(system, references)


def _spent_s(reference: str) -> float:
    try:
        return time.clock_gettime(~parted(reference)[0] << 3 | _CPUCLOCK_SCHED)
    except OSError:
        return 0.0


def continued(system: System, references: list[str]) -> None:
    """Continues those that are stopped."""
    for one in references:
        if system.state(one) == "T":
            system.signal(one, signal.SIGCONT)
