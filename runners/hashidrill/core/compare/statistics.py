"""How certain is a difference between two sides that were run several times in turn?

Each round gives one logarithm of a ratio, candidate over baseline. Only rounds count as repetitions: seconds of one
run resemble each other, and two runs of the same experiment differ by more than their seconds do, so an interval
over seconds would be far too narrow (`tests/unit/core/compare/test_statistics.py` shows by how much). The interval
is Student's t over rounds, because percentiles of a bootstrap over three to six rounds cover the truth in 75 to 90 %
of cases where they claim 95 %. Blocks of seconds within the rounds are resampled too (a moving-block bootstrap): they
give the least uncertainty of a round, so rounds that agree by chance do not count as exact.

A comparison may look after each round, and stop. The error rate covers all looks together: the level of a single look
is taken from the joint distribution of the t statistics of all planned looks, like Pocock's boundary (Biometrika
1977). That distribution depends on no unknown mean or variance, so it is simulated, once for a plan, with a fixed
seed. Fewer looks than planned (a budget that ends early) only make the result more cautious.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from hashidrill.core.recording.columns import Floats

CONFIDENCE = 0.95
"""How often the intervals hold the true ratio, over all looks together."""
ALARMS = 0.01
"""How often two equal sides are called different in any figure, in either direction, over all looks together."""
FIRST_LOOK, LAST_LOOK = 3, 8
FIRST_LOOK_WITH_PRIOR = 2
MOST_TRUSTED = 4
"""A calibration counts as at most this many rounds: the machine may be noisier today than it was then.

If the noise is 1.5 times or twice the calibration's, 2.6 or 6 times as many equal sides are called worse (60,000
simulated comparisons at the level of one of eight figures); with 6 rounds it would be 5 and 13 times.
"""
UNLIKE_PRIOR = 3.0
"""If the rounds' variance is this many times the calibration's, the calibration is ignored: the machine has changed."""
FAR_SHARE = 0.2
"""The share of alarms for differences far outside of any noise; the rest is for Student's t."""
FEWEST_FAR = 2
_FAR_DEGREES = 3
"""Noise counts as normal, or as Student's t with 3 degrees of freedom (outliers), whichever reaches further."""
MOST_ROUNDS = 60
"""More rounds than this are not worth a forecast."""
_SIMULATED = 200_000
_RESAMPLED = 400
_BLOCK = 3
"""The shortest block, in intervals: KV latencies under a slow disk are correlated over one or two seconds."""
_GRAIN = 1e-3
"""The finest agreement of rounds that is believed: exact repetition comes from counting or rounding."""


class Decision(StrEnum):
    """What is known about one figure."""

    WORSE = "worse"
    NO_WORSE = "no worse"
    BETTER = "better"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True)
class Paired:
    """One round: the logarithm of candidate over baseline, and its standard error from the seconds of its two runs."""

    log: float
    error: float = 0.0
    counted: float = 0.0
    """The standard error from counting alone: known beforehand, and never too large."""


@dataclass(frozen=True)
class Prior:
    """An estimate of the noise: the standard deviation of a round's logarithm, and its degrees of freedom."""

    sd: float
    degrees: int


@dataclass(frozen=True)
class Looks:
    """The rounds after which to look: each from `first` to `last`. Planned before the first round."""

    first: int = FIRST_LOOK
    last: int = LAST_LOOK

    @classmethod
    def of(cls, at_most: int, prior: Prior | None = None) -> Looks:
        """The looks of a comparison of at most that many rounds."""
        first = FIRST_LOOK if prior is None else FIRST_LOOK_WITH_PRIOR
        return cls(first, max(first, at_most))


@dataclass(frozen=True)
class Interval:
    """The ratio, candidate over baseline, between `low` and `high`. `surely_*` are the wider bounds for an alarm."""

    low: float
    ratio: float
    high: float
    surely_low: float
    surely_high: float
    rounds: int
    sd: float
    """The standard deviation of the rounds' logarithms; NaN for too few rounds."""
    degrees: int = 0
    """Degrees of freedom that a calibration adds."""


