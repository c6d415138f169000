"""Gets what tests need of the machine before the first of them runs: outside every timeout, once, with progress.

A test says what it needs with `@pytest.mark.needs("consul 1.10.3", "chromium")`, or by asking for a fixture that does
(`FIXTURES`). Only what the selected tests need is got, and all that has to be installed is installed at once, as
hashidrill itself does it (hashidrill.lab.provision.packages). What cannot be got fails the tests that need it, no
others.
"""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hashidrill.core.errors import BinaryError, MachineError
from hashidrill.lab.provision import binaries, machine, packages
from hashidrill.lab.provision.build import find_go, lacks_compilers
from hashidrill.lab.provision.packages import GO, NO_INSTALL, NotAllowedError, NotOfferedError, Package
from hashidrill.lab.provision.products import (
    AUDITED_VERSIONS,
    DEFAULT_VERSIONS,
    KUBERNETES_VERSIONS,
    PRODUCTS,
    WATCHING_VERSIONS,
)

DATACENTER = "datacenter"
"""A machine that can have a local datacenter: namespaces, seccomp, and so on."""
CLIENTS = "go-clients"
"""The reference clients of the retry verdicts that are written in Go (tests/support/clients/go)."""
CONSUL_VERSION = "1.22.2"
COLLECTOR = "otel-collector"
"""The OpenTelemetry collector that tests of traces send to (tests/support/collector)."""
GENERATORS = "load-generators"
"""k6 and vegeta, which the figures of the load generator stand beside (tests/support/generators)."""
GO_NEED = "go"
NODE = "kubernetes-node"
"""A node of Kubernetes, with Chaos Mesh and Litmus (tests/support/kubernetes)."""
_VERSIONS = dict(reversed((*DEFAULT_VERSIONS, *WATCHING_VERSIONS, *AUDITED_VERSIONS, *KUBERNETES_VERSIONS)))
TOOLS = packages.TEST_TOOLS
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
    if need in (DATACENTER, CLIENTS, COLLECTOR, GENERATORS, GO_NEED, NODE) or need in TOOLS:
        return need
    known = ", ".join((DATACENTER, CLIENTS, COLLECTOR, GENERATORS, GO_NEED, NODE, *TOOLS, *PRODUCTS))
    raise ValueError(f"a test needs {need!r}, which tests/support/provision.py cannot get; it can get: {known}")


class Provision:
    """What was got, by need."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self.got: dict[str, Any] = {}
        self.lacking: dict[str, Lacking] = {}
        self._refused: dict[Package, MachineError] = {}
        self._provided: set[object] = set()
        self._no_install = os.environ.get(NO_INSTALL)

    def provide_once(self, key: object, items: Iterable[Any]) -> None:
        """`provide` for the first call with that key; of several processes, one after the other."""
        if key in self._provided:
            return
        self._provided.add(key)
        forbidden = os.environ.pop(NO_INSTALL, None)  # tests run with it, whatever the user said before them
        try:
            if self._no_install is not None:
                os.environ[NO_INSTALL] = self._no_install
            with Path(__file__).open() as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                self.provide(items)
        finally:
            os.environ.pop(NO_INSTALL, None)
            if forbidden is not None:
                os.environ[NO_INSTALL] = forbidden

    def provide(self, items: Iterable[Any]) -> None:
        """Gets whatever the items need and was not got yet. Never raises for what cannot be had."""
        needs = list(dict.fromkeys(need for item in items for need in needs_of(item)))
        needs = [need for need in needs if need not in self.got and need not in self.lacking]
        # the machine first: without it, most binaries are of no use
        needs.sort(key=lambda need: need != DATACENTER)
        packages_of = {need: self._packages(need) for need in needs}
        self._install(list(dict.fromkeys(package for each in packages_of.values() for package in each)))
        for need in needs:
            try:
                for package in packages_of[need]:
                    if package in self._refused:
                        raise self._refused[package]
                self.got[need] = self._get(need)
            except (BinaryError, MachineError) as error:
                self.lacking[need] = Lacking(str(error), cannot=isinstance(error, _CANNOT))
                self._say(f"cannot get {need}; the tests that need it will not run:\n{error}")

    def _packages(self, need: str) -> list[Package]:
        """What has to be installed for it."""
        if need in TOOLS:
            commands, debian = TOOLS[need]
            return [] if _first(commands) else [Package(debian, commands[0], "tests")]
        if need == NODE:
            from kubernetes import builds

            return [] if builds.all_here() else lacks_compilers(builds.CHAOS_DAEMON)
        if need in (GO_NEED, CLIENTS, COLLECTOR, GENERATORS):
            go = find_go()
            return [] if go is not None and go.usable else [GO]
        if need == DATACENTER:
            return []
        name, version = need.split(" ")
        lacks = lacks_compilers(PRODUCTS[name])
        return lacks if lacks and binaries.must_be_built(name, version) else []

    def _install(self, asked: list[Package]) -> None:
        """All at once, after one question; those that fail are known by name, and hinder no other."""
        if not asked:
            return
        try:
            packages.install_packages(asked, self._say)
        except NotAllowedError as error:
            self._refused = dict.fromkeys(asked, error)
        except MachineError:
            for package in asked:
                try:
                    packages.install_packages([package], self._say, ask=lambda _: True)
                except MachineError as error:
                    self._refused[package] = error

    def _get(self, need: str) -> Any:
        if need == DATACENTER:
            return self._datacenter()
        if need == NODE:
            return self._node()
        if need in TOOLS:
            return _first(TOOLS[need][0])
        if need == GO_NEED:
            return str(find_go().path)
        if need in (CLIENTS, COLLECTOR, GENERATORS):
            return self._built(need)
        name, version = need.split(" ")
        return binaries.ensure(name, version, progress=self._say)

    def _datacenter(self) -> bool:
        found = machine.detect()
        if not machine.local_runs_possible(found):
            lacking = [f"{one.name}: {one.detail} ({one.fix})" for one in found if one.required and not one.ok]
            raise _CannotError(f"this machine cannot have a datacenter: {'; '.join(lacking)}")
        return True

    def _node(self) -> bool:
        """All that is built for it, and its packages: about 25 minutes the first time."""
        from kubernetes import builds, debian, node

        if why := node.why_not():
            raise _CannotError(why)
        debian.unpacked()
        builds.programs((*builds.NODE, *builds.CHAOS_MESH, *builds.LITMUS), self._say)
        return True

    def _built(self, need: str) -> Any:
        from clients import prepare  # on the path once a test of tests/contract is collected

        lasts = "about a minute" if need == CLIENTS else "some minutes"
        self._say(f"building {need} with Go, where it is not there yet: {lasts}")
        try:
            built = {CLIENTS: prepare.go_binaries, COLLECTOR: prepare.collector_binary, GENERATORS: prepare.generators}
            return built[need]()
        except (OSError, subprocess.SubprocessError) as error:
            raise MachineError(f"{need} could not be built: {error}") from None


class _CannotError(MachineError):
    """This machine cannot have it."""


_CANNOT = (_CannotError, NotAllowedError, NotOfferedError)


def _first(commands: Iterable[str]) -> str | None:
    return next((path for name in commands if (path := shutil.which(name) or packages.tool(name))), None)
