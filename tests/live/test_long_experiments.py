"""The experiments that need the machine for themselves, one at a time: `uv run pytest -m long tests/live`."""

from __future__ import annotations

import pytest
from drills import Drill
from library_runs import LIBRARY, NOT_RUN

from hashidrill.library import experiments_dir

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.mark.parametrize("name", sorted(set(NOT_RUN) & set(LIBRARY)))
def test_a_long_experiment_passes(name, tmp_path):
    drill = Drill(name, tmp_path, cwd=experiments_dir().parent, within_s=800)
    assert (drill.exit_code, drill.result["verdict"], drill.result["outcome"]) == (0, "PASS", "complete"), drill.said
