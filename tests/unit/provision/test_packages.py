"""What is installed, and how apt-get would be called. No process: `packages._run` is a recorder here."""

from __future__ import annotations

import subprocess

import pytest

from hashidrill.errors import MachineError
from hashidrill.provision import archive as binaries_archive
from hashidrill.provision import binaries, packages
from hashidrill.provision import build as binaries_build
from hashidrill.provision.build import Go

INSTALL = (
    "env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 install -y --no-install-recommends nftables"
)
UPDATE = "env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 update"


class System:
    """A machine made of names: `has` are its tools, `fails` the commands that fail, `uid` who asks."""

    def __init__(self, monkeypatch):
        self.has = {"apt-get", "apt-cache", "nft", "nsenter", "sudo"}
        needed = [
            packages.Package("nftables", "nft", "network faults"),
            packages.Package("util-linux", "nsenter", "shells"),
        ]
        monkeypatch.setattr(packages, "SYSTEM", needed)
        self.brings = {"nftables": "nft", "util-linux": "nsenter", "golang-go": "go"}
        self.uid = 0
        self.go_candidate = "2:1.22~2build1"
        self.fails: dict[str, int] = {}
        self.ran: list[str] = []
        self.said: list[str] = []
        self.asked: list[str] = []
        monkeypatch.setattr(packages.shutil, "which", lambda name, path=None: name if name in self.has else None)
        monkeypatch.setattr(packages.os, "geteuid", lambda: self.uid)
        monkeypatch.setattr(packages, "_run", self.run)
        monkeypatch.delenv("HASHIDRILL_NO_INSTALL", raising=False)
        monkeypatch.delenv("CI", raising=False)

    def run(self, command, *, timeout_s):
        line = " ".join(command)
        self.ran.append(line)
        if "policy" in command:
            return self._ended(command, 0, f"{command[-1]}:\n  Installed: (none)\n  Candidate: {self.go_candidate}\n")
        for part, times in self.fails.items():
            if part in line and times > 0:
                self.fails[part] -= 1
                return self._ended(command, 100, "E: Unable to locate package nftables\n")
        if "install" in command:
            self.has |= {self.brings[name] for name in command if name in self.brings}
        return self._ended(command, 0, "")

    @staticmethod
    def _ended(command, code, output):
        return subprocess.CompletedProcess(command, code, output)

    def ensure(self, wanted=(), *, install=True, answer=None):
        def ask(question):
            self.asked.append(question)
            return answer

        packages.ensure_system_packages(self.said.append, wanted=wanted, install=install, ask=ask)


@pytest.fixture
def system(monkeypatch):
    return System(monkeypatch)


def test_nothing_is_run_and_nothing_is_said_when_nothing_is_missing(system):
    system.ensure()
    assert (system.ran, system.said) == ([], [])


def test_root_installs_exactly_what_is_missing_and_says_so_beforehand(system):
    system.has.discard("nft")
    system.ensure()
    assert system.ran == [INSTALL]
    assert system.said == ["installing with apt-get: nftables (for network faults)"]


def test_nothing_is_installed_where_nobody_can_be_asked(system):
    """A script, a cron job, an editor: not even sudo is tried, and the exact command is the answer."""
    for system.uid in (0, 1000):
        system.has.discard("nft")
        with pytest.raises(MachineError, match=r"no terminal to ask on.*\(--install, or CI=true,") as caught:
            system.ensure(install=False)
        assert caught.value.exit_code == 2
        assert str(caught.value).endswith("apt-get install -y --no-install-recommends nftables")
    assert system.ran == []


def test_a_no_on_the_terminal_is_obeyed(system):
    system.has.discard("nft")
    with pytest.raises(MachineError, match="you said no, so nothing was installed"):
        system.ensure(install=False, answer=False)
    assert system.ran == []


def test_a_yes_on_the_terminal_installs_what_the_question_named_and_sudo_may_ask_for_its_password(system):
    system.uid = 1000
    system.has.discard("nft")
    system.ensure(install=False, answer=True)
    command = "sudo apt-get install -y --no-install-recommends nftables"
    assert system.asked == [f"hashidrill needs nftables (for network faults). Run `{command}` now?"]
    assert system.ran == [f"sudo {INSTALL}"]


@pytest.mark.parametrize("value", ["true", "1"])
def test_in_ci_nobody_is_asked(system, monkeypatch, value):
    monkeypatch.setenv("CI", value)
    system.has.discard("nft")
    system.ensure(install=False)
    assert (system.ran, system.asked) == ([INSTALL], [])


def test_nobody_is_asked_what_could_not_be_done_anyway(system):
    system.has -= {"nft", "apt-get"}
    with pytest.raises(MachineError, match="there is no apt-get here"):
        system.ensure(install=False, answer=True)
    assert system.asked == []


def test_an_ordinary_user_installs_through_passwordless_sudo(system):
    system.uid = 1000
    system.has.discard("nft")
    system.ensure()
    assert system.ran == ["sudo -n true", f"sudo -n {INSTALL}"]


def test_missing_package_lists_are_fetched_and_the_installation_tried_again(system):
    system.has.discard("nft")
    system.fails["install"] = 1
    system.ensure()
    assert system.ran == [INSTALL, UPDATE, INSTALL]


