"""What is installed, and how apt-get would be called. No process: `packages._run` is a recorder here."""

import subprocess

import pytest

from hashidrill.core.errors import MachineError
from hashidrill.core.util import commands
from hashidrill.lab.provision import packages

INSTALL = (
    "env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 install -y --no-install-recommends nftables"
)
UPDATE = "env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 update"


class System:
    """A machine made of names: `has` are its tools, `fails` the commands that fail, `uid` who asks."""

    def __init__(self, monkeypatch):
        self.has = {"apt-get", "apt-cache", "nft", "nsenter", "sudo"}
        self.brings = {"nftables": "nft", "util-linux": "nsenter", "golang-go": "go", "strace": "strace", "wrk": "wrk"}
        self.brings |= {"golang-1.23-go": "/usr/lib/go-1.23/bin/go"}
        self.uid = 0
        self.go_candidate = "2:1.22~2build1"
        self.named_go: list[int] = []
        self.fails: dict[str, int] = {}
        self.ran: list[str] = []
        self.said: list[str] = []
        self.asked: list[str] = []
        monkeypatch.setattr(packages.shutil, "which", lambda name, path=None: name if name in self.has else None)
        monkeypatch.setattr(packages.os, "geteuid", lambda: self.uid)
        monkeypatch.setattr(packages, "_run", self.run)
        monkeypatch.setattr(packages, "_permission", packages._Permission())
        monkeypatch.delenv("HASHIDRILL_NO_INSTALL", raising=False)
        monkeypatch.delenv("CI", raising=False)

    def run(self, command, *, timeout_s):
        line = " ".join(command)
        self.ran.append(line)
        if "policy" in command:
            return self._ended(command, 0, f"{command[-1]}:\n  Installed: (none)\n  Candidate: {self.go_candidate}\n")
        if "search" in command:
            return self._ended(command, 0, "".join(f"golang-1.{minor}-go - Go\n" for minor in self.named_go))
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

    def ensure(self, *, install=True, answer=None):
        """nft and nsenter, as a command with or without `--install` that needs them."""
        packages.allow_installing(install)
        needed = (
            packages.Package("nftables", "nft", "network faults"),
            packages.Package("util-linux", "nsenter", "a shell"),
        )
        self.install(*(package for package in needed if packages.tool(package.tool) is None), answer=answer)

    def install(self, *asked, answer=None):
        if asked:
            packages.install_packages(asked, self.said.append, ask=self._ask(answer))

    def _ask(self, answer):
        return lambda question: self.asked.append(question) or answer


@pytest.fixture
def system(monkeypatch):
    return System(monkeypatch)


def test_nothing_is_run_and_nothing_is_said_when_nothing_is_missing(system):
    system.ensure()
    assert (system.ran, system.said) == ([], [])


@pytest.mark.parametrize("install", [True, False])
def test_root_installs_exactly_what_is_missing_and_says_so_beforehand(system, install):
    """Without a terminal too: it ended with "there is no terminal to ask on", and README's two commands did nothing."""
    system.has.discard("nft")
    system.ensure(install=install)
    assert system.ran == [INSTALL]
    assert system.said == ["installing with apt-get: nftables (for network faults)"]


@pytest.mark.lie
def test_a_user_without_a_terminal_is_told_the_command_and_not_even_sudo_is_tried(system):
    system.uid = 1000
    system.has.discard("nft")
    with pytest.raises(packages.NotAllowedError, match=r"no terminal to ask on.*\(--install, or CI=true,") as caught:
        system.ensure(install=False)
    assert caught.value.exit_code == 2
    assert str(caught.value).endswith("sudo apt-get install -y --no-install-recommends nftables")
    assert system.ran == []


def test_all_that_is_missing_is_one_question_and_a_no_is_asked_for_once(system):
    strace, wrk = (packages.Package(name, name, "tests") for name in ("strace", "wrk"))
    with pytest.raises(packages.NotAllowedError, match="you said no"):
        system.install(strace, wrk, packages.GO, answer=False)
    with pytest.raises(packages.NotAllowedError, match="you said no"):
        system.install(packages.GO, answer=True)
    [question] = system.asked
    assert "strace and wrk (for tests), golang-go (for building binaries" in question
    assert system.ran == []


