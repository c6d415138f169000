"""The noise of a figure from run to run, and whether a run lies outside it.

Figures are compared by the logarithm of value plus floor (hashidrill.core.compare.figures): a ratio is what counts.
Figures without a floor are compared by their logarithms if all are positive, otherwise directly. A new value is
*outside* if it is not in Student's t prediction interval of the earlier runs: mean +- t * sd * sqrt(1 + 1/n). The level
is ALARMS divided by the number of figures that are tested together, so that an ordinary run has a figure outside with a
probability of at most ALARMS. `tests/unit/gamedays/history/test_noise.py` measures that, also with noise that is not
normal.

A *drift* over the runs is found by the test of Mann and Kendall, at the same level, and measured by the slope of Theil
and Sen: neither is misled by a single run that was far off.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import NormalDist, fmean, median, stdev

from hashidrill.core.compare.statistics import ALARMS, t_quantile
from hashidrill.gamedays.history.store import Number, Run

FEWEST = 3
"""The earlier runs that are needed to know the noise."""
FEWEST_FOR_DRIFT = 8
"""The runs that are needed for the normal approximation of Mann and Kendall."""
MOST = 30
"""The number of latest earlier runs that are compared."""
_GRAIN = 0.01
"""Figures never repeat better than to 1 %: a figure that repeats exactly is rounded, or a count."""


@dataclass(frozen=True)
class Trend:
    """One figure of a series. All shares are relative to the middle value: 0.1 is 10 %."""

    name: str
    unit: str
    values: Sequence[float]
    """One value for each run that measured the figure, oldest first."""
    middle: float
    noise: float
    """The standard deviation from run to run, as a share; NaN for too few runs."""
    outside: bool | None
    """Whether the last value is outside the noise of the values before it; None for too few runs."""
    drift: float
    """The change over these runs, as a share, if it is statistically sure; 0 otherwise."""


def trends(runs: Sequence[Run]) -> list[Trend]:
    """The trend of each figure that the last run measured, over the runs that counted, oldest first."""
    if not runs:
        return []
    last = runs[-1]
    names = [name for name, number in last.figures.items() if number.measured]
    found = []
    for name in names:
        numbers = _of(name, runs)[-MOST - 1 :]
        outside = is_outside(numbers[:-1], numbers[-1], figures=len(names))
        scaled = _scaled(numbers)
        values = [each.value for each in numbers]
        found.append(
            Trend(
                name,
                numbers[-1].unit,
                values,
                _middle(values),
                _share(scaled),
                outside,
                _drift(scaled, ALARMS / len(names)),
            )
        )
    return found


def is_outside(earlier: Sequence[Number], now: Number, *, figures: int) -> bool | None:
    """Whether `now` is outside the noise of earlier runs; None if they are too few.

    `figures`: how many figures are tested together.
    """
    usual = list(earlier)[-MOST:]
    if len(usual) < FEWEST or not now.measured:
        return None
    never = sum(math.isinf(each.value) for each in usual)
    if math.isinf(now.value):
        return never == 0
    if len(usual) - never < FEWEST:
        return None  # in most runs, the event never came
    known = [each for each in usual if not math.isinf(each.value)]
    scale = _scaled([*known, now])
    if scale is None:
        return None
    past, last = scale.values[:-1], scale.values[-1]
    spread = max(stdev(past), scale.grain(fmean(past)))
    count = len(past)
    return abs(last - fmean(past)) > t_quantile(ALARMS / figures, count - 1) * spread * math.sqrt(1 + 1 / count)


def ratio(earlier: Sequence[Number], now: Number) -> float:
    """The new value divided by the median of earlier values, each plus the figure's floor; NaN if either is missing."""
    known = [each.value for each in earlier if each.measured]
    if not known or not now.measured:
        return math.nan
    middle = _middle(known)
    if math.isinf(now.value) or math.isinf(middle):
        return math.nan
    return (now.value + now.floor) / (middle + now.floor) if middle + now.floor > 0 else math.nan


@dataclass(frozen=True)
class _Scaled:
    values: list[float]
    logarithmic: bool

    def grain(self, middle: float) -> float:
        return _GRAIN if self.logarithmic else max(_GRAIN * abs(middle), 1e-12)


def _scaled(numbers: Sequence[Number]) -> _Scaled | None:
    """None if no finite value is left."""
    finite = [each for each in numbers if math.isfinite(each.value)]
    if not finite:
        return None
    shifted = [each.value + each.floor for each in finite]
    if min(shifted) > 0:
        return _Scaled([math.log(each) for each in shifted], logarithmic=True)
    return _Scaled([each.value for each in finite], logarithmic=False)


def _of(name: str, runs: Sequence[Run]) -> list[Number]:
    numbers = [run.figures[name] for run in runs if name in run.figures]
    return [each for each in numbers if each.measured]


def _middle(values: Sequence[float]) -> float:
    finite = [each for each in values if math.isfinite(each)]
    return median(finite) if 2 * len(finite) > len(values) else math.inf


def _share(scaled: _Scaled | None) -> float:
    if scaled is None or len(scaled.values) < FEWEST:
        return math.nan
    if scaled.logarithmic:
        return math.expm1(stdev(scaled.values))
    middle = abs(median(scaled.values))
    return stdev(scaled.values) / middle if middle else math.nan


def _drift(scaled: _Scaled | None, level: float) -> float:
    """The change over all runs, as a share; 0 if it is not significant, or has no scale."""
    if scaled is None or not scaled.logarithmic or len(scaled.values) < FEWEST_FOR_DRIFT:
        return 0.0
    values = scaled.values
    if mann_kendall(values) > level:
        return 0.0
    slopes = [(later - one) / (j - i) for (i, one), (j, later) in combinations(enumerate(values), 2)]
    return math.expm1(median(slopes) * (len(values) - 1))


def mann_kendall(values: Sequence[float]) -> float:
    """The two-sided p value of a trend: the normal approximation, corrected for ties and continuity."""
    count = len(values)
    total = sum((later > one) - (later < one) for one, later in combinations(values, 2))
    tied: Mapping[float, int] = {each: list(values).count(each) for each in set(values)}
    ties = sum(n * (n - 1) * (2 * n + 5) for n in tied.values())
    variance = (count * (count - 1) * (2 * count + 5) - ties) / 18
    if variance <= 0 or total == 0:
        return 1.0
    return 2 * (1 - NormalDist().cdf((abs(total) - 1) / math.sqrt(variance)))
