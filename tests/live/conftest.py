"""Everything in this folder runs real datacenters: it is marked so, and set up for it."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.live)


@pytest.fixture(autouse=True)
def _real_datacenter(consul):
    """Each test here needs one."""
