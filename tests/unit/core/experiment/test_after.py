"""`after`: what a step may come after."""

from __future__ import annotations

import re

import pytest

import places
from hashidrill.core.errors import ExperimentError
from hashidrill.core.experiment.loader import load_text
from hashidrill.core.judging.measure import at_in_method_ns
from hashidrill.testing.recordings import RecordingBuilder

S = 1_000_000_000
GOOD = places.GOOD.read_text()


def method(*steps):
    return re.sub(r"(?ms)^method:.*?(?=^\w)", "method:\n" + "".join(f"  - {step}\n" for step in steps), GOOD)


def problems(*steps):
    with pytest.raises(ExperimentError) as caught:
        load_text(method(*steps))
    return " ".join(str(caught.value).split())


SLOW = '{name: slow, fault: disk.latency, on: "consul:leader", with: {delay: 200ms}, at: 2s, for: 8s}'


def test_a_fault_or_a_mark_comes_after_faults_that_begin_before_it():
    step = '{fault: process.pause, on: "host:consul-2", at: 12s, for: 2s, after: [slow]}'
    experiment = load_text(method(SLOW, step, "{mark: later, at: 12s, for: 1s, after: [slow]}"))
    assert [each.after for each in experiment.method] == [[], ["slow"], ["slow"]]


def test_what_it_cannot_come_after_is_said_with_its_place():
    mark = "{mark: later, at: 12s, for: 1s, after: %s}"
    assert "method[1].after: 'slwo' is no name of a fault in this method: did you mean slow?" in problems(
        SLOW, mark % "[slwo]"
    )
    assert "'first' is a mark, which goes by the clock" in problems(
        SLOW, "{mark: first, at: 0s, for: 1s}", mark % "[first]"
    )
    assert "'slow' begins 2s into the method, not before this step (1s)" in problems(
        SLOW, "{mark: later, at: 1s, for: 1s, after: [slow]}"
    )
    assert "method[0].after" in problems(SLOW.replace("for: 8s", "for: 8s, after: [slow]"))
    assert "after" in problems(SLOW, mark % "slow")


def test_what_was_planned_after_a_stop_came_later_in_the_recording(tmp_path):
    run = RecordingBuilder(tmp_path / "run").fault("disk.latency", "consul-1", at=10, until=30)
    run.event("clock.goes", at=40, at_s=12.0, stood_ns=5 * S)
    run.event("clock.goes", at=60, at_s=20.0, stood_ns=2 * S)
    recording = run.build()
    begin_ns = recording.phases["method"][0]
    assert [(at_in_method_ns(recording, at_s) - begin_ns) / S for at_s in (3, 12, 13, 20, 25)] == [3, 12, 18, 25, 32]