def test_an_installation_that_fails_shows_the_end_of_apts_output_and_the_command(system):
    system.has.discard("nft")
    system.fails["install"] = 2
    with pytest.raises(MachineError) as caught:
        system.ensure()
    assert "Unable to locate package nftables" in str(caught.value)
    assert str(caught.value).endswith(": apt-get install -y --no-install-recommends nftables")


def test_sudo_that_wants_a_password_stops_with_the_exact_command_and_exit_code_2(system):
    system.uid = 1000
    system.has -= {"nft", "nsenter"}
    system.fails["sudo -n true"] = 1
    with pytest.raises(MachineError, match="has no passwordless sudo, so nothing was installed") as caught:
        system.ensure()
    assert "lacks nft (for network faults), nsenter (for" in str(caught.value)
    assert "  sudo apt-get install -y --no-install-recommends nftables util-linux" in str(caught.value)
    assert caught.value.exit_code == 2
    assert system.ran == ["sudo -n true"]


def test_a_machine_without_sudo_stops_without_trying_it(system):
    system.uid = 1000
    system.has -= {"nft", "sudo"}
    with pytest.raises(
        MachineError, match=r"(?s)has no sudo, .*  su -c 'apt-get install -y --no-install-recommends nftables'"
    ):
        system.ensure()
    assert system.ran == []


def test_a_user_who_forbids_installing_is_obeyed_even_as_root(system, monkeypatch):
    monkeypatch.setenv("HASHIDRILL_NO_INSTALL", "1")
    system.has.discard("nft")
    with pytest.raises(MachineError, match="HASHIDRILL_NO_INSTALL is set"):
        system.ensure()
    assert system.ran == []


def test_a_system_without_apt_is_told_what_to_install(system):
    system.has -= {"nft", "apt-get"}
    with pytest.raises(MachineError, match=r"(?s)no apt-get here.*install nftables with this system's package manager"):
        system.ensure()


def test_an_installation_that_brings_no_tool_is_not_believed(system):
    system.has.discard("nft")
    system.brings.clear()
    with pytest.raises(MachineError, match="nft still cannot be found"):
        system.ensure()


@pytest.fixture
def with_consul(monkeypatch):
    """Settings for a Consul that is not here, cannot be downloaded, and could be built if there were Go."""

    def put(*, here=None, why_not="the server is down", go=None):
        monkeypatch.setattr(binaries, "locate", lambda name, version: here)
        monkeypatch.setattr(binaries_archive, "why_not", lambda product, version: why_not)
        monkeypatch.setattr(binaries_build, "find_go", lambda: go)
        return [("consul", "1.22.2")]

    return put


def test_go_is_installed_only_when_a_binary_can_be_had_no_other_way(system, with_consul):
    system.ensure(with_consul())
    assert system.ran == ["apt-cache policy golang-go", INSTALL.replace("nftables", "golang-go")]
    assert "golang-go (for building binaries that cannot be downloaded)" in system.said[0]


@pytest.mark.parametrize(
    "settings",
    [
        {"here": "a binary"},
        {"why_not": None},
        {"go": Go("/usr/bin/go", (1, 24), "go1.24")},
    ],
    ids=["it is here", "it can be downloaded", "there is Go"],
)
def test_go_is_left_alone_otherwise(system, with_consul, settings):
    system.ensure(with_consul(**settings))
    assert system.ran == []


def test_go_is_no_help_for_a_version_that_has_no_pinned_module(system, with_consul):
    with_consul()
    system.ensure([("consul", "1.21.5")])
    assert system.ran == []


def test_a_distribution_whose_go_is_too_old_is_told_how_to_get_one_and_nothing_is_installed(system, with_consul):
    """Debian 12 has Go 1.19, which cannot even read our go.mod files."""
    system.go_candidate = "2:1.19~1"
    with pytest.raises(MachineError, match=r"golang-go is 2:1\.19~1; 1\.21 or newer is needed") as caught:
        system.ensure(with_consul(go=Go("/usr/bin/go", (1, 19), "go1.19.8")))
    assert packages.GO_BY_HAND in str(caught.value)
    assert not any("install" in line for line in system.ran)


def test_the_package_lists_are_fetched_when_apt_knows_no_go_at_all(system, with_consul):
    system.go_candidate = "(none)"
    with pytest.raises(MachineError, match="no golang-go"):
        system.ensure(with_consul())
    assert UPDATE in system.ran


def test_what_to_do_by_hand_covers_packages_and_go(system, with_consul):
    system.uid, system.fails["sudo -n true"] = 1000, 1
    system.has.discard("nft")
    with pytest.raises(MachineError) as caught:
        system.ensure(with_consul())
    lines = str(caught.value).splitlines()
    assert lines[1].strip() == "sudo apt-get install -y --no-install-recommends nftables"
    assert "go.dev/dl" in lines[2]


def test_system_tools_are_found_where_ordinary_users_paths_do_not_look(monkeypatch, tmp_path):
    nft = tmp_path / "sbin/nft"
    nft.parent.mkdir()
    nft.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(packages, "SYSTEM_FOLDERS", (str(nft.parent),))
    assert packages.tool("nft") == str(nft)
    assert packages.tool("no-such-tool") is None
