"""Steady, broken or flaky: what is said of planted experiments, how often, and that it is never worse than stated."""

import math
import random
from collections import Counter
from itertools import combinations

import pytest

from hashidrill.gamedays.history.steadiness import (
    LEVEL,
    State,
    Tried,
    chance,
    judged,
    never_passes,
    row_anywhere,
    row_at_end,
    steadiness,
)

STEADY, BROKEN, FLAKY, TOO_FEW = State.STEADY, State.BROKEN, State.FLAKY, State.TOO_FEW
TRIALS = 600


def tried(text, conditions=None):
    """`PPF`: passed, passed, failed; `conditions`: a letter for each."""
    return [Tried(each == "P", one) for each, one in zip(text, conditions or "a" * len(text), strict=True)]


def said(chance_of_failure, runs, *, seed=7):
    """How often each state is said of an experiment that fails with that chance, after so many runs: shares."""
    draw = random.Random(seed)
    counts = Counter(
        judged([Tried(draw.random() >= chance_of_failure, "a") for _ in range(runs)]).state for _ in range(TRIALS)
    )
    return {state: counts[state] / TRIALS for state in State}


# what is said of planted experiments: these are the figures of the playbook


@pytest.mark.lie
@pytest.mark.parametrize(
    ("rate", "runs", "flaky", "too_few"),
    [
        (0.05, 5, (0.15, 0.25), (0.75, 0.85)),
        (0.05, 10, (0.32, 0.44), (0.55, 0.68)),
        (0.05, 20, (0.56, 0.68), (0.0, 0.08)),
        (0.1, 5, (0.28, 0.41), (0.58, 0.72)),
        (0.1, 10, (0.55, 0.68), (0.31, 0.45)),
        (0.1, 20, (0.80, 0.92), (0.0, 0.06)),
        (0.2, 5, (0.5, 0.65), (0.35, 0.5)),
        (0.2, 10, (0.8, 0.92), (0.07, 0.19)),
        (0.2, 20, (0.95, 1.0), (0.0, 0.04)),
    ],
)
def test_a_flaky_experiment_is_called_flaky_as_often_as_is_stated_and_hardly_ever_broken(rate, runs, flaky, too_few):
    shares = said(rate, runs)
    assert flaky[0] <= shares[FLAKY] <= flaky[1], shares
    assert too_few[0] <= shares[TOO_FEW] <= too_few[1], shares
    assert shares[BROKEN] <= 2 * LEVEL


@pytest.mark.long
def test_an_experiment_that_fails_every_second_time_is_hardly_ever_called_broken():
    for runs in (5, 7, 10, 20):
        assert said(0.5, runs)[BROKEN] <= 2 * LEVEL + 0.01  # and the noise of so many trials


def test_looking_after_each_of_20_runs_calls_a_flaky_one_broken_at_some_time_as_rarely_as_is_stated():
    draw = random.Random(9)

    def ever(rate):
        runs = [Tried(draw.random() >= rate, "a") for _ in range(20)]
        return any(judged(runs[:count]).state is BROKEN for count in range(1, 21))

    for rate, most in ((0.05, 0.04), (0.2, 0.06)):
        assert sum(ever(rate) for _ in range(100)) / 100 <= most


def test_a_steady_one_that_is_called_steady_fails_less_often_than_is_said():
    shares = said(0.2, 20)
    assert shares[STEADY] <= 0.05
    assert said(0.0, 20)[STEADY] == 1
    assert said(0.0, 13)[TOO_FEW] == 1


@pytest.mark.lie
@pytest.mark.parametrize(("passes", "needed"), [(0, 7), (5, 4), (10, 3), (20, 2), (99, 2)])
def test_a_broken_experiment_is_called_broken_after_so_many_failures(passes, needed):
    states = [steadiness(tried("P" * passes + "F" * failures)).state for failures in range(1, 21)]
    assert states == [TOO_FEW] * (needed - 1) + [BROKEN] * (21 - needed)


def test_one_failure_is_never_enough_however_often_it_passed_before():
    assert steadiness(tried("P" * 99 + "F")).state is TOO_FEW


# the planted defects: what a weaker test would say


def test_failures_that_are_spread_are_not_called_broken_though_the_last_one_failed():
    assert steadiness(tried("PPFPPPFPPF")).state is FLAKY


@pytest.mark.lie
def test_it_was_broken_and_is_fixed_is_not_called_flaky():
    found = steadiness(tried("P" * 8 + "F" * 6 + "P" * 6))
    assert (found.state, found.fixed, found.failures) == (TOO_FEW, 14, 0)
    assert steadiness(tried("P" * 8 + "F" * 6 + "P" * 14)).state is STEADY


@pytest.mark.lie
def test_flips_that_each_came_with_a_change_are_not_called_flaky():
    assert steadiness(tried("PFPPPFPPP", "abccddeee"[:9])).state is TOO_FEW
    assert steadiness(tried("PFPPPFPPP", "aaacddeee"[:9])).state is FLAKY


def test_it_says_how_many_more_runs_would_tell():
    found = steadiness(tried("PPPPPPF"))
    assert (found.state, found.more) == (TOO_FEW, 3)
    assert steadiness(tried("PPPPPPF" + "FFF")).state is BROKEN
    assert "3 more runs that end like the last one would decide" in str(found)
    assert steadiness([]).more == 14


def test_each_state_is_a_sentence_with_its_numbers():
    assert "none of 20 runs failed; it fails in less than 14% of them" in str(steadiness(tried("P" * 20)))
    assert "the last 4 runs failed" in str(steadiness(tried("PPPPPFFFF")))
    assert "2 of 7 runs failed" in str(steadiness(tried("PPFPPPF")))


# the arithmetic, against counting


def test_a_row_somewhere_is_as_likely_as_counting_all_orders_says():
    for runs in range(1, 9):
        for failures in range(runs + 1):
            orders = [{*each} for each in combinations(range(runs), failures)]
            for row in range(1, runs + 1):
                has = [any(set(range(i, i + row)) <= one for i in range(runs - row + 1)) for one in orders]
                assert math.isclose(row_anywhere(row, failures, runs), sum(has) / len(has), abs_tol=1e-12)
                at_end = [set(range(runs - row, runs)) <= one for one in orders]
                assert math.isclose(row_at_end(row, failures, runs), sum(at_end) / len(at_end), abs_tol=1e-12)
    assert never_passes(7) < LEVEL < never_passes(6)


@pytest.mark.parametrize(
    ("failures", "runs", "low", "high"),
    [(0, 10, 0.0, 0.2589), (10, 10, 0.7411, 1.0), (2, 10, 0.0252, 0.5561), (5, 20, 0.0866, 0.4910), (0, 0, 0.0, 1.0)],
)
def test_the_interval_of_a_chance_is_that_of_clopper_and_pearson(failures, runs, low, high):
    """From tables; none and all of them are one-sided."""
    assert chance(failures, runs) == pytest.approx((low, high), abs=1e-4)
