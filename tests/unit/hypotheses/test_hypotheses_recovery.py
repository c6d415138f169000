"""writes_recover and reads_recover: quick again, in time, and to stay."""

import pytest

from hashidrill.core import hypothesis
from hashidrill.core.errors import HypothesisInvalidError
from hashidrill.core.hypothesis import Broken
from hashidrill.testing.recordings import RecordingBuilder

LOAD = "kv-writes"


@pytest.fixture
def builder(tmp_path):
    """A fault from 10 to 30 s; the loads stop at 50 s."""
    return RecordingBuilder(tmp_path / "run").fault("disk.latency", "consul-1", at=10, until=30)


def slow_until(end, slow=3.0):
    return lambda t: slow if 10 <= t < end else 0.01


def check(builder, name="writes_recover", **params):
    return hypothesis.get(name).check(builder.build(), {"load": LOAD, "within": "10s", **params})


@pytest.mark.parametrize("name", ["writes_recover", "reads_recover"])
class TestBoth:
    def test_a_load_that_is_quick_once_the_fault_ended_has_recovered(self, builder, name):
        held = check(builder.load(LOAD, latency=slow_until(34)), name)
        assert held.figures["recovered_after_s"] == pytest.approx(4, abs=0.6)
        assert held.figures["worst_p50_s"] == 3.0
        assert "stayed fast" in held.text

    def test_a_load_that_takes_too_long_has_not(self, builder, name):
        with pytest.raises(Broken) as broken:
            check(builder.load(LOAD, latency=slow_until(44)), name)
        assert broken.value.figures["recovered_after_s"] == pytest.approx(14, abs=0.6)
        assert "within 10s" in broken.value.text
        assert "p50 under 300ms: it stayed there only from 13.5s on" in broken.value.text
        assert "worst 1s since the last fault ended: p50 3s" in broken.value.text

    def test_nothing_but_the_fault_window_measured_is_invalid(self, builder, name):
        with pytest.raises(HypothesisInvalidError, match=r"was silent for the last 20s"):
            check(builder.load(LOAD, end=30), name)


def test_a_relapse_counts_as_not_recovered(builder):
    """Quick from 30 s, slow again from 45 to 47 s: it did not stay so."""
    with pytest.raises(Broken, match=r"it stayed there only from 16\.\ds on"):
        check(builder.load(LOAD, latency=lambda t: 2.0 if 45 <= t < 47 else 0.01))


def test_quick_errors_are_no_recovery(builder):
    """Refused in a millisecond is not served in a millisecond."""
    refused = lambda t: "fail" if t >= 10 else "ok"  # noqa: E731
    with pytest.raises(Broken, match="errors under 1%: they never got there"):
        check(builder.load(LOAD, latency=0.001, outcome=refused))


def test_a_few_errors_that_go_on_are_no_recovery_either(builder):
    """Every tenth operation fails: the median does not see it, the share of errors does."""
    some = lambda t: "fail" if t >= 10 and round(t * 50) % 10 == 0 else "ok"  # noqa: E731
    with pytest.raises(Broken, match=r"errors under 1%.*\(10% of all since then\)") as broken:
        check(builder.load(LOAD, outcome=some))
    assert broken.value.figures["p50_recovered_after_s"] == 0


def test_errors_that_end_in_time_are_forgiven(builder):
    held = check(builder.load(LOAD, outcome=lambda t: "unknown" if 20 < t < 33 else "ok"))
    assert held.figures["errors_recovered_after_s"] == pytest.approx(3, abs=0.3)


def test_operations_that_the_end_of_the_loads_cut_off_are_not_errors(builder):
    builder.load(LOAD, end=49.9)
    for index in range(20):
        builder.write(LOAD, f"cut/{index}", "x", start=49.95, end=50.0, outcome="unknown")
    assert check(builder).figures["errors_share"] == 0


def test_the_slo_of_a_millisecond_fails_in_words_for_a_person(builder):
    with pytest.raises(Broken) as broken:
        check(builder.load(LOAD), p50_below="1ms")
    assert "kv-writes did not recover within 10s after the last fault ended (30.0s into the run)" in broken.value.text
    assert "expected p50 under 1ms: it never got there" in broken.value.text
    assert "p50 10ms" in broken.value.text
    assert "hint:" in broken.value.text


def test_the_kind_that_is_named_counts(builder):
    builder.fault("process.pause", "consul-2", at=12, until=40).load(LOAD, latency=slow_until(42))
    assert check(builder).figures["recovered_after_s"] == pytest.approx(2, abs=0.6)
    with pytest.raises(Broken, match=r"it stayed there only from 11\.\ds on"):
        check(builder, fault="disk.latency")


def test_a_kind_that_is_not_in_the_run_is_invalid_and_the_near_one_is_named(builder):
    with pytest.raises(HypothesisInvalidError, match=r"did you mean disk\.latency"):
        check(builder.load(LOAD), fault="disk.latencies")


def test_a_fault_that_was_never_reverted_is_invalid(tmp_path):
    built = RecordingBuilder(tmp_path / "run").fault("disk.latency", at=10, until=None).load(LOAD)
    with pytest.raises(HypothesisInvalidError, match="never reverted"):
        check(built)


def test_a_recovery_shorter_than_allowed_is_invalid_when_it_did_not_recover(builder):
    """Loads stopped 20 s after the fault; 30 s were allowed: nobody knows."""
    with pytest.raises(HypothesisInvalidError, match="longer `recovery"):
        check(builder.load(LOAD, latency=slow_until(99)), within="30s")


def test_a_recovery_shorter_than_allowed_is_enough_when_it_did(builder):
    assert check(builder.load(LOAD, latency=slow_until(32)), within="30s")


def test_a_load_that_does_not_exist_is_invalid_and_those_there_are_named(builder):
    with pytest.raises(HypothesisInvalidError, match=r"'kv-reads' has no operations.*kv-writes"):
        check(builder.load(LOAD), load="kv-reads")
