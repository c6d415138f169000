"""Errors of two sides: what is compared, how often equal sides raise an alarm, and what is found."""

import math

import numpy as np
import pytest

from hashidrill.core.compare.comparison import Compared, Pair, difference, paired
from hashidrill.core.compare.measured import Figure, Measured
from hashidrill.core.compare.statistics import ALARMS, Decision, Paired, decide, lower_median, ratio

ERRORS = Figure("kv.errors", "share", 0.01, 1.5, True, lambda _: Measured(0.0), odds=True)
LOST = Figure("kv.lost", "", 1.0, 1.5, True, lambda _: Measured(0.0))
OPERATIONS = 800
FIGURES = 8
"""Of a usual experiment: each has its share of the alarms."""


def counted(failed: int, of: int = OPERATIONS) -> Measured:
    return Measured(failed / of, at_most=1.0, of=of)


def a_round(baseline: int, candidate: int, of: int = OPERATIONS) -> Paired:
    found = paired(ERRORS, counted(baseline, of), counted(candidate, of))
    assert found is not None
    return found


def decided(rounds: list[Paired], alarms: float = ALARMS / FIGURES) -> Decision:
    return decide(ratio(rounds, alarms=alarms), ERRORS.margin)


@pytest.mark.parametrize("of", [800, 100_000])
def test_one_error_against_none_or_two_against_one_is_no_difference(of: int) -> None:
    for baseline, candidate in ((0, 1), (1, 2)):
        found = a_round(baseline, candidate, of)
        assert 1 < math.exp(found.log) < 1.13
        assert decided([found] * 4) is Decision.NO_WORSE


def test_none_against_none_is_no_difference_and_known_after_the_first_look() -> None:
    assert decided([a_round(0, 0)] * 3) is Decision.NO_WORSE


@pytest.mark.lie
def test_none_of_a_few_operations_proves_nothing() -> None:
    """A share that counts could have hidden in 40 operations."""
    assert decided([a_round(0, 0, of=40)] * 3) is Decision.CANNOT_TELL


@pytest.mark.lie
def test_rounds_that_agree_by_luck_on_a_few_errors_are_no_regression() -> None:
    """Six against none: one in 32 pairs of equal sides with six errors has that, to the one side or the other."""
    assert decided([a_round(0, 2)] * 3) is not Decision.WORSE
    assert decided([a_round(0, 80)] * 3) is Decision.WORSE


@pytest.mark.lie
def test_a_half_that_becomes_three_quarters_is_worse() -> None:
    """As a ratio, with a margin of 50 %, it passed."""
    assert decided([a_round(400, 592)] * 4) is Decision.WORSE
    assert decided([a_round(592, 400)] * 4) is Decision.BETTER


def test_all_that_fails_on_both_sides_is_no_difference() -> None:
    assert a_round(OPERATIONS, OPERATIONS).log == 0


def test_losses_are_no_more_exact_than_counting_is() -> None:
    one = paired(LOST, Measured(0.0), Measured(1.0))
    many = paired(LOST, Measured(0.0), Measured(200.0))
    assert one is not None
    assert many is not None
    assert decide(ratio([one] * 3, alarms=ALARMS / FIGURES), 1.5) is Decision.CANNOT_TELL
    assert decide(ratio([many] * 3, alarms=ALARMS / FIGURES), 1.5) is Decision.WORSE


def a_run(draw: np.random.Generator, share: float, burst: int) -> Measured:
    """Each operation fails by itself, or in outages that are `burst` errors long in the middle."""
    if not burst:
        return counted(int(draw.binomial(OPERATIONS, share)))
    outages = int(draw.poisson(share * OPERATIONS / burst))
    return counted(min(OPERATIONS, int(draw.geometric(1 / burst, outages).sum())))


def ends(baseline: float, candidate: float, *, burst: int, alarms: float, repeats: int) -> list[Decision]:
    """What comparisons that look after every round end with."""
    draw, found = np.random.default_rng(20), []
    for _ in range(repeats):
        rounds: list[Paired] = []
        while len(rounds) < 8:
            pair = paired(ERRORS, a_run(draw, baseline, burst), a_run(draw, candidate, burst))
            assert pair is not None
            rounds.append(pair)
            if (decision := decided(rounds, alarms)) is not Decision.CANNOT_TELL:
                break
        found.append(decision)
    return found


