"""What is known of operations while some of them wait: on the verdicts' definition of latency."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hashidrill.core.engine.monitor import Ended
from hashidrill.core.judging import measure
from hashidrill.core.loads.schedule import Waiting

S = 1_000_000_000
PERCENTS = (1, 25, 50, 90, 99, 100)


def at(operations, *, now_s, window_s):
    """The window as the engine knows it at `now_s`, of operations (due_s, latency_s, ok), all in time order."""
    ended = Ended()
    for due_s, latency_s, ok in sorted(operations, key=lambda operation: operation[0] + operation[1]):
        if due_s + latency_s <= now_s:
            ended.add(round(due_s * S), round((due_s + latency_s) * S), ok=ok)
        elif due_s <= now_s:
            ended.wait([round(due_s * S)], [])
    return ended.window(round(now_s * S), window_s)


def offered(latency_s, *, rate=50, until_s=60, ok=lambda _: True):
    """An open loop from 0 on; `latency_s` and `ok` are functions of the moment at which an operation is due."""
    return [(n / rate, latency_s(n / rate), ok(n / rate)) for n in range(int(until_s * rate))]


@given(st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 900), st.booleans()), min_size=1, max_size=40))
def test_where_nothing_waits_the_figures_are_those_of_a_verdict(operations):
    window = at([(10 + due / 1000, ms / 1000, ok) for due, ms, ok in operations], now_s=15, window_s=5)
    served_s = np.array([ms / 1000 if ok else math.inf for _, ms, ok in operations])
    for percent in PERCENTS:
        assert window.percentile(percent) == pytest.approx(measure.percentile(served_s, percent))
    assert window.mean() == pytest.approx(float(served_s.mean()))
    assert window.errors() == pytest.approx(1 - np.isfinite(served_s).mean())


def test_nothing_at_all_is_not_measured():
    window = at([], now_s=10, window_s=5)
    assert all(math.isnan(value) for value in (window.percentile(50), window.mean(), window.errors()))


@pytest.mark.parametrize("window_s", [1, 5, 20])
def test_in_a_total_stall_every_percentile_is_the_age_of_the_oldest_that_waits(window_s):
    window = at(offered(lambda due: 0.01 if due < 10 else 3600), now_s=38, window_s=window_s)
    assert {window.percentile(percent) for percent in PERCENTS} == {28.0}
    assert window.errors() == 1.0
    assert window.rate(acknowledged=True) == 0


def test_a_stall_that_has_just_begun_says_no_more_than_is_known():
    """A second of it is a fifth of a window of five: the p50 is as before, the p99 is not."""
    window = at(offered(lambda due: 0.01 if due < 19 else 3600), now_s=20, window_s=5)
    assert window.percentile(50) == pytest.approx(0.01)
    assert window.percentile(99) == pytest.approx(1.0)
    assert window.errors() == 0  # nobody has waited for the whole window yet


@pytest.mark.parametrize("window_s", [1, 5, 20])
@pytest.mark.parametrize("latency_s", [0.01, 3.0, 12.0])
def test_a_constant_latency_is_measured_as_it_is_whether_the_window_is_longer_or_shorter(window_s, latency_s):
    """The youngest of those that wait say nothing of how long they will; counted by their age, they would."""
    window = at(offered(lambda _: latency_s, until_s=80), now_s=60, window_s=window_s)
    assert window.percentile(50) == window.percentile(99) == pytest.approx(latency_s, abs=0.02)
    assert window.mean() == pytest.approx(latency_s, abs=0.05)
    assert window.errors() == 0


@pytest.mark.lie
@pytest.mark.parametrize("window_s", [1, 5, 20])
def test_the_few_that_hang_do_not_outweigh_the_many_that_are_served(window_s):
    """One operation in ten takes a minute: after a minute 300 wait, and only 45 a second are served."""
    slow = lambda due: 60.0 if round(due * 50) % 10 == 0 else 0.01  # noqa: E731
    window = at(offered(slow, until_s=200), now_s=150, window_s=window_s)
    assert window.percentile(50) == pytest.approx(0.01)
    assert window.percentile(85) == pytest.approx(0.01)
    assert window.percentile(95) == pytest.approx(60.0, abs=0.3)
    assert window.mean() == pytest.approx(6.0, rel=0.15)


def test_what_was_slow_before_is_not_what_is_slow_now():
    """A stall of 28 s that is over: those who waited in it came back all at once, and after a window it is past."""
    stall = lambda due: max(0.01, 38 - due) if 10 <= due < 38 else 0.01  # noqa: E731
    operations = offered(stall, until_s=80)
    assert at(operations, now_s=37.9, window_s=5).percentile(50) == pytest.approx(27.9)
    assert at(operations, now_s=41, window_s=5).percentile(50) < 1.5
    assert at(operations, now_s=43.1, window_s=5).percentile(99) == pytest.approx(0.01)


def test_random_latencies_are_estimated_without_bias():
    """Against the truth, which only the future knows: exponential latencies of 4 s, seen through a window of 2 s."""
    chance = random.Random(7)
    operations = offered(lambda _: chance.expovariate(1 / 4), rate=400, until_s=60)
    window = at(operations, now_s=55, window_s=2)
    for percent, truth_s in ((50, 2.77), (90, 9.2)):
        assert window.percentile(percent) == pytest.approx(truth_s, rel=0.12)
    assert window.mean() == pytest.approx(4, rel=0.12)


def test_failures_beside_what_waits_are_never_and_the_rest_is_at_least_its_age():
    half = at([(6.0, 0.001, False), (7.0, 3600, True)], now_s=10, window_s=5)
    assert half.percentile(50) == 3.0  # the one that waits may yet be served
    assert half.percentile(100) == math.inf
    assert half.mean() == math.inf


def test_an_operation_that_will_never_be_served_counts_as_an_error_once():
    """One percent hangs until it times out after 30 s; in no window is the share of errors far from that."""
    lost = lambda due: round(due * 50) % 100 == 7  # noqa: E731
    operations = offered(lambda due: 30.0 if lost(due) else 0.01, until_s=120, ok=lambda due: not lost(due))
    shares = [at(operations, now_s=now_s, window_s=10).errors() for now_s in range(60, 100, 3)]
    assert all(0.008 <= share <= 0.012 for share in shares)


def test_a_client_that_takes_longer_than_the_window_is_no_error():
    window = at(offered(lambda due: 6 + due % 1, rate=2, until_s=100), now_s=60, window_s=5)
    assert window.errors() == 0


def test_operations_that_are_heard_of_late_stay_where_they_belong():
    """A service reports what it did when it pleases."""
    ended = Ended()
    ended.add(9 * S, 10 * S, ok=True)
    ended.add(1 * S, 2 * S, ok=True)
    ended.add(9 * S, 11 * S, ok=True)
    assert list(ended.window(12 * S, 5).end_ns) == [10 * S, 11 * S]


def straightforward(operations, waiting, *, since, now):
    """The life table, age by age: who is watched at that age, and how many of them are served then. In ns.

    Returns the survival after each age at which somebody was served.
    """
    watched = [(max(since - due, 0), end - due if ok else math.inf) for due, end, ok in operations]
    watched += [(max(since - due, 0), now - due) for due in waiting]
    served = [end - due for due, end, ok in operations if ok]
    survival, left = {}, 1.0
    for age in sorted(set(served)):
        present = sum(entry <= age for entry, _ in watched) - sum(leaves < age for _, leaves in watched)
        left *= 1 - served.count(age) / max(present, served.count(age))
        survival[age] = left
    return survival


MOMENTS = st.integers(0, 40)


@pytest.mark.lie
@given(st.lists(st.tuples(MOMENTS, MOMENTS, st.booleans()), max_size=40), st.lists(MOMENTS, max_size=10))
def test_the_life_table_is_that_of_the_straightforward_definition(operations, waiting):
    """Also where several were served after the same time, were due at the edge of the window, or wait."""
    ended, since, now = Ended(), 20 * S, 41 * S
    done = sorted(
        ((due * S, (due + took) * S, ok) for due, took, ok in operations if due + took <= 41), key=lambda o: o[1]
    )
    for due, end, ok in done:
        ended.add(due, end, ok=ok)
    ended.wait([due * S for due in waiting], [])
    window = ended.window(now, 21)
    inside = [each for each in done if each[1] >= since]
    expected = straightforward(inside, [due * S for due in waiting], since=since, now=now)
    assert list(window._course.at_s) == [age / S for age in expected]
    assert list(window._course.waits) == pytest.approx(list(expected.values()))


def test_a_look_sees_what_came_since_the_last_one_at_the_same_moment():
    """Conditions of one look share a window; nothing that is heard of is missing from the next."""
    ended = Ended()
    assert ended.window(12 * S, 5).empty
    ended.add(9 * S, 10 * S, ok=True)
    assert len(ended.window(12 * S, 5).due_ns) == 1
    ended.wait([11 * S], [])
    assert list(ended.window(12 * S, 5).waiting_ns) == [11 * S]
    assert len(ended.window(12 * S, 1).due_ns) == 0
    assert len(ended.window(17 * S, 5).due_ns) == 0


# the generator's side


def test_only_what_has_waited_for_long_is_reported_and_each_once():
    waiting = Waiting(report_after_s=0.25)
    quick, slow = waiting.begin(0), waiting.begin(0)
    waiting.end(quick)
    assert waiting.take(S // 5) == ([], [])
    assert waiting.take(S // 4) == ([0], [])
    assert waiting.take(S) == ([], [])
    waiting.end(slow)
    waiting.end(slow)
    assert waiting.take(S) == ([], [0])
    assert waiting.take(S) == ([], [])


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=60), st.integers(1, 7))
def test_the_engine_knows_what_waits_after_each_report(operations, report_every):
    """Due at one tenth of a second, over some later: also where several were due at the same moment."""
    waiting, ended, tokens = Waiting(), Ended(), {}
    for tenth in range(100):
        for n, (due, took) in enumerate(operations):
            if due == tenth:
                tokens[n] = waiting.begin(due * S // 10)
            if due + took == tenth:
                waiting.end(tokens[n])
        if tenth % report_every == 0:
            ended.wait(*waiting.take(tenth * S // 10))
            known = sorted(due * S // 10 for due, took in operations if due + 2.5 <= tenth < due + took)
            assert sorted(ended.window((tenth + 1) * S // 10, 1).waiting_ns) == known


def test_a_block_that_raises_waits_no_longer():
    waiting = Waiting()
    with pytest.raises(ZeroDivisionError), waiting.operation(0):
        1 / len(waiting.take(S)[1])
    assert waiting.take(S) == ([], [0])
