"""A time that a hypothesis allows must be over before the loads stop: an experiment without room for it is refused."""

import inspect

import pytest

import places
from hashidrill.core import hypothesis
from hashidrill.core.errors import ExperimentError
from hashidrill.core.experiment.loader import load_text

TEXT = """\
apiVersion: hashidrill/v1
kind: Experiment
metadata: {{name: short, title: A short recovery, why: A test}}
datacenter: {{consul: {{servers: 3, clients: 1}}}}
load: {{writes: {{kind: consul.kv.write, rate: 10/s}}}}
steady_state: {{for: 5s, require: ["writes.errors < 1%"]}}
method:
  - {{fault: process.kill, on: "host:consul-1", at: 5s, for: 10s, name: first}}
  - {{fault: process.pause, on: "host:consul-2", at: 20s, for: 10s}}
{recovery}
expect:
  - {expectation}
"""
ELSEWHERE = {
    "checks_keep_interval": "how late a check may be",
    "load_is_shed": "how long a refusal may take",
    "survives_leader_changes": "how long a stall may be, anywhere in the run",
}


def refused(expectation, recovery="recovery: {for: 10s}"):
    try:
        load_text(TEXT.format(expectation=expectation, recovery=recovery))
    except ExperimentError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("expectation", "says"),
    [
        ("nodes_reappear: {within: 11s}", "the loads stop 10s after the end of the fault, before 11s are over"),
        ("writes_recover: {load: writes, within: 10s}", "before 11s are over"),  # with its window of 1 s
        ("writes_recover: {load: writes, within: 9s}", ""),
        ("writes_recover: {load: writes, within: 35s, since: start}", "35s after the start of the fault, before 36s"),
        ("writes_recover: {load: writes, within: 24s, fault: first}", ""),
        ("writes_recover: {load: writes, within: 25s, fault: first}", "25s after the end of the fault"),
        ("leader_elected: {within: 36s}", "35s after the start of the fault"),
        ("leader_elected: {within: 21s, fault: process.pause}", "20s after the start of the fault"),
        ("leadership_leaves: {within: 11s, fault: first}", "the fault lasts 10s, less than 11s"),
        ("registrations_stay_wrong: {load: writes, for_at_least: 36s}", "before 36s are over"),
        ("contrast: {of: writes_recover, good: writes, bad: writes, params: {within: 10s}}", "before 11s are over"),
    ],
)
def test_it_is_refused_with_what_to_make_longer(expectation, says):
    said = " ".join(refused(expectation).split())
    assert says in said
    assert bool(says) == bool(said)


def test_the_default_recovery_counts_as_if_it_were_written():
    assert "20s after the end of the fault" in " ".join(refused("nodes_reappear: {within: 21s}", recovery="").split())


def test_every_shipped_hypothesis_with_a_time_to_be_over_says_where_it_must_be_over():
    """A new one with `within` declares its `room`, or is listed here with what its `within` is instead."""
    shipped = [h for h in hypothesis.all_hypotheses().values() if h.path.is_relative_to(places.ROOT / "hypotheses")]
    timed = {h.name for h in shipped if {"within", "for_at_least"} & set(inspect.signature(h.function).parameters)}
    assert timed - {h.name for h in shipped if h.never} == set(ELSEWHERE)
