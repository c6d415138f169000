"""Conditions: `signal op limit [for window]`, with the unit that the signal is measured in."""

import math
import re

import pytest

from hashidrill.core.experiment.conditions import Condition, Looks, Reading, probe_namespaces, probe_signals
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.service import Watched


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("kv-writes.latency.p50 < 300ms", ("kv-writes", "latency.p50", "<", 0.3, None)),
        ("kv-writes.errors > 90% for 20s", ("kv-writes", "errors", ">", 0.9, 20.0)),
        ("kv-writes.rate >= 45/s", ("kv-writes", "rate", ">=", 45.0, None)),
        ("raft.commit_time<=2s for 1m", ("raft", "commit_time", "<=", 2.0, 60.0)),
        ("raft.leader == 1", ("raft", "leader", "==", 1.0, None)),
        ("process.rss < 1GiB", ("process", "rss", "<", 2.0**30, None)),
        ("process.write_rate < 1MB/s", ("process", "write_rate", "<", 1e6, None)),
        ("consul.members_failed != 0", ("consul", "members_failed", "!=", 0.0, None)),
    ],
)
def test_a_condition_reads_its_limit_in_the_unit_of_its_signal(text, read):
    condition = Condition.parse(text)
    assert (condition.source, condition.what, condition.op, condition.limit, condition.window_s) == read
    assert str(condition) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("errors are low", "is not a condition; write it like 'kv-writes.latency.p50 < 300ms for 20s'"),
        ("", "is not a condition"),
        ("kv-writes < 3s", "is not a condition"),
        ("kv-writes.errors = 3%", "is not a condition"),
        ("kv-writes.latency.p50 < 300", "'300' has no unit: a duration"),
        ("kv-writes.latency.p50 < 5%", "is not a duration"),
        ("kv-writes.errors > 300ms", "is not a percentage"),
        ("kv-writes.errors > 150%", "over 100%"),
        ("kv-writes.rate > 5", "has no unit: a rate"),
        ("raft.commit_time < 5", "has no unit: a duration"),
        ("raft.commit_time < 5MB", "is not a duration"),
        ("raft.leader == 1s", "compare raft.leader with a plain number"),
        ("raft.term > 1.2.3", "with a plain number"),
        ("kv-writes.errors > 9% for 20", "'20' has no unit: a duration"),
        ("kv-writes.errors > 9% for 0s", "longer than 0s"),
        ("kv-writes.latency.p50 < -3s", "'-3s' is negative"),
    ],
)
def test_a_wrong_condition_says_what_would_be_right(text, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        Condition.parse(text)


@pytest.mark.parametrize(
    ("op", "below", "same", "above"),
    [
        ("<", True, False, False),
        ("<=", True, True, False),
        (">", False, False, True),
        (">=", False, True, True),
        ("==", False, True, False),
        ("!=", True, False, True),
    ],
)
def test_a_condition_holds_as_its_comparison_says(op, below, same, above):
    condition = Condition.parse(f"kv-writes.latency.p50 {op} 300ms")
    assert [condition.holds(value, unknown=False) for value in (0.2, 0.3, 0.4)] == [below, same, above]


@pytest.mark.parametrize("op", ["<", ">", "!=", "=="])
@pytest.mark.parametrize("unknown", [True, False])
def test_what_was_not_measured_holds_as_the_caller_says(op, unknown):
    """The lie: NaN compares false, so that an unknown figure was under no limit and over none."""
    condition = Condition.parse(f"kv-writes.errors {op} 1%")
    assert condition.holds(math.nan, unknown=unknown) is unknown
    with pytest.raises(TypeError, match="unknown"):
        condition.holds(0.5)


class TestAReading:
    def test_has_no_truth_and_no_order(self):
        reading = Reading([Looks.of([1.0])])
        with pytest.raises(TypeError, match="`surely` or `maybe`"):
            bool(reading)
        with pytest.raises(TypeError):
            _ = reading < 2

    @pytest.mark.parametrize(
        ("looks", "text", "surely", "maybe"),
        [
            ([[2.0, 2.0]], "a.b > 1", True, True),
            ([[0.5, math.nan]], "a.b < 1", False, True),
            ([[0.5], [math.nan]], "a.b < 1", False, True),
            ([[2.0], [math.nan]], "a.b > 1", True, True),
            ([[2.0, math.nan]], "a.b > 1", False, True),
            ([[0.5], [math.nan]], "a.b > 1", False, False),
            ([[math.nan]], "a.b > 1", False, False),
            ([], "a.b == 1", False, False),
        ],
    )
    def test_holds_surely_by_whole_looks_and_maybe_by_those_that_succeeded(self, looks, text, surely, maybe):
        reading, condition = Reading([Looks.of(one) for one in looks]), Condition.parse(text)
        assert (reading.surely(condition), reading.maybe(condition)) == (surely, maybe)

    def test_may_hold_while_nothing_is_known_for_too_long(self):
        reading = Reading([Looks.of([math.nan])], blind="no look succeeded")
        assert reading.maybe(Condition.parse("a.b > 1"))
        assert not reading.surely(Condition.parse("a.b > 1"))
        assert str(reading) == "unknown: no look succeeded"


def test_a_hopeless_condition_is_refused_quickly():
    with pytest.raises(ValueError, match="is not a condition"):
        Condition.parse("a." * 100_000 + "!")


def test_every_signal_of_a_probe_is_in_a_known_namespace():
    assert {signal.partition(".")[0] for signal in probe_signals()} == set(probe_namespaces())
    watched = registry.services_with(Watched)
    of_services = {signal.partition(".")[0] for each in watched for signal in each.signals}
    assert set(probe_namespaces()) == {"process", "disk", "machine", "generator"} | of_services
    assert {"raft", "consul"} <= of_services
