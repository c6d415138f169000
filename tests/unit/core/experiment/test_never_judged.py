"""An expectation that the times of its experiment leave nothing to judge is refused before anything starts."""

import pytest

from hashidrill.core.errors import ExperimentError
from hashidrill.core.experiment.loader import load_text

TEXT = """
apiVersion: hashidrill/v1
kind: Experiment
metadata: {name: x, title: X, why: a test}
load:
  writes: {kind: consul.kv.write, rate: 50/s, keys: 20, once: 0%, PROFILE}
  watch: {kind: consul.watch, keys_of: writes, keys: 20, count: 20, wait: 3s}
steady_state: {for: 5s, require: ["writes.errors < 1%"]}
method:
  - {fault: disk.latency, on: "consul:leader", with: {delay: 200ms}, for: 10s}
recovery: {for: 10s}
expect:
  - EXPECT
"""


def loaded(expect, *, profile="timeout: 30s", text=TEXT):
    return load_text(text.replace("EXPECT", expect).replace("PROFILE", profile), "x.yaml")


def test_writes_until_the_end_leave_no_watcher_its_time():
    """Each of 20 keys is written 2.5 times a second, so none is left alone for 5 s."""
    with pytest.raises(ExperimentError, match="changes each key every 400ms until the loads stop"):
        loaded("watchers_converge: {load: watch, within: 5s, writes: writes}")


@pytest.mark.parametrize(
    "profile",
    ["profile: {ramp: {to: 0%, over: 10s}}", "timeout: 20s"],
    ids=["writes that end", "keys that are written more seldom"],
)
def test_watchers_that_have_their_time_are_let_be(profile):
    text = TEXT if "profile" in profile else TEXT.replace("keys: 20, once", "keys: 500, once")
    loaded("watchers_converge: {load: watch, within: 5s, writes: writes}", profile=profile, text=text)


def test_both_sides_of_a_contrast_are_looked_at():
    params = "params: {within: 5s, writes: writes}"
    with pytest.raises(ExperimentError, match="no watcher of watch has 5s"):
        loaded(f"contrast: {{of: watchers_converge, good: watch, bad: watch, {params}}}")


@pytest.mark.parametrize(("within", "fits"), [("10s", True), ("11s", False)])
def test_a_cascade_needs_the_time_that_it_allows(within, fits):
    expect = f"cascade_within: {{load: [writes], within: {within}}}"
    if fits:
        loaded(expect)
        return
    with pytest.raises(ExperimentError, match="the loads stop 10s after the end of the fault, before 11s are over"):
        loaded(expect)


MARKED = TEXT.replace(
    '{fault: disk.latency, on: "consul:leader", with: {delay: 200ms}, for: 10s}', "{mark: peak, for: 10s}"
)
NEEDS_FAULT = (
    "available_during: {load: writes}",
    "green_but_sick: {load: writes}",
    "latency_stays: {load: writes}",
    "linearizable: {load: registers}",
    "no_acknowledged_write_lost: {load: writes}",
    "no_two_lock_holders: {load: locks}",
    "renewals_before_claims: {load: locks}",
    "writes_recover: {load: writes, within: 5s}",
)


@pytest.mark.parametrize("expect", NEEDS_FAULT)
def test_a_method_of_marks_alone_leaves_these_nothing_to_judge(expect):
    loads = "registers: {kind: consul.kv.cas, rate: 5/s}\n  locks: {kind: consul.lock, locks: 5}\n  watch:"
    text = MARKED.replace("watch:", loads)
    with pytest.raises(ExperimentError, match="no step of the method has a fault, so there is nothing to judge: add"):
        loaded(expect, text=text)
    loaded(expect, text=TEXT.replace("watch:", loads))
    if "linearizable" not in expect and "holders" not in expect:
        loaded(expect.replace("}", ", fault: peak}"), text=text)


@pytest.mark.lie
def test_a_hypothesis_that_needs_no_fault_takes_marks():
    loaded("leadership_stays: {}", text=MARKED)
