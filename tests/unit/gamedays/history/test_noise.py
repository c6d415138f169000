"""Figures beside their noise: how often an alarm is false, and that a real change and a real drift are seen."""

import math
import random

import pytest

from hashidrill.core.compare.statistics import ALARMS
from hashidrill.gamedays.history.noise import is_outside, mann_kendall, ratio, trends
from hashidrill.gamedays.history.store import Number
from history_runs import planted

TRIALS = 1000


def numbers(*values, floor=5e-4):
    return [Number("p50", "s", value, floor) for value in values]


def false_alarms(draw, *, figures, runs):
    """How often a run that is like all others has any of its figures outside."""
    alarms = 0
    for _ in range(TRIALS):
        alarms += any(
            is_outside(numbers(*(draw() for _ in range(runs))), numbers(draw())[0], figures=figures)
            for _ in range(figures)
        )
    return alarms / TRIALS


@pytest.mark.long
@pytest.mark.lie
@pytest.mark.parametrize(("figures", "runs"), [(1, 3), (1, 20), (8, 5), (8, 20)])
def test_an_alarm_is_false_as_rarely_as_is_stated(figures, runs):
    normal = random.Random(3)
    share = false_alarms(lambda: math.exp(normal.gauss(0, 0.1)), figures=figures, runs=runs)
    assert share <= ALARMS + 3 * math.sqrt(ALARMS / TRIALS)


@pytest.mark.long
def test_noise_with_heavy_tails_gives_a_few_more_false_alarms_and_no_flood():
    """Student's t with 5 degrees of freedom, as a few runs on a busy machine give it."""
    draw = random.Random(4)

    def heavy():
        chi = sum(draw.gauss(0, 1) ** 2 for _ in range(5))
        return math.exp(0.1 * draw.gauss(0, 1) / math.sqrt(chi / 5))

    assert false_alarms(heavy, figures=8, runs=20) <= 0.08


def test_a_value_that_is_far_off_is_outside():
    usual = numbers(0.010, 0.011, 0.0105, 0.0098, 0.0102)
    assert is_outside(usual, numbers(0.030)[0], figures=8)
    assert not is_outside(usual, numbers(0.0108)[0], figures=8)
    assert is_outside(usual, numbers(0.003)[0], figures=8)  # to either side
    assert ratio(usual, numbers(0.0303)[0]) == pytest.approx(0.0308 / 0.0107)


def test_nothing_is_said_from_too_few_runs():
    assert is_outside(numbers(0.010, 0.011), numbers(9.0)[0], figures=1) is None
    assert is_outside(numbers(0.010, 0.011, 0.012), numbers(math.nan)[0], figures=1) is None


def test_a_figure_that_repeats_exactly_is_not_outside_for_the_last_digit():
    usual = numbers(0.0100, 0.0100, 0.0100, 0.0100)
    assert not is_outside(usual, numbers(0.01005)[0], figures=1)
    assert is_outside(usual, numbers(0.02)[0], figures=1)


def test_what_was_never_lost_and_is_lost_now_is_outside():
    lost = [Number("lost", "", 0.0)] * 6
    assert is_outside(lost, Number("lost", "", 3.0), figures=8)
    assert not is_outside(lost, Number("lost", "", 0.0), figures=8)


def test_never_is_outside_where_it_always_came_before():
    usual = numbers(1.0, 1.1, 1.2, 1.0)
    assert is_outside(usual, numbers(math.inf)[0], figures=8)
    assert not is_outside([*usual, *numbers(math.inf)], numbers(math.inf)[0], figures=8)
    assert math.isnan(ratio(usual, numbers(math.inf)[0]))


def test_trends_say_the_middle_the_noise_and_what_is_outside():
    draw = random.Random(5)
    runs = [planted(n, figures={"p50": 0.01 * math.exp(draw.gauss(0, 0.1))}) for n in range(20)]
    [one] = trends([*runs, planted(20, figures={"p50": 0.05})])
    assert one.outside
    assert one.middle == pytest.approx(0.01, rel=0.1)
    assert 0.05 < one.noise < 1
    [quiet] = trends(runs)
    assert not quiet.outside
    assert not quiet.drift
    assert trends([]) == []


def test_a_figure_that_the_last_run_did_not_measure_has_no_trend():
    runs = [planted(n, figures={"p50": 0.01}) for n in range(4)]
    assert trends([*runs, planted(5, figures={"p50": math.nan})]) == []


def test_a_drift_is_found_and_measured_and_a_jump_of_one_run_is_none():
    draw = random.Random(6)
    noisy = [0.01 * math.exp(draw.gauss(0, 0.05)) for _ in range(30)]
    rising = [planted(n, figures={"p50": value * (1 + n / 30)}) for n, value in enumerate(noisy)]
    [one] = trends(rising)
    assert one.drift == pytest.approx(0.97, rel=0.2)
    jumped = [planted(n, figures={"p50": value * (5 if n == 12 else 1)}) for n, value in enumerate(noisy)]
    assert trends(jumped)[0].drift == 0


def test_a_drift_is_alleged_as_rarely_as_is_stated():
    draw = random.Random(8)
    found = sum(mann_kendall([draw.gauss(0, 1) for _ in range(12)]) <= ALARMS for _ in range(TRIALS)) / TRIALS
    assert found <= ALARMS + 3 * math.sqrt(ALARMS / TRIALS)
    assert mann_kendall([1.0] * 12) == 1.0
    assert mann_kendall([float(n) for n in range(12)]) < 1e-4
