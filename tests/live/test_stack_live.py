"""Experiments on several products at a time, or on small programs of our own, pass, and their faults are proven."""

from __future__ import annotations

import pytest

from drills import Drill
from hashidrill.core.experiment.loader import load_experiment
from hashidrill.core.recording.reader import Recording
from library_runs import LIBRARY, OF_THE_STACK, needs_of_experiment
from places import ROOT

pytestmark = [pytest.mark.live, pytest.mark.nightly]


def marked(name):
    return pytest.param(name, marks=pytest.mark.needs(*needs_of_experiment(name)))


@pytest.mark.parametrize("name", [marked(name) for name in OF_THE_STACK])
def test_an_experiment_passes_and_its_faults_are_proven(name, tmp_path):
    drill = Drill(name, tmp_path, cwd=ROOT, within_s=400)
    assert (drill.exit_code, drill.result["verdict"], drill.result["invalid"]) == (0, "PASS", []), drill.said
    windows = Recording(drill.recording).faults
    assert {window.kind for window in windows} == {step.fault for step in load_experiment(LIBRARY[name]).faults}
    assert all(window.proven and window.gone_ns is not None for window in windows)
