"""Agents are under test: under root they run as a user who owns nothing of the machine, where there is such a user."""

import os
import pwd
from pathlib import Path

import pytest

from hashidrill.core.util import processes
from hashidrill.lab.local import hosts
from hashidrill.lab.local.hosts import AgentUser, agent_user

ROOT = Path("/tmp/hashidrill-1")
EVERYBODY = "         0          0 4294967295\n"
ALL_CAPABILITIES, WITHOUT_PTRACE = "000001ffffffffff", "000001fffff7ffff"


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Root of a machine; what its kernel says of us can be changed."""
    ids, status = tmp_path / "uid_map", tmp_path / "status"
    ids.write_text(EVERYBODY)
    status.write_text(f"Name:\tpython\nCapEff:\t{ALL_CAPABILITIES}\n")
    monkeypatch.setattr(processes, "ALL_USERS", ids)
    monkeypatch.setattr(hosts, "_STATUS", status)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for name in ("SUDO_UID", "SUDO_GID"):
        monkeypatch.delenv(name, raising=False)
    return ids, status


def test_root_runs_agents_as_nobody(machine):
    nobody = pwd.getpwnam("nobody")
    assert agent_user(ROOT) == AgentUser(nobody.pw_uid, nobody.pw_gid)


def test_under_sudo_agents_are_the_callers(machine, monkeypatch):
    monkeypatch.setenv("SUDO_UID", "1000")
    monkeypatch.setenv("SUDO_GID", "1001")
    assert agent_user(ROOT) == AgentUser(1000, 1001)


@pytest.mark.parametrize("uid", ["0", "", "me"])
def test_a_caller_who_is_root_is_no_other_user(machine, monkeypatch, uid):
    monkeypatch.setenv("SUDO_UID", uid)
    monkeypatch.setenv("SUDO_GID", "0")
    assert agent_user(ROOT).uid == pwd.getpwnam("nobody").pw_uid


def test_an_ordinary_user_has_no_other_to_offer(machine):
    machine[0].write_text("         0       1000          1\n")
    assert agent_user(ROOT) is None


@pytest.mark.parametrize("status", [f"CapEff:\t{WITHOUT_PTRACE}\n", "CapEff:\tbroken\n", ""])
def test_a_root_that_could_not_watch_another_users_processes_keeps_them_its_own(machine, status):
    machine[1].write_text(status)
    assert agent_user(ROOT) is None


def test_the_user_gets_into_its_host_and_sees_nothing_on_the_way(tmp_path, monkeypatch):
    root, host = tmp_path / "sandbox", tmp_path / "sandbox" / "hosts" / "consul-1"
    host.mkdir(parents=True)
    given = []
    monkeypatch.setattr(os, "chown", lambda path, uid, gid: given.append((path, uid, gid)))
    AgentUser(1000, 1001).reaches(root, host)
    modes = [path.stat().st_mode & 0o777 for path in (root, root / "hosts", host)]
    assert modes == [0o711, 0o711, 0o750]
    assert given == [(host, -1, 1001)]


def test_a_folder_that_only_root_can_enter_keeps_agents_roots(machine, monkeypatch, tmp_path):
    another = str(tmp_path.stat().st_uid + 1)  # nobody may run this test, and then it is nobody's folder
    monkeypatch.setenv("SUDO_UID", another)
    monkeypatch.setenv("SUDO_GID", another)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    assert agent_user(closed / "hashidrill-1") is None