def ratio(
    pairs: Sequence[Paired],
    *,
    confidence: float = CONFIDENCE,
    alarms: float = ALARMS,
    looks: Looks | None = None,
    prior: Prior | None = None,
    noise: float = 0.0,
) -> Interval:
    """The ratio over these rounds. `alarms` is the share of this one figure: ALARMS over the number of figures.

    Before the first look the interval is from 0 to infinity: nothing is known. `noise` is the largest variation of a
    round's logarithm known on any machine: if two rounds both lie far outside of it, the difference is already certain.
    """
    looks = looks or Looks.of(LAST_LOOK, prior)
    count = len(pairs)
    looks = Looks(looks.first, max(looks.last, count))
    logs = np.array([each.log for each in pairs], np.float64)
    middle = float(logs.mean()) if count else math.nan
    far_low, far_high = 0.0, math.inf
    if noise:
        far_low, far_high = _far(logs, noise, FAR_SHARE * alarms, looks)
        alarms *= 1 - FAR_SHARE
    if count < looks.first:
        return Interval(0.0, _exp(middle), math.inf, far_low, far_high, count, math.nan)
    own = max(float(logs.var(ddof=1)), _GRAIN**2) if count > 1 else 0.0
    known = _trusted(own, count, prior)
    more = 0 if known is None else known.degrees
    variance = own if known is None else ((count - 1) * own + more * known.sd**2) / (count - 1 + more)
    # a round cannot be more exact than the scatter between its own seconds allows
    variance = max(variance, float(np.mean([each.error**2 for each in pairs])))
    error, degrees = math.sqrt(variance / count), count - 1 + more
    # counts that agree by luck cannot be more exact than their counting error, which is known without the rounds
    least = float(np.mean([each.counted**2 for each in pairs]))
    levels = [_level(1 - each, looks, prior) for each in (confidence, 1 - alarms)]
    usual, sure = (
        max(t_quantile(level, degrees) * error, _normal_quantile(level) * math.sqrt(least / count)) for level in levels
    )
    return Interval(
        _exp(middle - usual),
        _exp(middle),
        _exp(middle + usual),
        max(_exp(middle - sure), far_low),
        min(_exp(middle + sure), far_high),
        count,
        math.sqrt(max(variance, least)),
        more,
    )


def _far(logs: Floats, noise: float, alarms: float, looks: Looks) -> tuple[float, float]:
    """Bounds of the ratio from the round that lies least far to each side: 0 and infinity if they show nothing.

    For equal sides, the chance that all rounds lie beyond t times the noise on one side is one round's chance to the
    power of the number of rounds. This needs no mean or variance of so few rounds, and one outlier moves nothing. Each
    look has an equal part of the alarms. Rounds that scatter by far more than the noise are judged without it.
    """
    count = len(logs)
    if count < FEWEST_FAR or (count > 2 and float(logs.var(ddof=1)) > UNLIKE_PRIOR * noise**2):
        return 0.0, math.inf
    each = 2 * (alarms / 2 / (looks.last - FEWEST_FAR + 1)) ** (1 / count)
    heavy = t_quantile(each, _FAR_DEGREES) / math.sqrt(_FAR_DEGREES / (_FAR_DEGREES - 2))
    beyond = noise * max(heavy, _normal_quantile(each)) if each < 1 else 0.0
    return _exp(float(logs.min()) - beyond), _exp(float(logs.max()) + beyond)


