"""The daemon of a host starts an agent again after it was killed, even while the kernel is still busy ending it."""

from __future__ import annotations

import sys

import anyio
import pytest

from hashidrill.datacenter.local.inside.hostd import HostDaemon
from hashidrill.sandbox import syscalls
from hashidrill.util.wait import wait_until

DYING = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(1.5,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""
"""Its first thread has ended and another has not, as in a process with many threads for a moment when it dies."""


@pytest.fixture
def daemon(tmp_path):
    one = HostDaemon(canary_pid=0)
    yield one, str(tmp_path / "log")
    if (now := one.do_agent("consul"))["pid"]:
        syscalls.signal_process(now["pid"], now["start_time"], 9)
        one._end_of("consul")


def test_an_agent_whose_threads_are_still_ending_is_started_again(daemon):
    """Seen on a busy machine: the start found a zombie, took it for a running agent, and started nothing."""
    one, log = daemon
    first = one.do_start("consul", argv=[sys.executable, "-c", DYING], log=log)

    async def is_a_zombie():
        return (one.do_agent("consul").get("state") == "Z" or None), "its first thread runs"

    anyio.run(lambda: wait_until("a process that is dying", is_a_zombie, within_s=10, gap_s=0.01))
    second = one.do_start("consul", argv=["/bin/sleep", "60"], log=log)
    assert second["pid"] != first["pid"]
    assert second["state"] != "Z"


def test_an_agent_that_runs_is_left_alone(daemon):
    one, log = daemon
    first = one.do_start("consul", argv=["/bin/sleep", "60"], log=log)
    assert one.do_start("consul")["pid"] == first["pid"]
