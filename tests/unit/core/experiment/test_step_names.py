"""Steps of the method with names: expectations can name one among several alike."""

from __future__ import annotations

import json

import pytest

from folded import across_lines
from hashidrill.core.errors import ExperimentError
from hashidrill.core.experiment.loader import load_experiment

TWICE = [
    {"name": "first-pause", "fault": "process.pause", "on": "host:consul-1", "for": "2s"},
    {"name": "second-pause", "fault": "process.pause", "on": "host:consul-2", "at": "5s", "for": "5s"},
]


def load(tmp_path, method, fault="second-pause"):
    path = tmp_path / "named.yaml"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "hashidrill/v1",
                "kind": "Experiment",
                "metadata": {"name": "named", "title": "Two pauses", "why": "It tests validation"},
                "load": {"kv-writes": {"kind": "consul.kv.write", "rate": "30/s"}},
                "steady_state": {"for": "2s", "require": ["kv-writes.errors < 1%"]},
                "method": method,
                "expect": [{"does_not_help": {"load": "kv-writes", "fault": fault}}],
            },
            indent=1,
        )
    )
    return load_experiment(path)


def test_an_expectation_names_a_step(tmp_path):
    assert [step.name for step in load(tmp_path, TWICE).method] == ["first-pause", "second-pause"]


def test_a_name_that_no_step_has_is_refused_with_near_ones(tmp_path):
    with pytest.raises(ExperimentError, match=across_lines("did you mean first-pause or second-pause")):
        load(tmp_path, TWICE, "third-pause")


def test_two_steps_of_one_name_are_refused(tmp_path):
    with pytest.raises(ExperimentError, match=across_lines("method[0] already has the name 'second-pause'")):
        load(tmp_path, [{**step, "name": "second-pause"} for step in TWICE])


def test_a_kind_of_fault_is_no_name(tmp_path):
    with pytest.raises(ExperimentError, match=across_lines("'noop' is a kind of fault")):
        load(tmp_path, [*TWICE, {"name": "noop", "fault": "noop", "on": "host:consul-1", "for": "1s"}])
