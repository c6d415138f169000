"""The runs of one pytest session, shared by all tests that ask for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from hashidrill.faces.pytest_plugin.shared_runs import Runs

RUNS: pytest.StashKey[Runs] = pytest.StashKey()


def runs(config: pytest.Config) -> Runs:
    """Created at the first test that needs it, so importing the plugin costs nothing."""
    from hashidrill.faces.pytest_plugin.shared_runs import Runs  # noqa: PLC0415 - see the plugin's docstring

    if RUNS not in config.stash:
        config.stash[RUNS] = Runs(config)
    return config.stash[RUNS]
