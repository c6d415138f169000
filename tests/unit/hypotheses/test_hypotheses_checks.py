"""Checks that keep their interval, slip, or do not come; and where the arrivals come from."""

import pytest

from hashidrill.core import hypothesis
from hashidrill.core.errors import HypothesisInvalidError
from hashidrill.core.hypothesis import Broken
from hashidrill.core.loads.arrivals import Arrivals
from hashidrill.testing.recordings import RecordingBuilder


@pytest.fixture
def builder(tmp_path):
    return RecordingBuilder(tmp_path / "run").fault("noop", "client-1", at=10, until=30)


def check(builder, **params):
    return hypothesis.get("checks_keep_interval").check(builder.build(), {"load": "checks", **params})


def test_holds_when_the_drift_is_small(builder):
    held = check(builder.load("checks", latency=0.004))
    assert held.figures["drift_p99_s"] == pytest.approx(0.004)
    assert held.figures["checks_per_s"] == pytest.approx(50, rel=0.05)
    assert "100% of 2300 checks of checks arrived within 100ms" in held.text


def test_a_slip_of_one_in_a_hundred_is_within_the_share(builder):
    """Two seconds in two hundred a second."""
    builder.load("checks", rate=100, latency=lambda t: 0.4 if 10 <= t < 10.4 else 0.004)
    assert check(builder).figures["drift_max_s"] == pytest.approx(0.4)


def test_checks_that_do_not_come_are_as_late_as_can_be(builder):
    with pytest.raises(Broken) as broken:
        check(builder.load("checks", latency=0.004, outcome=lambda t: "fail" if 12 <= t < 14 else "ok"))
    assert broken.value.figures["missed"] == 100
    assert "some never arrived, from checks" in broken.value.text
    assert broken.value.figures["drift_max_s"] == "never"


def test_the_time_can_be_that_of_the_recovery_alone(tmp_path):
    def slips(part):
        builder = RecordingBuilder(tmp_path / part).fault("noop", "client-1", at=10, until=30)
        return builder.load("checks", latency=lambda t: 0.4 if 10 <= t < 30 else 0.004)

    assert check(slips("recovery"), during="recovery")
    with pytest.raises(Broken, match="in the method"):
        check(slips("method"), during="method")


def test_nothing_due_is_invalid(builder):
    with pytest.raises(HypothesisInvalidError, match="no check of checks was due in the recovery"):
        check(builder.load("checks", end=20), during="recovery")


INTERVAL_NS = 1_000_000_000


class TestArrivals:
    @pytest.fixture
    def arrivals(self):
        it = Arrivals("checks", INTERVAL_NS)
        it.expect("client-1/0", 0)
        return it

    def test_a_check_is_due_one_interval_after_its_last_arrival(self, arrivals):
        operations = []
        for at_s in (0.3, 1.304, 2.304, 3.9, 4.9):
            assert arrivals.arrived("client-1/0", round(at_s * 1e9), operations.append)
        drift_ms = [round((op.end_ns - op.intended_ns) / 1e6) for op in operations]
        assert drift_ms == [4, 0, 596, 0]
        assert all(op.start_ns == op.intended_ns for op in operations)  # or the run would be called overloaded
        assert {op.outcome for op in operations} == {"ok"}

    def test_one_that_comes_a_little_early_is_on_time(self, arrivals):
        operations = []
        arrivals.arrived("client-1/0", 300_000_000, operations.append)
        arrivals.arrived("client-1/0", 1_299_000_000, operations.append)
        assert [op.end_ns - op.intended_ns for op in operations] == [0]

    def test_one_that_does_not_come_is_recorded_once_for_each_interval(self, arrivals):
        operations = []
        arrivals.arrived("client-1/0", 500_000_000, operations.append)
        for at_ms in range(600, 4600, 250):
            arrivals.look(at_ms * 1_000_000, operations.append)
        assert [op.intended_ns for op in operations] == [1_500_000_000, 2_500_000_000]
        assert {op.outcome for op in operations} == {"fail"}
        arrivals.arrived("client-1/0", 4_600_000_000, operations.append)
        assert (operations[-1].outcome, operations[-1].intended_ns) == ("ok", 3_500_000_000)

    def test_one_that_never_came_is_missed_from_an_interval_after_its_first_on(self, arrivals):
        """The lie: only a check that had come once could be late, so one that never fired kept its interval."""
        operations = []
        for at_ms in range(0, 4100, 250):
            arrivals.look(at_ms * 1_000_000, operations.append)
        assert [(op.intended_ns, op.outcome) for op in operations] == [(n * INTERVAL_NS, "fail") for n in (1, 2, 3)]

    def test_the_first_arrival_is_no_operation_and_one_that_was_forgotten_is_not_missed(self, arrivals):
        operations = []
        arrivals.arrived("client-1/0", INTERVAL_NS, operations.append)
        arrivals.forget("client-1/0")
        arrivals.look(20 * INTERVAL_NS, operations.append)
        assert operations == []

    def test_a_check_that_nobody_registered_is_refused(self, arrivals):
        assert not arrivals.arrived("client-9/0", 1, lambda _: pytest.fail("recorded"))
