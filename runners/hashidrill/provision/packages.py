"""The system packages that hashidrill needs, and installing them with apt: only if missing, and only after asking.

Nothing is installed unless a person says yes on the terminal, or said so before: `--install`, or CI=true.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hashidrill.errors import MachineError
from hashidrill.provision import archive as binaries_archive
from hashidrill.provision import binaries
from hashidrill.provision import build as binaries_build
from hashidrill.provision.products import product_named

Say = Callable[[str], None]
Ask = Callable[[str], bool | None]
"""Takes a question; answers yes, no, or None where nobody can be asked."""

SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")
"""Where tc and iptables live, and where Debian does not let ordinary users' PATH look."""

NO_INSTALL = "HASHIDRILL_NO_INSTALL"
APT_TIMEOUT_S = 900
GO_BY_HAND = (
    'curl -fsSL "https://go.dev/dl/$(curl -fsSL https://go.dev/VERSION?m=text | head -1)'
    '.linux-$(dpkg --print-architecture).tar.gz" | sudo tar -C /usr/local -xz'
)
"""For systems whose own package is too old, like Debian 12's Go 1.19."""


@dataclass(frozen=True)
class Package:
    """A system package (by its Debian name), the tool that shows that it is there, and what needs it."""

    debian: str
    tool: str
    purpose: str


SYSTEM: tuple[Package, ...] = ()
"""What the local datacenter needs: the kernel is asked by system calls and by netlink, so no program."""
CHAOSD_PACKAGES = {"stress-ng": "stress-ng", "iptables": "iptables", "ipset": "ipset", "tc": "iproute2"}
"""The tools that chaosd starts on hosts of ours, and the Debian package that has each."""
GO = Package("golang-go", "go", "building binaries that cannot be downloaded")


def tool(name: str) -> str | None:
    """The path of a system tool, in PATH or in the folders for system tools; None when it is not installed."""
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(SYSTEM_FOLDERS))


def missing_packages() -> list[Package]:
    """What the sandbox needs from the system and does not find."""
    return [package for package in SYSTEM if tool(package.tool) is None]


def install_command(*names: str) -> str:
    """The command that a person would type to install these Debian packages."""
    if shutil.which("apt-get") is None:
        return f"install {' and '.join(names)} with this system's package manager"
    command = f"apt-get install -y --no-install-recommends {' '.join(names)}"
    if os.geteuid() == 0:
        return command
    return f"sudo {command}" if shutil.which("sudo") else f"su -c '{command}'"


def ensure_system_packages(
    say: Say, *, wanted: Sequence[tuple[str, str]] = (), install: bool = False, ask: Ask | None = None
) -> None:
    """Install what is missing, by apt, as root or through sudo; does nothing when nothing is missing.

    `wanted` are (name, version) of binaries that will be asked for: when one of them is neither here nor can be
    downloaded, Go is needed as well. `install` says yes beforehand, as CI=true does; else `ask` is called (by default
    it asks on the terminal, and takes the lack of one for a no). Raises MachineError with the exact command where this
    may not or cannot be done.
    """
    missing = missing_packages()
    go_needed = needs_go(wanted)
    if not missing and not go_needed:
        return
    asked = [*missing, GO] if go_needed else missing
    sudo = _may_install(asked, agreed=install or in_ci(), ask=ask or ask_on_terminal)
    if go_needed:
        _require_new_enough_go(sudo, say)
    names = [package.debian for package in asked]
    purposes = ", ".join(f"{package.debian} (for {package.purpose})" for package in asked)
    say(f"installing with apt-get: {purposes}")
    arguments = ["install", "-y", "--no-install-recommends", *names]
    if _apt(sudo, arguments).returncode != 0:
        # package lists are missing (container images ship none) or name versions that are gone
        say("apt-get could not install them; refreshing the package lists and trying again")
        _apt(sudo, ["update"])
        run = _apt(sudo, arguments)
        if run.returncode != 0:
            raise MachineError(
                f"apt-get could not install {' and '.join(names)}:\n{_tail(run)}\n"
                f"Install them yourself and run this again: {install_command(*names)}"
            )
    _require_there(asked)


def needs_go(wanted: Sequence[tuple[str, str]]) -> bool:
    """Whether one of these binaries can be had by building it alone, and Go is what is missing for that."""
    candidates = [(product_named(name), version) for name, version in wanted if binaries.locate(name, version) is None]
    buildable = [each for each in candidates if binaries_build.module_folder(*each) is not None]
    if not buildable:
        return False
    go = binaries_build.find_go()
    if go is not None and go.usable:
        return False
    return any(binaries_archive.why_not(*each) is not None for each in buildable)


