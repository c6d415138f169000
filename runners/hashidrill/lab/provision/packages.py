"""Installs the system packages that hashidrill needs and that are missing, with one call of apt.

Consent comes from a person on the terminal, who is asked once, or from `--install` or CI=true. Root without a terminal
(a container, a script) gives consent too, and gets a message. HASHIDRILL_NO_INSTALL=1 forbids every installation.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from hashidrill.core.errors import MachineError
from hashidrill.core.util.commands import tool

Say = Callable[[str], None]
Ask = Callable[[str], bool | None]
"""Asks a question; returns True for yes, False for no, or None if it can ask no person."""

NO_INSTALL = "HASHIDRILL_NO_INSTALL"
APT_TIMEOUT_S = 900
OLDEST_GO = (1, 21)
"""From 1.21 on, Go fetches the newer toolchain that a go.mod requests; older versions cannot read hashidrill's go.mod
files.
"""
OLDEST_GO_TEXT = ".".join(map(str, OLDEST_GO))


class NotAllowedError(MachineError):
    """Nothing was installed, because consent was missing."""


class NotOfferedError(MachineError):
    """The system has no such package, or one that is too old."""


@dataclass(frozen=True)
class Package:
    """A system package (by its Debian name), the tool whose presence shows that it is installed, and its purpose."""

    debian: str
    tool: str
    purpose: str


@dataclass
class _Permission:
    """The consent to install packages. A yes holds for one question; `--install` and a no hold for all later ones."""

    agreed: bool = False
    refused: str = ""


_permission = _Permission()
CHAOSD_PACKAGES = {"stress-ng": "stress-ng", "iptables": "iptables", "ipset": "ipset", "tc": "iproute2"}
"""The tools that chaosd starts on local hosts, and the Debian package of each."""
TEST_TOOLS = {
    "chromium": (("chromium", "chromium-browser", "google-chrome"), "chromium"),
    "wrk": (("wrk",), "wrk"),
    "nft": (("nft",), "nftables"),
    "tc": (("tc",), "iproute2"),
    "ip": (("ip",), "iproute2"),
    "curl": (("curl",), "curl"),
    "setpriv": (("setpriv",), "util-linux"),
    "strace": (("strace",), "strace"),
    "iptables": (("iptables",), "iptables"),
    "ipset": (("ipset",), "ipset"),
    "stress-ng": (("stress-ng",), "stress-ng"),
}
"""Tools of hashidrill's own tests: alternative commands, and a Debian package with one of them."""
_BUILDING = "building binaries that cannot be downloaded"
GO = Package("golang-go", "go", _BUILDING)
CERTIFICATES = Package("ca-certificates", "update-ca-certificates", "Go's downloads")
C_COMPILER = (Package("gcc", "gcc", _BUILDING), Package("libc6-dev", "gcc", _BUILDING))


def install_command(*names: str) -> str:
    """The command that a person would type to install these Debian packages."""
    if shutil.which("apt-get") is None:
        return f"install {' and '.join(names)} with this system's package manager"
    command = f"apt-get install -y --no-install-recommends {' '.join(names)}"
    if os.geteuid() == 0:
        return command
    return f"sudo {command}" if shutil.which("sudo") else f"su -c '{command}'"


def go_by_hand() -> str:
    """Installs a new Go where hashidrill looks for Go: a system's package may be too old, like Debian 12's 1.19."""
    root = os.geteuid() == 0
    folder = "/usr/local" if root or shutil.which("sudo") else "~/.local"
    fetch = "" if shutil.which("curl") else f"{install_command('curl', 'ca-certificates')} && "
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    version = "$(curl -fsSL 'https://go.dev/VERSION?m=text' | head -1)"
    unpack = f"{'sudo ' if not root and folder == '/usr/local' else ''}tar -C {folder} -xz"
    fetch += f"mkdir -p {folder} && " if folder.startswith("~") else ""
    return f'{fetch}curl -fsSL "https://go.dev/dl/{version}.linux-{architecture}.tar.gz" | {unpack}'


def allow_installing(install: bool) -> None:
    """`--install`: gives consent beforehand to every package that this process will need."""
    _permission.agreed |= install


