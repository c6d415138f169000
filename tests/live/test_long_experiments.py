"""The experiments that need the machine for themselves, one at a time: `uv run pytest -m nightly tests/live`."""

from __future__ import annotations

import pytest

from drills import Drill
from library_runs import LIBRARY, NOT_RUN, needs_of_experiment
from places import ROOT

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]


def marked(name):
    return pytest.param(name, marks=pytest.mark.needs(*needs_of_experiment(name)))


@pytest.mark.parametrize("name", [marked(name) for name in sorted(set(NOT_RUN) & set(LIBRARY))])
def test_a_long_experiment_passes(name, tmp_path):
    drill = Drill(name, tmp_path, cwd=ROOT, within_s=800)
    assert (drill.exit_code, drill.result["verdict"], drill.result["outcome"]) == (0, "PASS", "complete"), drill.said