def in_ci() -> bool:
    """Whether CI=true is set, as CI systems do: their machines are thrown away."""
    return os.environ.get("CI", "").lower() in {"true", "1"}


def ask_on_terminal(question: str) -> bool | None:
    """What the person at the terminal answers; None where there is none, or where it belongs to another job.

    It goes to the terminal itself: standard input and output may be captured, as by pytest, or piped to a file.
    """
    try:
        with open("/dev/tty", "r+b", buffering=0) as terminal:  # noqa: PTH123 - unbuffered and in both directions
            if os.tcgetpgrp(terminal.fileno()) != os.getpgrp():
                return None
            terminal.write(f"{question} [y/N] ".encode())
            return terminal.readline().strip().lower() in {b"y", b"yes"}
    except OSError:
        return None


def _may_install(asked: Sequence[Package], *, agreed: bool, ask: Ask) -> list[str]:
    """The prefix that makes apt-get run as root. Raises MachineError."""
    prefix, why = _permission(asked, agreed=agreed, ask=ask)
    if prefix is not None:
        return prefix
    needed = ", ".join(f"{package.tool} (for {package.purpose})" for package in asked)
    names = [package.debian for package in asked if package != GO]
    by_hand = [install_command(*names)] if names else []
    if GO in asked:
        by_hand.append(f"{GO_BY_HAND}   # Go, {binaries_build.OLDEST_GO_TEXT} or newer")
    raise MachineError(f"This machine lacks {needed}; {why}. Do this, then try again:\n  " + "\n  ".join(by_hand))


def _permission(asked: Sequence[Package], *, agreed: bool, ask: Ask) -> tuple[list[str] | None, str]:
    """(what goes before apt-get, or None; why not). Whoever has to be asked is asked once everything else is clear."""
    root = os.geteuid() == 0
    why = ""
    if os.environ.get(NO_INSTALL, "") not in {"", "0"}:
        why = f"{NO_INSTALL} is set, so nothing was installed"
    elif shutil.which("apt-get") is None:
        why = "there is no apt-get here to install them with"
    elif not root and shutil.which("sudo") is None:
        why = "this user is not root and has no sudo, so nothing was installed"
    elif not agreed:
        why = _refusal(asked, ask)
    elif not root and not _passwordless_sudo():
        why = "this user is not root and has no passwordless sudo, so nothing was installed"
    if why:
        return None, why
    if root:
        return [], ""
    return (["sudo", "-n"] if agreed else ["sudo"]), ""  # one who was asked can give sudo a password, too


def _refusal(asked: Sequence[Package], ask: Ask) -> str:
    """Why the person who was asked did not agree; empty for one who did."""
    purposes = ", ".join(f"{package.debian} (for {package.purpose})" for package in asked)
    command = install_command(*(package.debian for package in asked))
    answer = ask(f"hashidrill needs {purposes}. Run `{command}` now?")
    if answer:
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


def _require_new_enough_go(sudo: Sequence[str], say: Say) -> None:
    """Raises MachineError where the system's own Go is too old to help: then nothing at all is installed."""
    candidate = _candidate(GO.debian)
    if candidate is None:
        say("refreshing the package lists (apt-get update), to see which Go there is")
        _apt(sudo, ["update"])
        candidate = _candidate(GO.debian)
    # like 2:1.19~1
    match = re.match(r"(?:\d+:)?(\d+)\.(\d+)", candidate or "")
    if match is None or (int(match[1]), int(match[2])) < binaries_build.OLDEST_GO:
        offered = f"{GO.debian} is {candidate}" if candidate else f"no {GO.debian}"
        raise MachineError(
            f"Consul has to be built with Go here, and this system's own package is too old ({offered}; "
            f"{binaries_build.OLDEST_GO_TEXT} or newer is needed). Run this, then try again:\n  {GO_BY_HAND}"
        )


def _candidate(name: str) -> str | None:
    """The version that apt would install."""
    if shutil.which("apt-cache") is None:
        return None
    printed = _run(["apt-cache", "policy", name], timeout_s=60).stdout
    match = re.search(r"^\s*Candidate: (\S+)", printed, re.MULTILINE)
    return match[1] if match and match[1] != "(none)" else None


def _apt(sudo: Sequence[str], arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    # env, because sudo drops variables; the lock timeout, because unattended-upgrades holds it on fresh machines
    command = [*sudo, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-o", "DPkg::Lock::Timeout=120", *arguments]
    try:
        return _run(command, timeout_s=APT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise MachineError(
            f"`{shlex.join(command)}` did not end within {APT_TIMEOUT_S} s. Run it yourself, and this again afterwards."
        ) from None


def _run(command: Sequence[str], *, timeout_s: float) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    return subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", timeout=timeout_s, check=False,
    )  # fmt: skip


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