def decide(interval: Interval, margin: float, *, lower_is_better: bool = True) -> Decision:
    """Decides against a margin, like 1.2 for 20 %.

    NO_WORSE: surely not worse by the margin. WORSE: surely worse, and measured as worse by more than half of the
    margin. BETTER: like WORSE, in the other direction. Otherwise CANNOT_TELL. Two equal sides are called WORSE in at
    most half of the share of alarms; a side that is worse by the margin or more is called NO_WORSE at most with the
    probability (1 - confidence) / 2. A side that is worse by less than the margin may be called either.
    """
    low, middle, high, sure, surest = (
        (interval.low, interval.ratio, interval.high, interval.surely_low, interval.surely_high)
        if lower_is_better
        else tuple(
            math.inf if each == 0 else 1 / each
            for each in (interval.high, interval.ratio, interval.low, interval.surely_high, interval.surely_low)
        )
    )
    half = math.sqrt(margin)
    if math.isnan(middle) or not low <= high:
        return Decision.CANNOT_TELL
    if high < margin:
        return Decision.BETTER if surest < 1 and middle <= 1 / half else Decision.NO_WORSE
    return Decision.WORSE if sure > 1 and middle >= half else Decision.CANNOT_TELL


def rounds_needed(interval: Interval, margin: float, *, alarms: float = ALARMS, confidence: float = CONFIDENCE) -> int:
    """How many more rounds a decision will probably take: 0 if it is made already, MOST_ROUNDS for that many or more.

    It assumes ratio and noise as measured so far; before the first look, only that look is forecast.
    """
    if math.isnan(interval.sd):
        return max(1, FIRST_LOOK - interval.rounds)
    if not 0 < interval.ratio < math.inf:
        return MOST_ROUNDS
    away, limit = math.log(interval.ratio), math.log(margin)
    for count in range(max(interval.rounds, 2), MOST_ROUNDS):
        usual, sure = (_half_width(interval.sd, count, each, interval.degrees) for each in (1 - confidence, alarms))
        if usual < limit - away or (away >= limit / 2 and sure < away):
            return count - interval.rounds
    return MOST_ROUNDS


def smallest_difference(prior: Prior, rounds: int, *, alarms: float = ALARMS, confidence: float = CONFIDENCE) -> float:
    """The smallest ratio that this number of rounds usually distinguishes from 1, and 1 from it: 1.2 is 20 %."""
    trusted = min(prior.degrees, MOST_TRUSTED)
    return _exp(max(_half_width(prior.sd, rounds, level, trusted) for level in (alarms, 1 - confidence)))


