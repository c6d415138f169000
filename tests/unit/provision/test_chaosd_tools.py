"""What chaosd starts on hosts of ours: `doctor` says what is missing, `up --kubernetes` refuses before it starts."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from hashidrill.cli.app import app
from hashidrill.provision import machine, packages
from hashidrill.services.chaos_mesh import machine as machines


@pytest.fixture
def only_tc(monkeypatch):
    for module in (machine, machines):
        monkeypatch.setattr(module, "tool", lambda name: "/usr/sbin/tc" if name == "tc" else None)
    monkeypatch.setattr(packages.shutil, "which", lambda name, **_: f"/usr/bin/{name}")
    monkeypatch.setattr(packages.os, "geteuid", lambda: 0)


def test_doctor_says_what_is_missing_what_it_costs_and_how_to_get_it(only_tc):
    found = machine.chaosd_tools()
    assert not found.ok
    assert not found.required, "other runs need none of it"
    assert found.detail == "no stress-ng, no iptables, no ipset"
    assert "up --kubernetes" in found.cost
    assert found.fix == "apt-get install -y --no-install-recommends stress-ng iptables ipset"


def test_doctor_names_them_where_all_are_there(monkeypatch):
    monkeypatch.setattr(machine, "tool", lambda name: f"/usr/sbin/{name}")
    found = machine.chaosd_tools()
    assert (found.ok, found.detail, found.fix) == (True, "stress-ng, iptables, ipset, tc", "")


def test_up_refuses_in_one_message_with_the_command_and_starts_nothing(only_tc):
    done = CliRunner().invoke(app, ["up", "--kubernetes"])
    assert done.exit_code != 0
    said = " ".join(str(done.exception).split())
    assert "no stress-ng and no iptables and no ipset, which chaosd starts; get it with: apt-get install" in said
    assert said.endswith("stress-ng iptables ipset")