def install_missing(debian: Mapping[str, str], purpose: str, say: Say) -> None:
    """Installs the packages of missing tools; `debian` maps tools to packages. Raises like `install_packages`."""
    missing = [Package(package, name, purpose) for name, package in debian.items() if tool(name) is None]
    if missing:
        install_packages(missing, say)


def install_packages(asked: Sequence[Package], say: Say, *, ask: Ask | None = None) -> None:
    """Installs the packages by apt, as root or through sudo, after one question on the terminal if consent is missing.

    Raises NotAllowedError, NotOfferedError, MachineError.
    """
    sudo = _may_install(asked, ask or ask_on_terminal)
    asked = [_new_enough_go(sudo, say) if package == GO else package for package in asked]
    names = list(dict.fromkeys(package.debian for package in asked))
    say(f"installing with apt-get: {_with_purposes(asked)}")
    arguments = ["install", "-y", "--no-install-recommends", *names]
    if _apt(sudo, arguments).returncode != 0:
        # package lists are missing (container images have none) or name versions that are no longer served
        say("apt-get could not install them; refreshing the package lists and trying again")
        _apt(sudo, ["update"])
        run = _apt(sudo, arguments)
        if run.returncode != 0:
            absent = re.search("Unable to locate package|no installation candidate", run.stdout)
            raise (NotOfferedError if absent else MachineError)(
                f"apt-get could not install {' and '.join(names)}:\n{_tail(run)}\n"
                f"Install them yourself and run this again: {install_command(*names)}"
            )
    _require_there(asked)


def _with_purposes(asked: Sequence[Package]) -> str:
    """A text such as `nftables (for network faults), strace and wrk (for tests)`."""
    by_purpose: dict[str, dict[str, None]] = {}
    for package in asked:
        by_purpose.setdefault(package.purpose, {})[package.debian] = None
    return ", ".join(f"{' and '.join(names)} (for {purpose})" for purpose, names in by_purpose.items())


def in_ci() -> bool:
    """Whether CI=true is set, as on CI systems, whose machines are discarded after use."""
    return os.environ.get("CI", "").lower() in {"true", "1"}


def ask_on_terminal(question: str) -> bool | None:
    """The answer typed at the terminal; None without a terminal, or if another job is in the terminal's foreground.

    Standard input and output may be captured or piped, so this reads and writes the terminal itself.
    """
    try:
        with open("/dev/tty", "r+b", buffering=0) as terminal:  # noqa: PTH123 - unbuffered and in both directions
            if os.tcgetpgrp(terminal.fileno()) != os.getpgrp():
                return None
            terminal.write(f"{question} [y/N] ".encode())
            return terminal.readline().strip().lower() in {b"y", b"yes"}
    except OSError:
        return None


def _may_install(asked: Sequence[Package], ask: Ask) -> list[str]:
    """The prefix that makes apt-get run as root. Raises NotAllowedError with the manual command."""
    prefix, why = _granted(asked, ask)
    if prefix is not None:
        return prefix
    tools = dict.fromkeys(f"{package.tool} (for {package.purpose})" for package in asked)
    names = dict.fromkeys(package.debian for package in asked if package != GO)
    by_hand = [install_command(*names)] if names else []
    if GO in asked:
        by_hand.append(f"{go_by_hand()}   # Go, {OLDEST_GO_TEXT} or newer")
    raise NotAllowedError(
        f"This machine lacks {', '.join(tools)}; {why}.\nDo this, then try again:\n  " + "\n  ".join(by_hand)
    )


def _granted(asked: Sequence[Package], ask: Ask) -> tuple[list[str] | None, str]:
    """(prefix of apt-get, or None if refused; the reason). Asks a person only if all other conditions are met."""
    root = os.geteuid() == 0
    agreed = _permission.agreed or in_ci()
    why = ""
    if os.environ.get(NO_INSTALL, "") not in {"", "0"}:
        why = f"{NO_INSTALL} is set, so nothing was installed"
    elif shutil.which("apt-get") is None:
        why = "this machine has no apt-get to install them"
    elif not root and shutil.which("sudo") is None:
        why = "this user is not root and has no sudo, so nothing was installed"
    elif not agreed:
        why = _permission.refused = _permission.refused or _refusal(asked, ask, root=root)
    elif not root and not _passwordless_sudo():
        why = "this user is not root and has no passwordless sudo, so nothing was installed"
    if why:
        return None, why
    if root:
        return [], ""
    return (["sudo", "-n"] if agreed else ["sudo"]), ""  # a person who answered can also type a password for sudo


