"""`run --no-faults`: what is left of an experiment when nothing is broken, and what it then expects."""

import json

import pytest

from hashidrill.core.experiment.documents import Document
from hashidrill.core.experiment.library import experiments, find_experiment
from hashidrill.core.experiment.loader import resolve, resolve_document
from hashidrill.core.experiment.model import Mark
from hashidrill.core.experiment.without_faults import NAME, without_faults
from hashidrill.core.judging.judge import judge
from hashidrill.core.judging.verdict import Verdict
from hashidrill.core.recording.reader import Recording
from hashidrill.testing.recordings import RecordingBuilder


@pytest.mark.parametrize("name", sorted(experiments()))
def test_every_experiment_that_ships_can_be_run_without_its_faults(name):
    given = resolve(find_experiment(name))
    left = without_faults(given).experiment
    [mark] = left.method
    assert isinstance(mark, Mark)
    assert mark.for_ == max(step.at + step.for_ for step in given.experiment.method)
    assert not left.faults
    assert [each.hypothesis for each in left.expect] == [
        "steady_state_holds",
        *("signal_stays" for _ in given.experiment.probes),
    ]
    for kept in ("datacenter", "load", "clients", "probes", "steady_state", "guardrails", "recovery", "metadata"):
        assert getattr(left, kept) == getattr(given.experiment, kept), kept


def test_it_is_a_variant_of_its_own_and_so_a_series_of_its_own():
    left = without_faults(resolve(find_experiment("raft/slow-leader-disk")))
    assert left.variant == NAME
    assert "steady_state_holds" in json.dumps(left.hypotheses)


def test_a_probe_has_to_be_well_and_one_that_only_measures_has_to_answer():
    page = {"kind": "http", "url": "http://client-1:8500/"}
    query = {"kind": "prometheus", "url": "http://127.0.0.1:9090", "query": "up"}
    over = {**resolve(find_experiment("raft/slow-leader-disk")).data, "probes": {"page": page, "query": query}}
    given = resolve_document(Document("own.yaml", json.dumps(over)), path="own.yaml")
    asked = [each.params["condition"] for each in without_faults(given).experiment.expect[1:]]
    assert asked == ["page.ok == 1", "query.value >= -999999999999999"]


@pytest.mark.lie
@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [(lambda _: "ok", Verdict.PASS), (lambda t: "fail" if 20 <= t < 21 else "ok", Verdict.FAIL)],
)
def test_a_run_in_which_nothing_breaks_is_judged_and_not_invalid_for_want_of_a_fault(tmp_path, outcome, verdict):
    builder = RecordingBuilder(tmp_path / "run").mark(NAME, at=10, until=30).load("kv-writes", outcome=outcome)
    recording = Recording(builder.healthy().expect("steady_state_holds").build().path)
    assert judge(recording).verdict is verdict
