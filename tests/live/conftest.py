"""Everything in this folder runs real datacenters: it is marked so, and set up for it."""

from functools import partial
from pathlib import Path

import pytest

from drills import ahead, environment

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.live)


@pytest.fixture(autouse=True)
def _real_datacenter(consul):
    """Each test here needs one."""


@pytest.fixture
def home(tmp_path):
    """An environment without any token of ours or theirs in it."""
    (tmp_path / "home").mkdir()
    return environment(HOME=tmp_path / "home", XDG_STATE_HOME=tmp_path / "state")


@pytest.fixture(scope="module")
def _drills(consul, request, tmp_path_factory):
    """The runs of this module's selected tests."""
    tests = [item for item in request.session.items if item.path == request.path and hasattr(item.function, "drill")]
    with ahead({test.name: partial(test.function.drill, tmp_path_factory.mktemp("drill")) for test in tests}) as runs:
        yield runs


@pytest.fixture
def drill(_drills, request):
    """The run of a test that is marked `drilled`."""
    return _drills(request.node.name)


@pytest.fixture(scope="session")
def demo(consul, library_runs):
    """`hashidrill demo`, once a session: (the folder it was run in, how it ended). It runs raft/slow-leader-disk."""
    return library_runs.demo
