"""Marks: steps that name a part of the method and break nothing, as an experiment may write them.
`run --no-faults`: what is left of an experiment when nothing is broken, and what it then expects.
"""

import json

import pytest

from hashidrill.core.errors import ExperimentError
from hashidrill.core.experiment.documents import Document
from hashidrill.core.experiment.library import experiments, find_experiment
from hashidrill.core.experiment.loader import load_experiment, resolve, resolve_document
from hashidrill.core.experiment.model import STEP_TAGS, Mark, Step
from hashidrill.core.experiment.without_faults import NAME, without_faults
from hashidrill.core.judging.judge import judge
from hashidrill.core.judging.verdict import Verdict
from hashidrill.core.recording.reader import Recording
from hashidrill.testing.recordings import RecordingBuilder

GROWS = {"mark": "load-grows", "at": "2s", "for": "10s"}
PAUSE = {"fault": "process.pause", "on": "host:consul-1", "at": "5s", "for": "2s"}


def document(method, fault="load-grows", **load):
    return {
        "apiVersion": "hashidrill/v1",
        "kind": "Experiment",
        "metadata": {"name": "marked", "title": "A mark", "why": "It tests validation"},
        "load": {"kv-writes": {"kind": "consul.kv.write", "rate": "30/s", **load}},
        "steady_state": {"for": "2s", "require": ["kv-writes.errors < 1%"]},
        "method": method,
        "recovery": {"for": "2s"},
        "expect": [{"makes_sick": {"load": "kv-writes", "fault": fault}}],
    }


@pytest.fixture
def written(tmp_path):
    def write(method, **more):
        path = tmp_path / "marked.yaml"
        path.write_text(json.dumps(document(method, **more), indent=1))
        return path

    return write


def refused(path):
    with pytest.raises(ExperimentError) as refusal:
        load_experiment(path)
    return unfolded(str(refusal.value))


def unfolded(text):
    """A message folds at the length of the file's path."""
    return " ".join(text.split())


def test_a_mark_is_a_step_with_a_name_and_a_time(written):
    experiment = load_experiment(written([GROWS, PAUSE]))
    mark, pause = experiment.method
    assert isinstance(mark, Mark)
    assert (mark.name, mark.at, mark.for_) == ("load-grows", 2, 10)
    assert isinstance(pause, Step)
    assert experiment.faults == [pause]


def test_an_expectation_can_only_name_a_mark_that_is_there(written):
    text = refused(written([GROWS], fault="load-shrinks"))
    assert "there is no step of the method with the fault 'load-shrinks': did you mean load-grows" in text
    assert refused(written([PAUSE], fault="load-grows"))
    load_experiment(written([GROWS, {**PAUSE, "name": "a-pause"}], fault="a-pause"))


@pytest.mark.parametrize(
    ("step", "at", "words"),
    [
        ({"mark": "load-grows"}, "method[0]", "for is missing: a duration, like 500ms or 10s"),
        ({**GROWS, "for": "0s"}, "method[0].for", "a mark must last longer than 0s"),
        ({**GROWS, "for": "10"}, "method[0].for", "unit"),
        ({**GROWS, "mark": "Load grows"}, "method[0].mark", "a name of lower-case words joined by dashes"),
        ({**GROWS, "mark": 7}, "method[0].mark", "expected text, got 7"),
        ({**GROWS, "mark": "noop"}, "method[0].mark", "'noop' is a kind of fault"),
        (
            {**GROWS, "at": "59m", "for": "2m"},
            "method[0].for",
            "the mark would end 61m into the method; at + for may be at most 1h",
        ),
        ({**GROWS, "on": "consul:leader"}, "method[0]", "unknown key 'on'"),
        ({**GROWS, "fore": "1s"}, "method[0]", "unknown key 'fore': did you mean for"),
        ({**GROWS, "fault": "noop"}, "method[0]", "a step is either a fault or a mark"),
        ({"at": "2s", "for": "2s", "on": "consul:leader"}, "method[0]", "fault is missing"),
        ({**PAUSE, "name": "noop"}, "method[0].name", "'noop' is a kind of fault"),
        ({**PAUSE, "fro": "1s"}, "method[0]", "unknown key 'fro': did you mean for"),
        ("load-grows", "method[0]", "expected a mapping (`key: value`), got 'load-grows'"),
    ],
)
def test_a_mark_that_is_not_right_is_told_so_in_the_words_of_the_yaml(written, step, at, words):
    text = refused(written([step, PAUSE], fault="process.pause"))
    assert words in text
    assert at in text
    for tag in STEP_TAGS:
        assert tag not in text, "pydantic's tag is nothing that the user wrote"


def test_marks_and_faults_share_their_names(written):
    text = refused(written([{**PAUSE, "name": "load-grows"}, GROWS]))
    assert "method[0] already has the name 'load-grows'" in text


def test_a_mark_collides_with_nothing(written):
    partition = {"fault": "network.partition", "on": "consul:leader", "for": "20s"}
    load_experiment(written([partition, GROWS, {**GROWS, "mark": "another"}]))


def test_a_mark_makes_room_for_a_profile(written):
    spike = {"profile": {"spike": {"to": "200%", "at": "1s", "for": "10s"}}}
    load_experiment(written([GROWS], **spike))
    text = refused(written([{**GROWS, "for": "1s"}], **spike))
    assert "make a step of the method (a mark will do) or the recovery last longer" in text


def test_a_mark_is_no_step_that_could_not_be_read(written):
    """Else what looks at all steps together would hold its tongue: here, that nothing saves this snapshot."""
    restore = {"fault": "consul.snapshot.restore", "on": "consul:leader", "with": {"snapshot": "before"}, "for": "1s"}
    assert "no step saves a snapshot 'before'" in refused(written([GROWS, restore]))


# the old way


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
