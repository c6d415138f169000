"""Little CPU for running processes: one of ours stops and continues them, so that they share a number of cores."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from hashidrill.staging.carriers.inside.system import RefusedError, System, parted

if TYPE_CHECKING:
    from collections.abc import Callable

_PERIOD_S, _LOOK_S = 0.1, 0.001
_PDEATHSIG, _CPUCLOCK_SCHED = 1, 2
_BURN_S = 0.6
_OVER, _LATE = 1.35, 0.05
"""What may be measured above the quota in a short time (hashidrill.core.faults.cpu)."""
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


class Burner:
    """A process of ours that uses all the CPU that it gets, when it is asked to. It ends with whoever asks it."""

    def __init__(self, system: System) -> None:
        self._process = subprocess.Popen(
            [sys.executable or system.tool("python3"), "-c", _BURNER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.reference = system.reference(self._process.pid)

    def cores(self, threads: int) -> float:
        """What that many busy threads get together. Raises RefusedError."""
        if self._process.stdin is None or self._process.stdout is None:
            raise RefusedError("burner", "the burner has no pipes")
        try:
            self._process.stdin.write(json.dumps([threads, _BURN_S]).encode() + b"\n")
            self._process.stdin.flush()
            return float(self._process.stdout.readline())
        except (OSError, ValueError):
            raise RefusedError("burner", "the process that measures CPU on this host has ended") from None


def at_most(cores: float) -> float:
    """What a busy process of ours may get under a quota of `cores`, in a short time."""
    return cores * _OVER + _LATE


def throttler(system: System, references: list[str], cores: float) -> str:
    """Starts the process that stops and continues them. It ends with the agent, and continues them then."""
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
    """In each period they run until they have used their part of it; what was used too much is owed to the next one."""
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
    """All of them go on."""
    for one in references:
        if system.state(one) == "T":
            system.signal(one, signal.SIGCONT)
