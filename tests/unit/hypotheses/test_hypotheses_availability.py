"""available_during and latency_stays: what users have while the fault is in force."""

import pytest

from hashidrill.core import hypothesis
from hashidrill.core.errors import HypothesisInvalidError
from hashidrill.core.hypothesis import Broken
from hashidrill.testing.recordings import RecordingBuilder

LOAD = "kv-reads"


@pytest.fixture
def builder(tmp_path):
    return RecordingBuilder(tmp_path / "run").fault("network.loss", "consul-2", at=10, until=30)


def check(builder, name, **params):
    return hypothesis.get(name).check(builder.build(), {"load": LOAD, **params})


class TestAvailableDuring:
    def test_holds_when_nearly_everything_is_acknowledged(self, builder):
        held = check(builder.load(LOAD), "available_during")
        assert held.figures["success_share"] == 1.0
        assert held.figures["operations"] == 1000
        assert "100% of 1000" in held.text

    def test_is_broken_when_too_much_fails_and_says_how_much_and_when_first(self, builder):
        failing = lambda t: "fail" if 12 <= t < 13 else "ok"  # noqa: E731
        with pytest.raises(Broken) as broken:
            check(builder.load(LOAD, outcome=failing), "available_during")
        assert "95% of 1000 operations were acknowledged, expected at least 99%" in broken.value.text
        assert "first failure: 12.0s into the run, fail: no leader" in broken.value.text

    def test_what_fails_outside_the_fault_does_not_count(self, builder):
        outside = lambda t: "ok" if 10 <= t < 30 else "fail"  # noqa: E731
        assert check(builder.load(LOAD, outcome=outside), "available_during")

    @pytest.mark.long
    def test_one_failure_is_never_rounded_to_everything(self, builder):
        builder.load(LOAD, rate=5000, start=10, end=30, outcome=lambda t: "fail" if t == 20 else "ok")
        with pytest.raises(Broken, match=r"over 99\.99% of 100000"):
            check(builder, "available_during", success="100%")

    def test_the_p99_of_the_successful_ones_may_have_a_limit(self, builder):
        slow = lambda t: 1.5 if round(t * 50) % 20 == 0 else 0.01  # noqa: E731
        with pytest.raises(Broken, match=r"p99 of the successful operations was 1\.5s, expected under 1s"):
            check(builder.load(LOAD, latency=slow), "available_during", p99_below="1s")

    def test_only_the_fault_that_is_named_counts(self, builder):
        builder.fault("cpu.throttle", "consul-1", at=31, until=40).load(
            LOAD, outcome=lambda t: "fail" if t > 31 else "ok"
        )
        assert check(builder, "available_during", fault="network.loss")

    def test_overlapping_faults_count_an_operation_once(self, builder):
        builder.fault("cpu.throttle", "consul-1", at=10, until=30).load(LOAD)
        assert check(builder, "available_during").figures["operations"] == 1000

    def test_nothing_due_under_the_fault_is_invalid(self, builder):
        with pytest.raises(HypothesisInvalidError, match="no operation was due"):
            check(builder.load(LOAD, start=30), "available_during")

    def test_a_fault_that_was_not_proven_is_invalid(self, tmp_path):
        built = RecordingBuilder(tmp_path / "run").fault("network.loss", at=10, until=30, proven=False).load(LOAD)
        with pytest.raises(HypothesisInvalidError, match="no fault was proven in force"):
            check(built, "available_during")


class TestLatencyStays:
    def test_holds_when_nobody_notices(self, builder):
        held = check(builder.load(LOAD), "latency_stays", p99_below="500ms")
        assert held.figures["worst_p50_s"] == pytest.approx(0.01)
        assert held.figures["worst_p99_s"] == pytest.approx(0.01)

    def test_is_broken_by_a_bad_stretch_that_the_whole_would_average_away(self, builder):
        """Five slow seconds of twenty: the median of the whole fault window would not see them."""
        with pytest.raises(Broken) as broken:
            check(builder.load(LOAD, latency=lambda t: 0.8 if 15 <= t < 20 else 0.01), "latency_stays")
        assert "p50 over 5s reached 800ms" in broken.value.text
        assert "into the run; expected it to stay under 300ms" in broken.value.text

    def test_failing_quickly_is_not_quick(self, builder):
        with pytest.raises(Broken, match="reached never"):
            check(builder.load(LOAD, latency=0.001, outcome=lambda t: "fail" if t > 20 else "ok"), "latency_stays")

    def test_slowness_after_the_fault_does_not_count(self, builder):
        assert check(builder.load(LOAD, latency=lambda t: 5.0 if t >= 30 else 0.01), "latency_stays")

    def test_a_fault_shorter_than_the_window_is_judged_whole(self, tmp_path):
        built = RecordingBuilder(tmp_path / "run").fault("process.pause", at=10, until=12)
        with pytest.raises(Broken, match="reached 2s"):
            check(built.load(LOAD, latency=lambda t: 2.0 if 10 <= t < 12 else 0.01), "latency_stays")

    def test_no_limit_at_all_is_invalid(self, builder):
        with pytest.raises(HypothesisInvalidError, match="no limit to check"):
            check(builder.load(LOAD), "latency_stays", p50_below=None)

    def test_nothing_due_under_the_fault_is_invalid(self, builder):
        with pytest.raises(HypothesisInvalidError, match="no operation was due"):
            check(builder.load(LOAD, end=9), "latency_stays")
