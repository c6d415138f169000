"""helps, stays_sick, does_not_help, makes_sick: what each measure of an incident did, or did not."""

import pytest

from hashidrill.core import hypothesis
from hashidrill.core.errors import HypothesisInvalidError
from hashidrill.core.hypothesis import Broken
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
    assert (held.figures["p50_before_s"], held.figures["p50_after_s"]) == (2.0, 0.02)
    assert held.text == "measure helped kv-writes: p50 2s before it, 20ms at its end: 100 times faster (100 to 100)"


@pytest.mark.parametrize(
    ("latency", "name", "said"),
    [
        (uncured, "helps", "measure did not help kv-writes: p50 2s before it, 2s at its end"),
        (cured, "does_not_help", "measure did help kv-writes: p50 2s before it, 20ms at its end"),
        (cured, "stays_sick", "did not stay sick under measure"),
    ],
)
def test_what_it_did_not_do_is_told(tmp_path, latency, name, said):
    with pytest.raises(Broken, match=said):
        check(played(tmp_path, latency), name)


def test_what_did_not_help_shows_no_difference(tmp_path):
    held = check(played(tmp_path, uncured), "does_not_help")
    assert held.text.endswith("p50 2s before it, 2s at its end: no difference shown (1 times, 1 to 1)")
    assert (held.figures["ratio"], held.figures["ratio_low"], held.figures["ratio_high"]) == (1, 1, 1)


def test_what_made_the_load_sick(tmp_path):
    recording = played(tmp_path, sickened)
    assert check(recording, "makes_sick").text.endswith("20ms before it, 2s at its end: 100 times slower (100 to 100)")
    with pytest.raises(Broken, match="measure did not make kv-writes slow"):
        check(played(tmp_path / "well", lambda _t: 0.02), "makes_sick")


@pytest.mark.parametrize("name", ["helps", "stays_sick", "does_not_help"])
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
    assert "measure helped kv-writes: p50 2s before it, 20ms 5s into it" in check(relapse, "helps", after="5s").text
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
    assert check(recording, "does_not_help", since="block-all").figures["p50_after_s"] == 2.0
    with pytest.raises(HypothesisInvalidError, match="was not slow before measure began"):
        check(recording, "does_not_help")


class TestHelpThatWasNotEnough:
    """From 5.35 s to 634 ms: sick still, and eight times faster."""

    @pytest.fixture
    def recording(self, tmp_path):
        return played(tmp_path, lambda t: 5.35 if t < 16 else 0.634, until=30)

    @pytest.mark.lie
    def test_is_help(self, recording):
        with pytest.raises(
            Broken, match=r"measure helped kv-writes, but not enough: p50 5.35s before it, 634ms at its"
        ):
            check(recording, "does_not_help")

    def test_leaves_the_load_sick(self, recording):
        held = check(recording, "stays_sick")
        assert held.text.startswith("kv-writes stayed sick under measure: p50 5.35s before it")
        assert held.text.endswith("8.44 times faster (8.44 to 8.44)")

    def test_is_no_cure(self, recording):
        with pytest.raises(Broken, match=r"measure helped kv-writes, but not enough: .* expected under 300ms"):
            check(recording, "helps")


@pytest.mark.parametrize("name", ["helps", "does_not_help", "makes_sick"])
def test_what_varies_as_much_by_itself_shows_nothing(tmp_path, name):
    """Every second another latency: what a step changed is lost in that."""
    levels = {
        "helps": lambda t: (0.25, 0.35, 0.35)[int(t + 1) % 3] if t < 16 else (0.28, 0.28, 0.36)[int(t) % 3],
        "does_not_help": lambda t: (1.0, 4.0)[int(t * 1.1) % 2],
        "makes_sick": lambda t: (0.25, 0.35)[int(t * 1.1) % 2] - (0.06 if t < 16 else 0),
    }
    with pytest.raises(HypothesisInvalidError, match="cannot tell whether measure"):
        check(played(tmp_path, levels[name]), name)


def test_of_a_few_operations_no_ratio_is_told(tmp_path):
    builder = RecordingBuilder(tmp_path / "run").fault("consul.config", "client-1", at=14, until=24, name="measure")
    recording = builder.load(LOAD, rate=0.7, latency=cured).build()
    with pytest.raises(HypothesisInvalidError, match=r"only 2 operations of kv-writes were due .* too few"):
        check(recording, "helps")


def test_what_failed_before_and_fails_still_was_not_helped(tmp_path):
    recording = played(tmp_path, 0.01, outcome="fail")
    assert "no difference shown" in check(recording, "does_not_help").text