@pytest.mark.lie
@pytest.mark.parametrize(
    ("share", "burst"), [(0.0005, 0), (0.005, 0), (0.05, 0), (0.5, 0), (0.002, 5), (0.01, 10), (0.05, 20)]
)
def test_equal_sides_are_called_worse_in_no_more_than_half_of_the_stated_share(share: float, burst: int) -> None:
    worse = [each is Decision.WORSE for each in ends(share, share, burst=burst, alarms=0.10, repeats=250)]
    assert np.mean(worse) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 250)


@pytest.mark.parametrize(
    ("baseline", "candidate", "at_least"), [(0.0, 0.02, 0.95), (0.001, 0.02, 0.9), (0.1, 0.2, 0.95), (0.5, 0.74, 0.95)]
)
def test_errors_that_grow_are_found(baseline: float, candidate: float, at_least: float) -> None:
    found = ends(baseline, candidate, burst=0, alarms=ALARMS / FIGURES, repeats=60)
    assert np.mean([each is Decision.WORSE for each in found]) >= at_least
    assert not {Decision.BETTER, Decision.NO_WORSE} & {*found}


def test_a_difference_of_errors_is_told_in_percentage_points() -> None:
    much, bounds = difference(ERRORS, 0.01, 0.03, math.exp(a_round(8, 24).log), (0.9, 3.0))
    assert much == "+2.0 percentage points"
    assert bounds == "-0.2 to +3.8"


def test_what_never_came_back_is_no_number_of_times_as_long() -> None:
    recovery = Figure("kv.recovery", "s", 1.0, 1.5, True, lambda _: Measured(0.0))
    assert difference(recovery, 2.0, math.inf, 2746.0, (100.0, 9000.0)) == ("", "")
    assert difference(LOST, 0.0, 200.0, 201.0, (20.0, 900.0)) == ("", "")
    assert difference(recovery, 1e-3, 30.0, 2746.0, (20.0, 9000.0)) == ("over 100 times", "20.00 to over 100")
    interval = ratio([Paired(math.log(2746.0))] * 3)
    line = str(Compared(recovery, Decision.WORSE, interval, 1.5, 2.0, math.inf, 0))
    assert line == "kv.recovery: worse: never, was 2s"


NEVER = math.inf


@pytest.mark.lie
@pytest.mark.parametrize(
    ("decision", "pairs", "said"),
    [
        (Decision.CANNOT_TELL, [(0.0107, 0.0053, 0.3)], "1 round: too few for bounds"),
        (Decision.CANNOT_TELL, [(NEVER, 9.2, 0.01), (0.0, 9.2, 10.2)], "never in 1 of 2 rounds of the baseline"),
        (Decision.CANNOT_TELL, [(NEVER, 0.0, 0.01), (0.0, 0.0, 1.0)], "never in 1 of 2 rounds of the baseline"),
        (Decision.NO_WORSE, [(0.0, 0.4, 1.4)] * 3, ""),
        (Decision.WORSE, [(0.2, 4.8, 4.83)] * 3, "round by round 4.83 times, 4.81 to 4.85"),
        (Decision.WORSE, [(20.0, 41.0, 2.0)] * 3, "2.00 times, 1.99 to 2.01"),
        (Decision.WORSE, [(2.0, NEVER, 100.0)] * 3, ""),
    ],
)
def test_a_ratio_that_contradicts_the_two_figures_next_to_it_is_not_shown(decision, pairs, said) -> None:
    """Planted: the ratio of the whole comparison, whatever the medians, a floor or a "never" made of it."""
    recovery = Figure("kv.recovery", "s", 1.0, 1.5, True, lambda _: Measured(0.0))
    rows = [Pair(number, *each) for number, each in enumerate(pairs, start=1)]
    interval = ratio([Paired(math.log(each.ratio)) for each in rows])
    one, other = (lower_median([each[side] for each in rows]) for side in (1, 2))
    found = Compared(recovery, decision, interval, 1.5, one, other, 0, of=len(rows), pairs=rows)
    assert found.differs == said
    assert not found.difference[0] or "times" in said