def _refusal(asked: Sequence[Package], ask: Ask, *, root: bool) -> str:
    """Why nothing may be installed; "" after a yes, or if root has no terminal."""
    command = install_command(*dict.fromkeys(package.debian for package in asked))
    answer = ask(f"hashidrill needs {_with_purposes(asked)}. Run `{command}` now?")
    if answer or (answer is None and root):
        return ""
    why = "you said no" if answer is False else "there is no terminal to ask on"
    return f"{why}, so nothing was installed (--install, or CI=true, installs without asking)"


def _passwordless_sudo() -> bool:
    if shutil.which("sudo") is None:
        return False
    try:
        return _run(["sudo", "-n", "true"], timeout_s=20).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def _new_enough_go(sudo: Sequence[str], say: Say) -> Package:
    """The system's package with a Go that can build hashidrill's modules, not installed. Raises NotOfferedError."""
    found = _go_packages()
    if not found:
        say("refreshing the package lists (apt-get update), to see which Go versions they have")
        _apt(sudo, ["update"])
        found = _go_packages()
    usable = [package for version, package in found if version >= OLDEST_GO]
    if not usable:
        offered = (
            f"the newest is {'.'.join(map(str, max(version for version, _ in found)))}" if found else "there is no Go"
        )
        raise NotOfferedError(
            f"Go {OLDEST_GO_TEXT} or newer is needed for {GO.purpose}, and this system's packages have none: "
            f"{offered}.\nRun this, then try again:\n  {go_by_hand()}"
        )
    return usable[0]


def _go_packages() -> list[tuple[tuple[int, int], Package]]:
    """(version, package): the default Go, then the others, newest first. Ubuntu 22.04 has 1.18 and golang-1.23."""
    if shutil.which("apt-cache") is None:
        return []
    policy = _run(["apt-cache", "policy", GO.debian], timeout_s=60).stdout
    default = re.search(r"^\s*Candidate: (?:\d+:)?(\d+)\.(\d+)", policy, re.MULTILINE)
    listed = _run(["apt-cache", "search", "--names-only", r"^golang-1\.[0-9]+-go$"], timeout_s=60).stdout
    minors = sorted((int(minor) for minor in re.findall(r"^golang-1\.(\d+)-go ", listed, re.MULTILINE)), reverse=True)
    named = [
        ((1, minor), replace(GO, debian=f"golang-1.{minor}-go", tool=f"/usr/lib/go-1.{minor}/bin/go"))
        for minor in minors
    ]
    return ([((int(default[1]), int(default[2])), GO)] if default else []) + named


def _apt(sudo: Sequence[str], arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    # env, because sudo drops variables; the lock timeout, because unattended-upgrades holds it on fresh machines
    command = [*sudo, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-o", "DPkg::Lock::Timeout=120", *arguments]
    try:
        return _run(command, timeout_s=APT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise MachineError(
            f"`{shlex.join(command)}` did not end within {APT_TIMEOUT_S} s. Run it yourself, then run this again."
        ) from None


def _run(command: Sequence[str], *, timeout_s: float) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    return subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=False,
    )


def _tail(run: subprocess.CompletedProcess[str]) -> str:
    return "\n".join(f"  {line}" for line in run.stdout.strip().splitlines()[-5:])


def _require_there(asked: Sequence[Package]) -> None:
    absent = [package for package in asked if tool(package.tool) is None]
    if absent:
        raise MachineError(
            f"apt-get says that it installed {' and '.join(package.debian for package in absent)}, and "
            f"{' and '.join(package.tool for package in absent)} still cannot be found. "
            f"Look at: dpkg -L {' '.join(package.debian for package in absent)}"
        )