def test_a_yes_is_for_what_was_asked(system):
    strace, wrk = (packages.Package(name, name, "tests") for name in ("strace", "wrk"))
    system.install(strace, answer=True)
    with pytest.raises(packages.NotAllowedError):
        system.install(wrk, answer=False)
    assert len(system.asked) == 2


def test_install_said_once_is_for_all_that_the_command_needs_later(system):
    """`--install`: the binary that turns out to need Go comes after the command has begun."""
    system.ensure(install=True)
    system.install(packages.GO, answer=False)
    assert system.asked == []
    assert "golang-go" in system.ran[-1]


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
    with pytest.raises(MachineError, match="this machine has no apt-get"):
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
    with pytest.raises(MachineError, match=r"(?s)has no apt-get.*install nftables with this system's package manager"):
        system.ensure()


def test_an_installation_that_brings_no_tool_is_not_believed(system):
    system.has.discard("nft")
    system.brings.clear()
    with pytest.raises(MachineError, match="nft still cannot be found"):
        system.ensure()


def test_the_systems_go_is_installed_where_it_is_new_enough(system):
    system.install(packages.GO)
    assert system.ran[-1] == INSTALL.replace("nftables", "golang-go")
    assert system.said == ["installing with apt-get: golang-go (for building binaries that cannot be downloaded)"]


def test_a_newer_go_under_another_name_will_do(system):
    """Ubuntu 22.04: golang-go is 1.18, and there is golang-1.23-go."""
    system.go_candidate, system.named_go = "2:1.18~0ubuntu2", [18, 20, 23, 21]
    system.install(packages.GO)
    assert system.ran[-1] == INSTALL.replace("nftables", "golang-1.23-go")


def test_a_distribution_whose_go_is_too_old_is_told_how_to_get_one_and_nothing_is_installed(system):
    """Debian 12 has Go 1.19, which cannot even read our go.mod files."""
    system.go_candidate, system.named_go = "2:1.19~1", [19]
    with pytest.raises(packages.NotOfferedError, match=r"Go 1\.21 or newer.*the newest is 1\.19\.") as caught:
        system.install(packages.GO)
    assert packages.go_by_hand() in str(caught.value)
    assert not any("apt-get" in line for line in system.ran)


def test_the_package_lists_are_fetched_when_apt_knows_no_go_at_all(system):
    system.go_candidate = "(none)"
    with pytest.raises(packages.NotOfferedError, match="there is no Go"):
        system.install(packages.GO)
    assert UPDATE in system.ran


@pytest.mark.parametrize(
    ("uid", "has", "begins", "ends"),
    [
        (0, {"curl"}, "curl -fsSL", "| tar -C /usr/local -xz"),
        (
            0,
            set(),
            "apt-get install -y --no-install-recommends curl ca-certificates && curl",
            "| tar -C /usr/local -xz",
        ),
        (1000, {"curl", "sudo"}, "curl -fsSL", "| sudo tar -C /usr/local -xz"),
        (1000, {"curl"}, "mkdir -p ~/.local && curl", "| tar -C ~/.local -xz"),
    ],
)
def test_the_command_that_gets_go_by_hand_can_be_typed_here(system, uid, has, begins, ends):
    """Root in a container has no sudo, and often no curl; a user without sudo has only their own home."""
    system.uid, system.has = uid, {"apt-get", *has}
    assert packages.go_by_hand().startswith(begins)
    assert packages.go_by_hand().endswith(ends)


def test_what_to_do_by_hand_covers_packages_and_go(system):
    system.uid = 1000
    with pytest.raises(packages.NotAllowedError) as caught:
        system.install(packages.Package("strace", "strace", "tests"), packages.GO)
    lines = str(caught.value).splitlines()
    assert lines[2].strip() == "sudo apt-get install -y --no-install-recommends strace"
    assert "go.dev/dl" in lines[3]


def test_a_package_that_the_system_does_not_have_is_told_apart_from_a_network_that_is_down(system):
    system.fails["install"] = 2
    with pytest.raises(packages.NotOfferedError):
        system.install(packages.Package("strace", "strace", "tests"))


def test_system_tools_are_found_where_ordinary_users_paths_do_not_look(monkeypatch, tmp_path):
    nft = tmp_path / "sbin/nft"
    nft.parent.mkdir()
    nft.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(commands, "SYSTEM_FOLDERS", (str(nft.parent),))
    assert packages.tool("nft") == str(nft)
    assert packages.tool("no-such-tool") is None
