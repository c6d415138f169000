"""Where there are no cgroups: a host's processes get their cores by being stopped, and what others stopped stays so."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from hashidrill.datacenter.local.inside.hostd import HostDaemon
from hashidrill.sandbox import syscalls

BUSY = [sys.executable, "-c", "while True: pass"]
_LONG_S = 1.5


@pytest.fixture
def busy():
    """Two processes that take all the CPU they get."""
    processes = [subprocess.Popen(BUSY) for _ in range(2)]
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def used(processes):
    """Cores that each of them got, over some time."""
    began, before = time.monotonic(), [syscalls.cpu_seconds(process.pid) for process in processes]
    time.sleep(_LONG_S)
    took = time.monotonic() - began
    return [(syscalls.cpu_seconds(process.pid) - was) / took for process, was in zip(processes, before, strict=True)]


@pytest.mark.parametrize("share", [0.1, 0.4])
def test_all_processes_of_a_host_together_get_so_many_cores(busy, share):
    """A share of what this machine has left for them now."""
    agent, canary = busy
    daemon = HostDaemon(canary.pid)
    daemon._pids["consul"] = agent.pid
    free = sum(used(busy))
    cores = free * share
    daemon.do_throttle("x", cores)
    try:
        got = sum(used(busy))
    finally:
        daemon.do_unthrottle("x")
    assert cores * 0.5 <= got <= cores * 1.35 + 0.02
    assert [syscalls.process_state(process.pid)[0] for process in busy] != ["T", "T"]
    assert sum(used(busy)) > cores * 1.35


def test_a_process_that_others_stopped_is_not_continued(busy):
    agent, canary = busy
    agent.send_signal(signal.SIGSTOP)
    daemon = HostDaemon(canary.pid)
    daemon._pids["consul"] = agent.pid
    daemon.do_throttle("x", 0.2)
    try:
        assert used(busy)[0] < 0.001
    finally:
        daemon.do_unthrottle("x")
    assert syscalls.process_state(agent.pid)[0] == "T"
    assert syscalls.process_state(canary.pid)[0] != "T"
