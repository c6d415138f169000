"""No verdict takes a mark for a fault: what needs one is INVALID where the method has only marks."""

import pytest

from hashidrill.core.errors import HypothesisInvalidError
from hashidrill.core.judging import measure
from hashidrill.core.judging.checkable import spans_in_force
from hashidrill.core.judging.judge import judge
from hashidrill.core.judging.verdict import Finding, Verdict
from hashidrill.testing.recordings import RecordingBuilder

LOAD = "kv-writes"
S = 1_000_000_000


def marked(tmp_path, *, until=30, mark="load-grows", name="run"):
    built = RecordingBuilder(tmp_path / name).mark(mark, at=10, until=until).load(LOAD).healthy()
    return built.final_reads(LOAD)


def verdict_of(builder, hypothesis, **params):
    [judgement] = judge(builder.expect(hypothesis, **params).build()).judgements
    return judgement.finding, judgement.text


# lies: only marks, and nobody named them


@pytest.mark.lie
@pytest.mark.parametrize(
    ("hypothesis", "params"),
    [
        ("no_acknowledged_write_lost", {"load": LOAD}),
        ("available_during", {"load": LOAD}),
        ("latency_stays", {"load": LOAD, "p50_below": "1s"}),
        ("writes_recover", {"load": LOAD, "p50_below": "1s", "within": "5s"}),
        ("reads_recover", {"load": LOAD, "p50_below": "1s", "within": "5s"}),
        ("leader_elected", {"within": "5s"}),
        ("recovers_without_restart", {"load": LOAD, "within": "5s"}),
        ("green_but_sick", {"load": LOAD}),
    ],
)
def test_what_needs_a_fault_is_invalid_where_there_are_only_marks(tmp_path, hypothesis, params):
    finding, text = verdict_of(marked(tmp_path), hypothesis, **params)
    assert finding is Finding.INVALID
    assert "fault" in text


def test_no_mark_is_a_span_in_force(tmp_path):
    """Locks and linearizability have no parameter that could name one."""
    assert spans_in_force(marked(tmp_path).build()) == []


@pytest.mark.parametrize(
    ("hypothesis", "params"),
    [("leadership_leaves", {"within": "5s"}), ("leader_elected", {"within": "5s"})],
)
def test_what_asks_for_the_host_of_a_fault_is_invalid_for_a_mark(tmp_path, hypothesis, params):
    finding, text = verdict_of(marked(tmp_path), hypothesis, fault="load-grows", **params)
    assert finding is Finding.INVALID
    assert "load-grows is a mark, which breaks nothing" in text


def test_a_plug_in_that_asks_for_faults_gets_no_mark(tmp_path):
    recording = marked(tmp_path).build()
    for name in (None, "load-grows"):
        with pytest.raises(HypothesisInvalidError, match="mark"):
            measure.faults(recording, name)


@pytest.mark.lie
def test_a_mark_beside_an_unproven_fault_does_not_stand_in_for_it(tmp_path):
    built = marked(tmp_path).fault("disk.latency", at=12, until=20, proven=False)
    assert judge(built.expect("available_during", load=LOAD, fault="load-grows").build()).verdict is Verdict.INVALID


def test_a_mark_that_never_began_makes_the_run_invalid(tmp_path):
    built = marked(tmp_path)
    built._method.append({"mark": "second", "at": "30s", "for": "5s"})
    result = judge(built.expect("available_during", load=LOAD, fault="load-grows").build())
    assert result.invalid == ["the run never reached step 2 of the method (mark second)"]
    with pytest.raises(HypothesisInvalidError, match="the run ended before its step second"):
        measure.windows(built.build(), "second")


def test_a_method_of_faults_that_were_never_applied_is_invalid_whatever_its_marks(tmp_path):
    built = marked(tmp_path)
    built._method.append({"fault": "disk.latency", "on": "consul:leader", "with": {"delay": "1s"}, "for": "5s"})
    result = judge(built.expect("available_during", load=LOAD, fault="load-grows").build())
    assert "no fault was applied, so the run proves nothing" in result.invalid


# named, a mark is the window of time that it stands for


@pytest.mark.parametrize(
    ("hypothesis", "params"),
    [
        ("no_acknowledged_write_lost", {}),
        ("available_during", {}),
        ("latency_stays", {"p50_below": "1s"}),
        ("writes_recover", {"p50_below": "1s", "within": "5s"}),
    ],
)
def test_a_mark_counts_where_it_is_named(tmp_path, hypothesis, params):
    built = marked(tmp_path)
    result = judge(built.expect(hypothesis, load=LOAD, fault="load-grows", **params).build())
    assert result.invalid == []
    assert result.verdict is Verdict.PASS
    assert "load-grows" in result.judgements[0].text or hypothesis == "writes_recover"


def test_what_happens_in_a_mark_is_what_is_judged(tmp_path):
    built = RecordingBuilder(tmp_path / "run").mark("load-grows", at=10, until=30)
    built.load(LOAD, latency=lambda at: 2.0 if 12 <= at < 20 else 0.01).healthy().final_reads(LOAD)
    assert verdict_of(built, "latency_stays", load=LOAD, fault="load-grows")[0] is Finding.BROKEN
    after = RecordingBuilder(tmp_path / "after").mark("load-grows", at=10, until=30)
    after.load(LOAD, latency=lambda at: 2.0 if 35 <= at < 40 else 0.01).healthy().final_reads(LOAD)
    assert verdict_of(after, "latency_stays", load=LOAD, fault="load-grows")[0] is Finding.HELD


def test_a_write_that_a_mark_overwrote_too_often_is_invalid_there_too(tmp_path):
    built = RecordingBuilder(tmp_path / "run").mark("load-grows", at=10, until=30)
    built.load(LOAD, keys=5, end=48).final_reads(LOAD)
    finding, text = verdict_of(built, "no_acknowledged_write_lost", load=LOAD, fault="load-grows")
    assert finding is Finding.INVALID
    assert "acknowledged while load-grows was in force" in text


def test_a_mark_lasts_as_long_as_it_did(tmp_path):
    recording = marked(tmp_path).build()
    [mark] = measure.windows(recording, "load-grows")
    assert measure.in_force(recording, mark) == (10 * S, 30 * S)
    assert measure.faults_end_ns(recording, "load-grows") == 30 * S
    assert measure.named(recording, mark) == "load-grows"
    [open_end] = measure.windows(cut := marked(tmp_path, until=None, name="cut").build(), "load-grows")
    assert measure.in_force(cut, open_end) == (10 * S, measure.loads_end_ns(cut))
