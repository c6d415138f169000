"""helps, does_not_help, makes_sick: what each measure of an incident did, or did not."""

from __future__ import annotations

import pytest

from hashidrill import hypothesis
from hashidrill.errors import HypothesisInvalidError
from hashidrill.hypothesis import Broken
from hashidrill.testing.recordings import RecordingBuilder

LOAD = "kv-writes"


def played(tmp_path, latency, *, name="measure", outcome="ok", until=24.0):
    """A measure from 14 to `until`, in a method that begins at 10."""
    builder = RecordingBuilder(tmp_path / "run").fault("noop", at=10, until=40)
    builder.fault("consul.config", "client-1", at=14, until=until, name=name)
    return builder.load(LOAD, latency=latency, outcome=outcome).build()


def check(recording, name, **params):
    return hypothesis.get(name).check(recording, {"load": LOAD, "fault": "measure", **params})


def cured(t):
    return 2.0 if t < 16 else 0.02


def uncured(_t):
    return 2.0


def sickened(t):
    return 0.02 if t < 16 else 2.0


def test_what_brought_the_load_back_helped(tmp_path):
    held = check(played(tmp_path, cured), "helps")
    assert held.figures == {"p50_before_s": 2.0, "p50_after_s": 0.02}
    assert held.text == "measure helped kv-writes: p50 2s before it, 20ms at its end"


def test_what_left_it_sick_did_not_help(tmp_path):
    recording = played(tmp_path, uncured)
    assert check(recording, "does_not_help").figures == {"p50_before_s": 2.0, "p50_after_s": 2.0}
    with pytest.raises(Broken, match="measure did not help kv-writes: p50 2s before it, 2s at its end"):
        check(recording, "helps")


def test_a_cure_is_no_vain_attempt(tmp_path):
    with pytest.raises(Broken, match="measure did help kv-writes: p50 2s before it, 20ms at its end"):
        check(played(tmp_path, cured), "does_not_help")


def test_what_made_the_load_sick(tmp_path):
    recording = played(tmp_path, sickened)
    assert check(recording, "makes_sick").figures == {"p50_before_s": 0.02, "p50_after_s": 2.0}
    with pytest.raises(Broken, match="measure did not make kv-writes slow"):
        check(played(tmp_path / "well", lambda _t: 0.02), "makes_sick")


@pytest.mark.parametrize("name", ["helps", "does_not_help"])
def test_nothing_helps_who_is_not_sick(tmp_path, name):
    with pytest.raises(HypothesisInvalidError, match=r"was not slow before measure began \(p50 20ms\)"):
        check(played(tmp_path, sickened), name)


def test_who_was_sick_before_was_not_made_sick(tmp_path):
    with pytest.raises(HypothesisInvalidError, match="measure need not be the cause"):
        check(played(tmp_path, uncured), "makes_sick")


def test_errors_are_no_cure_however_quick(tmp_path):
    recording = played(tmp_path, cured, outcome=lambda t: "ok" if t < 16 else "fail")
    with pytest.raises(Broken, match="p50 2s before it, never at its end"):
        check(recording, "helps")


def test_the_end_of_the_measure_counts_and_not_what_comes_after(tmp_path):
    relapse = played(tmp_path, lambda t: 2.0 if t < 16 or t >= 24 else 0.02)
    assert check(relapse, "helps").figures["p50_after_s"] == 0.02


def test_a_measure_shorter_than_what_is_judged_says_nothing(tmp_path):
    with pytest.raises(HypothesisInvalidError, match="in force for only 2s"):
        check(played(tmp_path, cured, until=16), "helps")


def test_a_step_that_is_not_there_is_named_with_near_ones(tmp_path):
    recording = played(tmp_path, cured, name="streaming-off")
    with pytest.raises(HypothesisInvalidError, match="did you mean streaming-off"):
        check(recording, "helps", fault="streaming-of")


def test_what_happens_later_does_not_count_where_a_moment_is_named(tmp_path):
    relapse = played(tmp_path, lambda t: 2.0 if t < 16 or t >= 20 else 0.02)
    assert check(relapse, "helps", after="5s").text == "measure helped kv-writes: p50 2s before it, 20ms 5s into it"
    assert check(relapse, "does_not_help").figures["p50_after_s"] == 2.0
    with pytest.raises(HypothesisInvalidError, match="in force for only 10s, less than the 12s"):
        check(relapse, "helps", after="12s")


def test_a_step_that_the_run_never_came_to_is_no_typing_error(tmp_path):
    builder = RecordingBuilder(tmp_path / "run").fault("noop", at=10, until=40).load(LOAD)
    builder._method.append({"name": "measure", "fault": "noop", "on": "host:consul-1", "at": "50s", "for": "5s"})
    with pytest.raises(HypothesisInvalidError, match="the run ended before its step measure"):
        check(builder.build(), "helps")


def test_several_steps_together_are_judged_from_before_the_first_of_them(tmp_path):
    builder = RecordingBuilder(tmp_path / "run").fault("network.block", "consul-1", at=14, until=20, name="block-all")
    builder.fault("consul.snapshot.restore", "consul-1", at=17, until=30, name="measure")
    recording = builder.load(LOAD, latency=lambda t: 0.02 if 14 <= t < 20 else 2.0).build()
    assert check(recording, "does_not_help", since="block-all").figures == {"p50_before_s": 2.0, "p50_after_s": 2.0}
    with pytest.raises(HypothesisInvalidError, match="was not slow before measure began"):
        check(recording, "does_not_help")
