"""Everything in this folder runs real datacenters: it is marked so, and set up for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from drills import hashidrill

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.live)


@pytest.fixture(autouse=True)
def _real_datacenter(consul):
    """Each test here needs one."""


@pytest.fixture(scope="session")
def demo(consul, tmp_path_factory):
    """`hashidrill demo`, once a session: (the folder it was run in, how it ended). It runs raft/slow-leader-disk."""
    folder = tmp_path_factory.mktemp("demo")
    return folder, hashidrill("demo", cwd=folder, within_s=300)