def lower_median(numbers: Sequence[float]) -> float:
    """The lower median, which is always a measured number. Ignores NaN; NaN if nothing is left."""
    known = sorted(each for each in numbers if not math.isnan(each))
    return known[(len(known) - 1) // 2] if known else math.nan


def of_intervals(logs: Floats, seed: int = 0) -> Paired:
    """One round, from the logarithms of candidate over baseline in its intervals. Raises ValueError if there are
    no intervals.

    It is the mean of the middle half: an interval in which one side happened to lose its leader says little about
    the other 14, and a few extreme ones must not outvote half of the intervals.
    """
    if not len(logs):
        raise ValueError("no interval was measured on both sides")
    cut = len(logs) // 4
    middle = np.sort(logs)[cut : len(logs) - cut]
    return Paired(float(middle.mean()), block_error(np.clip(logs, middle[0], middle[-1]), seed))


def block_error(logs: Floats, seed: int = 0) -> float:
    """The standard error of the mean of a series, from a moving-block bootstrap; 0 if the series is too short.

    Blocks are as long as the cube root of the series, and at least 3 intervals. Correlations longer than a block are
    underestimated, so the result is a lower bound, and is used as one.
    """
    count = len(logs)
    length = max(_BLOCK, round(count ** (1 / 3)))
    if count < 2 * length:
        return 0.0
    draw = np.random.default_rng(seed)
    starts = draw.integers(0, count, (_RESAMPLED, math.ceil(count / length)))
    at = (starts[:, :, None] + np.arange(length)) % count
    means = logs[at.reshape(_RESAMPLED, -1)[:, :count]].mean(axis=1)
    return float(means.std(ddof=1))


def _trusted(own: float, count: int, prior: Prior | None) -> Prior | None:
    if prior is None or (count > 1 and own > UNLIKE_PRIOR * prior.sd**2):
        return None
    return Prior(prior.sd, min(prior.degrees, MOST_TRUSTED))


def _level(alpha: float, looks: Looks, prior: Prior | None) -> float:
    """The level of each look that makes `alpha` over all of them."""
    more = 0 if prior is None else min(prior.degrees, MOST_TRUSTED)
    return look_level(round(alpha, 12), looks.first, looks.last, more)


def _half_width(sd: float, count: int, level: float, more: int) -> float:
    """The half width of an interval after `count` rounds, with a look after the last."""
    if count - 1 + more < 1:
        return math.inf
    first = FIRST_LOOK_WITH_PRIOR if more else FIRST_LOOK
    each = look_level(round(level, 12), first, LAST_LOOK, more)
    if count > LAST_LOOK:  # lower with more looks, as measured for 8 to 40: to simulate each would take long
        each *= (LAST_LOOK / count) ** (2 / 3)
    return t_quantile(each, count - 1 + more) * sd / math.sqrt(count)


@lru_cache(maxsize=256)
def look_level(alpha: float, first: int, last: int, more: int = 0) -> float:
    """The two-sided level of each look, for `alpha` over looks after `first` to `last` rounds.

    `more` are the degrees of freedom that a calibration adds. Simulated: the least p value over all looks of rounds
    that have no difference, in 200,000 series of rounds with a fixed seed.
    """
    if first == last:
        return alpha
    return float(np.quantile(_least_p(first, last, more), alpha))


@lru_cache(maxsize=16)
def _least_p(first: int, last: int, more: int) -> Floats:
    """The least p value over all looks, of each simulated comparison of two equal sides."""
    draw = np.random.default_rng(20_201_123)
    known = draw.chisquare(more, _SIMULATED) if more else np.zeros(_SIMULATED)
    total, squares = np.zeros(_SIMULATED), np.zeros(_SIMULATED)
    least = np.ones(_SIMULATED)
    for count in range(1, last + 1):
        value = draw.standard_normal(_SIMULATED)
        total += value
        squares += value**2
        degrees = count - 1 + more
        if count < first or not degrees:
            continue
        variance = (squares - total**2 / count + known) / degrees
        least = np.minimum(least, t_tails(np.abs(total) / np.sqrt(variance * count), degrees))
    return least


def t_tails(t: Floats, degrees: int) -> Floats:
    """The probability of a Student's t beyond +-t: the finite series for whole degrees of freedom (Abramowitz & Stegun,
    26.7.3 and 26.7.4).
    """
    angle = np.arctan(t / math.sqrt(degrees))
    sine, cosine = np.sin(angle), np.cos(angle)
    odd = degrees % 2
    term = cosine if odd else np.ones_like(cosine)
    total = np.zeros_like(cosine)
    for k in range(1 if odd else 0, degrees - 1, 2):
        total = total + term
        term = term * cosine**2 * (k + 1) / (k + 2)
    inside = (angle + sine * total) * 2 / math.pi if odd else sine * total
    return np.asarray(np.clip(1 - inside, 0.0, 1.0), np.float64)


@lru_cache(maxsize=4096)
def t_quantile(alpha: float, degrees: int) -> float:
    """The t beyond which, on both sides together, a share `alpha` of the distribution lies."""
    low, high = 0.0, 1.0
    while t_tails(np.array([high]), degrees)[0] > alpha:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if t_tails(np.array([middle]), degrees)[0] > alpha else (low, middle)
    return high


def _normal_quantile(alpha: float) -> float:
    """How many standard errors away, on both sides together, a share `alpha` of a normal distribution lies."""
    return NormalDist().inv_cdf(1 - alpha / 2)


def _exp(value: float) -> float:
    return math.inf if value > 700 else math.exp(value)  # e**709 is the largest that a float holds
