"""Gets what tests need of the machine before the first of them runs: outside every timeout, once, with progress.

A test says what it needs with `@pytest.mark.needs("consul 1.10.3", "chromium")`, or by asking for a fixture that does
(`FIXTURES`). Only what the selected tests need is got. What cannot be got fails the tests that need it, and no others.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from hashidrill.errors import BinaryError, MachineError
from hashidrill.provision import binaries, machine, packages
from hashidrill.provision.products import AUDITED_VERSIONS, DEFAULT_VERSIONS, KUBERNETES_VERSIONS, PRODUCTS

DATACENTER = "datacenter"
"""A machine that can have a local datacenter: namespaces, seccomp, and so on."""
CLIENTS = "go-clients"
"""The reference clients of the retry verdicts that are written in Go (tests/support/clients/go)."""
CONSUL_VERSION = "1.22.2"
_VERSIONS = dict(reversed((*DEFAULT_VERSIONS, *AUDITED_VERSIONS, *KUBERNETES_VERSIONS)))
TOOLS = {
    "chromium": (("chromium", "chromium-browser", "google-chrome"), "chromium"),
    "wrk": (("wrk",), "wrk"),
    "nft": (("nft",), "nftables"),
    "go": (("go",), "golang-go"),
    "tc": (("tc",), "iproute2"),
    "ip": (("ip",), "iproute2"),
    "curl": (("curl",), "curl"),
    "setpriv": (("setpriv",), "util-linux"),
    "strace": (("strace",), "strace"),
    "iptables": (("iptables",), "iptables"),
    "ipset": (("ipset",), "ipset"),
    "stress-ng": (("stress-ng",), "stress-ng"),
}
"""Name of a need: the commands any of which serves, and the Debian package that has one."""
FIXTURES = {
    "consul": (DATACENTER, f"consul {CONSUL_VERSION}"),
    "toxiproxy": (DATACENTER, f"consul {CONSUL_VERSION}", "toxiproxy-server"),
    "bbolt": ("bbolt",),
    "bin_folder": (CLIENTS,),
    "nomad": ("nomad",),
    "vault": ("vault",),
    "consul_template": ("consul-template",),
}
"""Fixtures that need something themselves: tests that use them need not say so."""
_INSTALL_WITHIN_S = 900

Say = Callable[[str], None]


@dataclass(frozen=True)
class Lacking:
    """What could not be got, and why. `cannot`: this machine truly cannot, which is no fault of the tests'."""

    why: str
    cannot: bool = False


def needs_of(item: Any) -> list[str]:
    """What a collected test needs, in full (`consul 1.22.2`), without repetition."""
    marked = [need for mark in item.iter_markers("needs") for need in mark.args]
    values = getattr(getattr(item, "callspec", None), "params", {})  # a parameter's name is among those of fixtures
    fixtures = [name for name in getattr(item, "fixturenames", ()) if name not in values]
    asked = [need for fixture in fixtures for need in FIXTURES.get(fixture, ())]
    return list(dict.fromkeys(in_full(need) for need in (*asked, *marked)))


def in_full(need: str) -> str:
    """`toxiproxy-server` is `toxiproxy-server 2.12.0`. Raises ValueError for what nobody knows how to get."""
    name, _, version = need.partition(" ")
    if name in PRODUCTS:
        return f"{name} {version or _VERSIONS[name]}"
    if need in (DATACENTER, CLIENTS) or need in TOOLS:
        return need
    known = ", ".join((DATACENTER, CLIENTS, *TOOLS, *PRODUCTS))
    raise ValueError(f"a test needs {need!r}, which tests/support/provision.py cannot get; it can get: {known}")


class Provision:
    """What was got, by need. `in_ci`: tools are installed, and nothing may be skipped."""

    def __init__(self, say: Say, *, in_ci: bool) -> None:
        self._say = say
        self._in_ci = in_ci
        self.got: dict[str, Any] = {}
        self.lacking: dict[str, Lacking] = {}

    def provide(self, items: Iterable[Any]) -> None:
        """Gets whatever the items need and was not got yet. Never raises for what cannot be had."""
        needs = list(dict.fromkeys(need for item in items for need in needs_of(item)))
        wanted = [tuple(need.split(" ")) for need in needs if need.partition(" ")[0] in PRODUCTS]
        # the machine first: without it, most binaries are of no use
        for need in sorted(needs, key=lambda need: (need != DATACENTER, need in TOOLS)):
            if need in self.got or need in self.lacking:
                continue
            try:
                self.got[need] = self._get(need, wanted)
            except (BinaryError, MachineError) as error:
                self.lacking[need] = Lacking(str(error), cannot=isinstance(error, _CannotError))
                self._say(f"cannot get {need}; the tests that need it will not run:\n{error}")

    def _get(self, need: str, wanted: list[tuple[str, ...]]) -> Any:
        if need == DATACENTER:
            return self._datacenter([(name, version) for name, version in wanted])
        if need in TOOLS:
            return self._tool(need)
        if need == CLIENTS:
            return self._clients()
        name, version = need.split(" ")
        return binaries.ensure(name, version, progress=self._say)

    def _datacenter(self, wanted: list[tuple[str, str]]) -> bool:
        found = machine.detect()
        if not machine.local_runs_possible(found):
            lacking = [f"{one.name}: {one.detail} ({one.fix})" for one in found if one.required and not one.ok]
            raise _CannotError(f"this machine cannot have a datacenter: {'; '.join(lacking)}")
        packages.ensure_system_packages(self._say, wanted=wanted)
        return True

    def _clients(self) -> Any:
        from clients.prepare import go_binaries  # on the path once a test of tests/contract is collected

        self._say("building the reference clients with Go, where they are not there yet: about a minute")
        try:
            return go_binaries()
        except (OSError, subprocess.SubprocessError) as error:
            raise MachineError(f"the reference clients could not be built: {error}") from None

    def _tool(self, need: str) -> str:
        commands, package = TOOLS[need]
        if (path := _first(commands)) is not None:
            return path
        if not self._in_ci:
            raise _CannotError(f"{need} is not installed: {packages.install_command(package)}")
        root = [] if os.geteuid() == 0 else ["sudo", "-n"]
        self._say(f"installing with apt-get: {package} (for tests)")
        for arguments in (["update"], ["install", "-y", "--no-install-recommends", package]):
            command = [*root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", *arguments]
            try:
                run = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_WITHIN_S, check=False)
            except (OSError, subprocess.TimeoutExpired) as error:
                raise MachineError(f"`{' '.join(command)}`: {error}") from None
            if run.returncode != 0:
                raise MachineError(f"`{' '.join(command)}` failed:\n{(run.stdout + run.stderr).strip()[-2000:]}")
        if (path := _first(commands)) is None:
            raise MachineError(
                f"apt-get installed {package}, and none of {', '.join(commands)} is on PATH all the same"
            )
        return path


class _CannotError(MachineError):
    """This machine cannot have it, and no one asked us to change that."""


def _first(commands: Iterable[str]) -> str | None:
    return next((path for name in commands if (path := shutil.which(name) or packages.tool(name))), None)
