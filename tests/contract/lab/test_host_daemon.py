"""The daemon of a host starts an agent again after it was killed, even while the kernel is still busy ending it."""

import os
import shutil
import sys
import threading
import time
from pathlib import Path

import anyio
import pytest

from hashidrill.core.util import syscalls
from hashidrill.core.util.wait import wait_until
from hashidrill.lab.local.inside.hostd import HostDaemon

DYING = """
import ctypes, os, threading, time
def dies():
    while not os.path.exists({end!r}):
        time.sleep(0.02)
threading.Thread(target=dies).start()
ctypes.CDLL(None).pthread_exit(None)
"""
"""Its first thread has ended and another has not, as in a process with many threads for a moment when it dies."""


@pytest.fixture
def daemon(tmp_path):
    one = HostDaemon(canary_pid=0, ends_within_s=10)
    yield one, str(tmp_path / "log")
    if (now := one.do_agent("consul"))["pid"]:
        syscalls.signal_process(now["pid"], now["start_time"], 9)
        os.waitpid(now["pid"], 0)


def dying(one, log):
    """An agent that has not quite ended until `ends(log)`."""
    first = one.do_start("consul", argv=[sys.executable, "-c", DYING.format(end=f"{log}.end")], log=log)

    async def is_a_zombie():
        return (one.do_agent("consul").get("state") == "Z" or None), "its first thread runs"

    anyio.run(lambda: wait_until("a process that is dying", is_a_zombie, within_s=10, gap_s=0.01))
    return first


def ends(log):
    Path(f"{log}.end").touch()


@pytest.mark.lie
def test_an_agent_whose_threads_are_still_ending_is_started_again(daemon):
    """Seen on a busy machine: the start found a zombie, took it for a running agent, and started nothing."""
    one, log = daemon
    first = dying(one, log)
    soon = threading.Timer(0.5, ends, (log,))
    soon.start()
    second = one.do_start("consul", argv=["/bin/sleep", "60"], log=log)
    soon.join()
    assert second["pid"] != first["pid"]
    assert second["state"] != "Z"


@pytest.mark.lie
def test_an_agent_that_does_not_end_is_an_error_in_time_and_not_a_wait_without_end(daemon):
    """A thread in the kernel (a disk that answers nothing) cannot be killed; whoever reverts must be told so."""
    one, log = daemon
    first = dying(one, log)
    one._ends_within_s = 0.5
    began = time.monotonic()
    answer = one.do_start("consul", argv=["/bin/sleep", "60"], log=log)
    assert time.monotonic() - began < 5
    assert f"agent consul (pid {first['pid']}) was killed and has not ended within 0.5s" in answer["error"]
    assert "1 of its threads are left" in answer["error"]


def test_other_requests_are_answered_while_an_agent_is_dying(daemon):
    one, log = daemon
    first = dying(one, log)
    start = threading.Thread(target=one.do_start, args=("consul",), kwargs={"argv": ["/bin/sleep", "60"], "log": log})
    start.start()
    for _ in range(5):
        assert one.do_agent("consul")["pid"] == first["pid"]
        assert start.is_alive(), "it waits for the end of the one before"
        time.sleep(0.05)
    ends(log)
    start.join(10)
    assert one.do_agent("consul")["state"] != "Z"


def test_an_agent_that_runs_is_left_alone(daemon):
    one, log = daemon
    first = one.do_start("consul", argv=["/bin/sleep", "60"], log=log)
    assert one.do_start("consul")["pid"] == first["pid"]


def numbers(one, log, *, asks="id -u; id -g", **how):
    """User and group as the program itself sees them."""
    one.do_start("nomad", argv=["/bin/sh", "-c", asks], log=log, **how)

    async def ended():
        return (one.do_agent("nomad")["pid"] is None or None), "it runs"

    anyio.run(lambda: wait_until("the program to end", ended, within_s=10, gap_s=0.01))
    return Path(log).read_text().split()


@pytest.mark.needs("datacenter")
def test_a_program_that_takes_0_for_roots_rights_sees_another_number(daemon):
    """A Nomad client that sees 0 mounts and makes cgroups, which no agent may. Its user stays the same."""
    one, log = daemon
    assert numbers(one, log, as_root=False) == ["1", "1"]
    assert Path(log).stat().st_uid == os.geteuid()


@pytest.mark.lie
@pytest.mark.needs("datacenter")
def test_what_belongs_to_somebody_else_does_not_look_like_its_own(daemon, tmp_path):
    """Nomad takes a `nomad.slice` of its own number for a delegated cgroup (v2), and fails to make cgroups in it."""
    theirs = Path("/proc/version")
    if os.geteuid() == 0:
        theirs = tmp_path / "theirs"
        theirs.touch()
        os.chown(theirs, 12345, 12345)
    own, seen = numbers(*daemon, asks=f"id -u; stat -c %u {theirs}", as_root=False)
    assert own not in {"0", seen}


def test_any_other_program_sees_the_number_that_it_has(daemon):
    assert numbers(*daemon) == [str(os.geteuid()), str(os.getegid())]


@pytest.mark.lie
def test_two_versions_of_a_program_are_two_files_for_an_agents_user(tmp_path, monkeypatch):
    """Both are called `consul`: an upgrade, or an agent of a host that has two products."""
    monkeypatch.setattr(syscalls, "mount", lambda source, there, *_: shutil.copy(source, there))
    old = os.umask(0o077)
    try:
        one = HostDaemon(canary_pid=0, folder=str(tmp_path / "host"), user=[0, 0])
        for version in ("1.10.3", "1.22.2"):
            program = tmp_path / version / "consul"
            program.parent.mkdir()
            program.write_text(version)
        there = [one._reachable(str(tmp_path / version / "consul")) for version in ("1.10.3", "1.22.2", "1.10.3")]
    finally:
        os.umask(old)
    assert [Path(each).read_text() for each in there] == ["1.10.3", "1.22.2", "1.10.3"]
    assert {Path(each).parent.stat().st_mode & 0o777 for each in there} == {0o755}
