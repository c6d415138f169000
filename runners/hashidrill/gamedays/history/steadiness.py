"""Whether an experiment is steady, flaky or broken, as its last verdicts show, and how sure that is.

Only PASS and FAIL count, oldest first. *Flaky*: it fails with one constant chance, run by run. *Broken*: since some
run, it fails each time.

The test. For a flaky experiment, every order of its k failures among n runs is equally likely, whatever the chance. So
the chance that its last s runs all failed is k/n * (k-1)/(n-1) * ..., s factors. If that is at most LEVEL, with at
least two failures in a row, the experiment is broken. The same test decides about the longest earlier row of failures:
if its chance is at most LEVEL, the experiment was broken then and fixed, and the runs up to there are left out. An
experiment that never passed has no such order. It is broken from seven runs on: at a failure chance of one half, all
of them would fail with a probability of at most LEVEL. An experiment that fails more than half of the time can look
broken.

Flaky needs a failure and a later pass under the same conditions (versions, experiment, configuration, machine) in the
remaining runs, so that no other difference explains the failure. Steady needs enough runs without a failure to show
that its probability is below STEADY_BELOW, with 95 % confidence. Otherwise the runs are too few to decide.

At one time, a flaky experiment is called broken with a chance of at most LEVEL by its last row of failures, and with
the same chance because it never passed. `tests/unit/gamedays/history/test_steadiness.py` simulates the answers for
experiments that fail in 5, 10 and 20 % of their runs, and for broken ones, after 5, 10 and 20 runs.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from itertools import takewhile

from hashidrill.core.faults.significance import at_most

LEVEL = 0.01
STEADY_BELOW = 0.2
CONFIDENCE = 0.95
WINDOW = 100
"""The number of latest runs that count: older ones may have tested a different product version."""
_SHORTEST_ROW = 2


class State(StrEnum):
    """The state of a series."""

    STEADY = "steady"
    BROKEN = "broken"
    FLAKY = "flaky"
    TOO_FEW = "too few runs to tell"


@dataclass(frozen=True)
class Tried:
    """One run that counted: whether it passed, and a digest of its conditions."""

    passed: bool
    conditions: str = ""


@dataclass(frozen=True)
class Steadiness:
    """The state of a series. `low` and `high`: the failure probability is between them, with a confidence of 95 %."""

    state: State
    runs: int
    failures: int
    low: float
    high: float
    since: int = 0
    """BROKEN: how many of the last runs failed in a row. Otherwise: how many runs were judged, after the
    `fixed` ones.
    """
    fixed: int = 0
    """How many of the first runs were left out, because the experiment was broken at that time."""
    more: int = 0
    """TOO_FEW: how many more runs would decide, if they end like the last one."""
    probability: float = 1.0
    """BROKEN: the probability of such a row of failures if the experiment were flaky."""

    def __str__(self) -> str:
        rate = f"fails in {self.low:.0%} to {self.high:.0%} of its runs (95 % confidence)"
        seen = f"{self.failures} of {self.runs} runs failed"
        match self.state:
            case State.STEADY:
                text = f"steady: none of {self.runs} runs failed; it fails in less than {self.high:.0%} of them"
            case State.BROKEN:
                text = (
                    f"broken: the last {self.since} runs failed, which a flaky experiment would do with a chance of"
                    f" {self.probability:.2g}"
                )
            case State.FLAKY:
                text = f"flaky: {seen}, with nothing changed until it passed again; it {rate}"
            case _:
                text = f"too few runs to tell: {seen}; {self.more} more runs that end like the last one would decide"
        return text + (f"; it was broken before, and the first {self.fixed} runs are left out" if self.fixed else "")


def steadiness(runs: Sequence[Tried]) -> Steadiness:
    """`runs` holds the runs that counted, oldest first."""
    kept = list(runs)[-WINDOW:]
    found = judged(kept)
    if found.state is State.TOO_FEW:
        return _with_forecast(found, kept)
    return found


def judged(kept: Sequence[Tried]) -> Steadiness:
    """The steadiness without a forecast of further runs."""
    cut = _fixed(kept)
    rest = kept[cut:]
    runs, failures = len(rest), sum(not each.passed for each in rest)
    low, high = chance(failures, runs)
    row = len(list(takewhile(lambda each: not each.passed, reversed(rest))))
    by_chance = never_passes(runs) if row == runs else row_at_end(row, failures, runs)
    if row >= _SHORTEST_ROW and by_chance <= LEVEL:
        return Steadiness(State.BROKEN, runs, failures, low, high, row, cut, probability=by_chance)
    if failures and _passed_again(rest):
        return Steadiness(State.FLAKY, runs, failures, low, high, runs, cut)
    if runs and not failures and high < STEADY_BELOW:
        return Steadiness(State.STEADY, runs, 0, low, high, runs, cut)
    return Steadiness(State.TOO_FEW, runs, failures, low, high, runs, cut)


def _with_forecast(found: Steadiness, kept: Sequence[Tried]) -> Steadiness:
    like = kept[-1] if kept else Tried(passed=True)
    for more in range(1, WINDOW):
        if judged([*kept, *[like] * more]).state is not State.TOO_FEW:
            return replace(found, more=more)
    return found


def row_at_end(row: int, failures: int, runs: int) -> float:
    """The chance that the last `row` of these runs all failed, if every order is equally likely."""
    return math.prod((failures - index) / (runs - index) for index in range(row))


def never_passes(runs: int) -> float:
    """The probability that all runs fail if each one fails with probability 1/2."""
    return 0.5**runs


def row_anywhere(row: int, failures: int, runs: int) -> float:
    """The chance of `row` failures or more in a row, somewhere, if every order is equally likely."""
    if row <= 0:
        return 1.0
    return 1 - _orders(runs - failures, failures, row) / math.comb(runs, failures)


@lru_cache(maxsize=4096)
def _orders(passes: int, failures: int, row: int) -> int:
    """How many orders have no `row` failures in a row: inclusion and exclusion over the gaps between passes."""
    gaps = passes + 1
    return sum(
        (-1) ** full * math.comb(gaps, full) * math.comb(failures - full * row + gaps - 1, gaps - 1)
        for full in range(min(gaps, failures // row) + 1)
    )


def chance(failures: int, runs: int) -> tuple[float, float]:
    """The interval of Clopper and Pearson for the chance of a failure, one-sided if none or all failed."""
    if not runs:
        return 0.0, 1.0
    outside = 1 - CONFIDENCE
    if failures in {0, runs}:
        edge = outside ** (1 / runs)
        return (0.0, 1 - edge) if not failures else (edge, 1.0)
    return (
        _solve(lambda p: 1 - at_most(failures - 1, runs, p), outside / 2),
        _solve(lambda p: -at_most(failures, runs, p), -outside / 2),
    )


def _solve(rising: Callable[[float], float], wanted: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < wanted else (low, middle)
    return (low + high) / 2


def _fixed(runs: Sequence[Tried]) -> int:
    """The number of runs up to the end of the last row of failures that flakiness does not explain."""
    failures = sum(not each.passed for each in runs)
    row, cut = 0, 0
    for index, each in enumerate(runs):
        if each.passed:
            if row >= _SHORTEST_ROW and row_anywhere(row, failures, len(runs)) <= LEVEL:
                cut = index
            row = 0
        else:
            row += 1
    return cut


def _passed_again(runs: Sequence[Tried]) -> bool:
    failed: set[str] = set()
    for each in runs:
        if not each.passed:
            failed.add(each.conditions)
        elif each.conditions in failed:
            return True
    return False
