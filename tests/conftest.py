"""What all tests share: nothing may be left when they are done, and those that need a real datacenter have one.

YAML under tests/ is data: `pytest tests` must not take a planted experiment for one to run.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from hashidrill import machine, packages
from hashidrill.datacenter import binaries
from hashidrill.datacenter.binaries_products import DEFAULT_VERSIONS
from hashidrill.datacenter.sandbox import work_parent
from hashidrill.datacenter.toxiproxy import VERSION as TOXIPROXY_VERSION
from hashidrill.errors import BinaryError, MachineError
from leaks import VARIABLE, Ground

collect_ignore_glob = ["*.yaml", "*.yml"]

CONSUL_VERSION = "1.22.2"
LIBRARY_TESTS = "test_experiments.py"
_GONE_WITHIN_S = 15.0
_BAD_MACHINE = 2


@pytest.fixture(scope="session", autouse=True)
def ground():
    """Everything that tests start is made below one directory; at the end, nothing of it is left on this machine."""
    before = os.environ.get(VARIABLE)
    work = Path(tempfile.mkdtemp(prefix="hdt-", dir=work_parent()))
    os.environ[VARIABLE] = str(work)
    try:
        ground = Ground(work)
        yield ground
        left = ground.left_after(_GONE_WITHIN_S)
    finally:
        os.environ.pop(VARIABLE)
        if before is not None:
            os.environ[VARIABLE] = before
        shutil.rmtree(work, ignore_errors=True)
    if left:
        pytest.fail("the tests left on this machine:\n  " + "\n  ".join(left), pytrace=False)


@pytest.fixture(scope="session")
def tell(request):
    """Prints at once, past pytest's capturing: figures, and what takes minutes and must not look like a hang."""
    reporter = request.config.pluginmanager.getplugin("terminalreporter")
    capturing = request.config.pluginmanager.getplugin("capturemanager")

    def say(text):
        with capturing.global_and_fixture_disabled():
            reporter.ensure_newline()
            reporter.write_line(text)

    return say


@pytest.fixture(scope="session")
def consul(tell):
    """The Consul binary, on a machine that can run a datacenter; it is built or downloaded now if need be.

    Skips where this machine cannot have local runs at all, and says why; in CI that is a failure. What only has to be
    installed is installed; where it may not be, the command is printed and the session ends, with exit code 2.
    """
    found = machine.detect()
    if not machine.local_runs_possible(found):
        lacking = [f"{one.name}: {one.detail} ({one.fix})" for one in found if one.required and not one.ok]
        reason = f"this machine cannot have a datacenter: {'; '.join(lacking)}"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    try:
        packages.ensure_system_packages(tell, wanted=[("consul", CONSUL_VERSION)])
        return binaries.ensure("consul", CONSUL_VERSION, progress=tell)
    except (MachineError, BinaryError) as error:
        return pytest.exit(f"tests of real datacenters cannot be set up: {error}", returncode=_BAD_MACHINE)


@pytest.fixture(scope="session")
def toxiproxy(consul, tell):
    """The toxiproxy-server binary; got as Consul's is."""
    try:
        return binaries.ensure("toxiproxy-server", TOXIPROXY_VERSION, progress=tell)
    except BinaryError as error:
        return pytest.exit(f"tests of slow links cannot be set up: {error}", returncode=_BAD_MACHINE)


def pytest_collection_modifyitems(items):
    """First what needs the machine for itself, last what waits for the library's runs; the order is kept otherwise."""
    items.sort(key=lambda item: (not alone(item.path), item.path.name == LIBRARY_TESTS))


def alone(path):
    """Whether tests of that file measure, or go by the clock, so that nothing may run beside them."""
    return path.parent.name == "contract" or path.name == "test_killed_runner.py"


@pytest.fixture(autouse=True)
def _the_library_goes_ahead(request, library_runs):
    """From the first test on that does not need the machine for itself."""
    if library_runs is not None and not alone(request.path):
        library_runs.begin()


@pytest.fixture(scope="session")
def library_runs(ground, request, tmp_path_factory):
    """The runs of the library's experiments, where tests of them were selected: they go on beside other tests.

    All binaries are there before the first of them begins: what builds takes the machine that what measures needs.
    """
    items = [item for item in request.session.items if item.path.name == LIBRARY_TESTS]
    named = {item.callspec.params.get("name") for item in items if hasattr(item, "callspec")}
    if not items:
        yield None
        return
    request.getfixturevalue("toxiproxy")
    tell = request.getfixturevalue("tell")
    for name, version in DEFAULT_VERSIONS:
        try:
            binaries.ensure(name, version, progress=tell)
        except BinaryError as error:
            pytest.exit(f"the library's experiments cannot be set up: {error}", returncode=_BAD_MACHINE)
    from library_runs import FLAGSHIP, LIBRARY, LibraryRuns

    runs = LibraryRuns(tmp_path_factory.mktemp("library"), (named & set(LIBRARY)) - {FLAGSHIP})
    try:
        yield runs
    finally:
        runs.close()
