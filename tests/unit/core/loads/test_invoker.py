"""Clients under test run as the user who called sudo."""

import os
import pwd

import pytest

from hashidrill.core.loads import clients
from hashidrill.core.loads.clients import as_invoker
from hashidrill.core.util import processes

COMMAND = ["curl", "{url}"]
NOBODY = pwd.getpwnam("nobody")
SUDO = {"PATH": "/usr/bin", "HOME": "/root", "USER": "root", "SUDO_UID": str(NOBODY.pw_uid), "SUDO_GID": "65534"}


@pytest.fixture(autouse=True)
def root(monkeypatch, tmp_path):
    """As root of the machine, with setpriv at hand."""
    ids = tmp_path / "uid_map"
    ids.write_text("         0          0 4294967295\n")
    monkeypatch.setattr(processes, "ALL_USERS", ids)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(clients, "tool", lambda name: f"/usr/bin/{name}")
    return ids


def test_under_sudo_a_client_runs_as_the_user_who_called_it_without_any_right_to_more():
    command, environment = as_invoker(COMMAND, SUDO)
    assert command == [
        "/usr/bin/setpriv",
        f"--reuid={NOBODY.pw_uid}",
        "--regid=65534",
        "--init-groups",
        "--inh-caps=-all",
        "--bounding-set=-all",
        "--no-new-privs",
        "--",
        *COMMAND,
    ]
    assert (environment["HOME"], environment["USER"], environment["LOGNAME"]) == (NOBODY.pw_dir, "nobody", "nobody")
    assert environment["PATH"] == "/usr/bin"


def test_a_user_without_an_account_has_no_groups():
    command, environment = as_invoker(COMMAND, {**SUDO, "SUDO_UID": "54321"})
    assert "--clear-groups" in command
    assert environment["HOME"] == "/root"


@pytest.mark.parametrize(
    "environment", [{}, {**SUDO, "SUDO_UID": "0"}, {**SUDO, "SUDO_UID": "--x"}, {**SUDO, "SUDO_GID": ""}]
)
def test_where_nobody_called_sudo_the_command_is_as_it_was(environment):
    assert as_invoker(COMMAND, environment) == (COMMAND, environment)


def test_in_an_ordinary_users_namespace_there_is_nobody_to_become(root):
    """`sudo -u somebody hashidrill ...` leaves SUDO_UID, and 0 is somebody there."""
    root.write_text("         0       1000          1\n")
    assert as_invoker(COMMAND, SUDO) == (COMMAND, SUDO)


def test_without_setpriv_the_command_is_as_it_was(monkeypatch):
    monkeypatch.setattr(clients, "tool", lambda _name: None)
    assert as_invoker(COMMAND, SUDO) == (COMMAND, SUDO)
