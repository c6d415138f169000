"""What chaosd starts on our hosts: `doctor` says what is missing, `lab up --kubernetes` gets it or starts nothing."""

import pytest
from typer.testing import CliRunner

from hashidrill.faces.cli import datacenter
from hashidrill.faces.cli.app import app
from hashidrill.lab.provision import machine, packages


@pytest.fixture
def only_tc(monkeypatch):
    for module in (machine, packages):
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


def test_up_refuses_in_one_message_with_the_command_and_starts_nothing(only_tc, monkeypatch):
    monkeypatch.setenv(packages.NO_INSTALL, "1")
    monkeypatch.setattr(datacenter.running, "up", lambda *_, **__: pytest.fail("it was started"))
    done = CliRunner().invoke(app, ["lab", "up", "--kubernetes"])
    assert done.exit_code != 0
    said = " ".join(str(done.exception).split())
    assert "lacks stress-ng (for chaosd), iptables (for chaosd), ipset (for chaosd); HASHIDRILL_NO_INSTALL" in said
    assert said.endswith("stress-ng iptables ipset")
