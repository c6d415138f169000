"""Where there are no cgroups: a host's processes get their cores by being stopped, and what others stopped stays so."""

import signal
import subprocess
import sys
import time

import anyio
import pytest

from hashidrill.core.util import syscalls
from hashidrill.core.util.wait import wait_until
from hashidrill.lab.local.inside.hostd import HostDaemon
from polled import wait

BUSY = [sys.executable, "-c", "while True: pass"]
_LONG_S = 1.5
_WITHIN_S = 40
"""Where the machine holds the daemon up, processes get too much, and owe it: their average is right after a while."""


@pytest.fixture
def busy():
    """Two processes that take all the CPU they get."""
    processes = [subprocess.Popen(BUSY) for _ in range(2)]
    yield processes
    for process in processes:
        process.kill()
        process.wait()


class Cores:
    """CPU seconds that these processes get a second together, since it was made."""

    def __init__(self, processes):
        self._pids = [process.pid for process in processes]
        self._began, self._before = time.monotonic(), self._spent()

    def _spent(self):
        return sum(syscalls.cpu_seconds(pid) for pid in self._pids)

    def now(self):
        return (self._spent() - self._before) / (time.monotonic() - self._began)

    def settle(self, what, *, least, most):
        """Waits until they are between these, over `_LONG_S` or over as much longer as it takes."""

        async def look():
            got = self.now()
            return least <= got <= most or None, f"{got:.3f} cores, expected {least:.3f} to {most:.3f}"

        time.sleep(_LONG_S)
        anyio.run(lambda: wait_until(what, look, within_s=_WITHIN_S))


def free(processes):
    cores = Cores(processes)
    time.sleep(_LONG_S)
    return cores.now()


def state(process):
    return syscalls.process_state(process.pid)[0]


@pytest.mark.long
@pytest.mark.lie
@pytest.mark.parametrize("share", [0.1, 0.4])
def test_all_processes_of_a_host_together_get_so_many_cores(busy, share):
    """A share of what this machine has left for them now."""
    agent, canary = busy
    daemon = HostDaemon(canary.pid)
    daemon._pids["consul"] = agent.pid
    cores = free(busy) * share
    daemon.do_throttle("x", cores)
    try:
        for which in ("first", "second"):  # they neither get all of it at the beginning, nor at the end
            Cores(busy).settle(f"their cores, the {which} time", least=cores * 0.5, most=cores * 1.35 + 0.02)
    finally:
        daemon.do_unthrottle("x")
    assert "T" not in {state(process) for process in busy}
    wait("more than their cores", lambda: free(busy) > cores * 1.35, within_s=_WITHIN_S)


@pytest.mark.lie
def test_a_process_that_others_stopped_is_not_continued(busy):
    agent, canary = busy
    agent.send_signal(signal.SIGSTOP)
    wait("the agent to stand", lambda: state(agent) == "T")
    daemon = HostDaemon(canary.pid)
    daemon._pids["consul"] = agent.pid
    got = Cores([agent])
    daemon.do_throttle("x", 0.02)  # less than any machine has left
    try:
        for _ in range(5):
            wait("the canary to be stopped", lambda: state(canary) == "T", gap_s=0.002)
            wait("the canary to be continued", lambda: state(canary) != "T", gap_s=0.002)
    finally:
        daemon.do_unthrottle("x")
    assert got.now() == 0
    assert state(agent) == "T"
    assert state(canary) != "T"
