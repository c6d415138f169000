"""One round: what the two runs of it say about a figure, side by side.

Most figures are compared as ratios. Errors are compared as odds: a share of errors has an end at both sides, and from
50 % to 74 % is three times the odds. 1 % is added to failed and served alike, so that none against one in a thousand
is 1.1 times, and none against none is 1. What is counted is no more exact than counting is: two errors against none
come about by chance.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from hashidrill.core.compare.measured import IN_DOUBT_AT_MOST, Figure, Measured
from hashidrill.core.compare.statistics import Paired, of_intervals

if TYPE_CHECKING:
    from hashidrill.core.recording.columns import Floats

FEWEST_INTERVALS = 5
"""With fewer intervals that were measured on both sides, a round says no more than its two numbers."""
ABSENT_APART = 0.05
"""Agents that were gone for this much more of their time on one side make its cost look smaller than it is.

In runs of raft/killed-leader, whose leader is back sooner in one than in another, it was 0.10 and 0.13 of four agents'.
"""


def paired(figure: Figure, baseline: Measured, candidate: Measured, *, seed: int = 0) -> Paired | None:
    """One round; None where a side was not measured, or lacks what the other side has (`fair`).

    By its intervals, where enough of them were measured on both sides; else by the two numbers.
    """
    baseline, candidate = fair(baseline, candidate)
    if math.isnan(baseline.number) or math.isnan(candidate.number):
        return None
    one, other = baseline.intervals, candidate.intervals
    at_most = min(baseline.at_most, candidate.at_most)
    if one is not None and other is not None:
        count = min(len(one), len(other))
        logs = _log_ratio(figure, one[:count], other[:count], at_most)
        logs = logs[~np.isnan(logs)]
        if len(logs) >= FEWEST_INTERVALS:
            return of_intervals(logs, seed)
    log = _log_ratio(figure, np.array([baseline.number]), np.array([candidate.number]), at_most)
    return Paired(float(log[0]), counted=_counting_error(figure, baseline, candidate))


def fair(baseline: Measured, candidate: Measured) -> tuple[Measured, Measured]:
    """Both as they can be compared: not measured where one looks better by what it lacks, or both say nothing.

    A cost without that of an agent that was gone is a lower bound: it may show that this side costs more, never less.
    Where a load was shed on both sides, it was more than the generator could keep waiting, whichever side it was.
    """
    if math.isnan(baseline.number) or math.isnan(candidate.number):
        return baseline, candidate
    both, apart = min(baseline.shed, candidate.shed), abs(candidate.shed - baseline.shed)
    if both > IN_DOUBT_AT_MOST and apart <= IN_DOUBT_AT_MOST:
        return _unknown(_shed(baseline)), _unknown(_shed(candidate))
    gone = candidate.absent - baseline.absent
    worse = candidate.number > baseline.number
    if gone > ABSENT_APART and not worse:
        return baseline, _unknown(_gone(candidate))
    if gone < -ABSENT_APART and worse:
        return _unknown(_gone(baseline)), candidate
    return baseline, candidate


def _unknown(why: str) -> Measured:
    return Measured(math.nan, why=why)


def _shed(measured: Measured) -> str:
    share = f"{measured.shed:.0%} of its operations could not be started"
    return f"{share}, and about as many of the other side: lower the load's rate"


def _gone(measured: Measured) -> str:
    gone = f"its agents were gone for {measured.absent:.0%} of their time, {measured.who} the longest"
    return f"{gone}: what they would have taken is not in it"


def _log_ratio(figure: Figure, baseline: Floats, candidate: Floats, at_most: float) -> Floats:
    """What was never seen counts as `at_most`, on both sides the same; where both were never seen, they are equal."""
    if math.isinf(at_most):
        finite = np.concatenate([each[np.isfinite(each)] for each in (baseline, candidate)])
        at_most = float(finite.max()) if len(finite) else 1.0
    one, other = (np.minimum(each, at_most) for each in (baseline, candidate))
    return np.asarray(figure.log(other) - figure.log(one), np.float64)


def _counting_error(figure: Figure, baseline: Measured, candidate: Measured) -> float:
    """The standard error of a round whose numbers were counted, from counting alone; 0 for what was measured.

    Of errors: binomial, by the delta method, with the share of both sides together; their bursts make it larger, which
    the rounds show. Without any error on either side, the rule of three (Hanley and Lippman-Hand, JAMA 1983): fewer
    operations than 3 / 1 % could have hidden a share that counts. Of losses: Poisson.
    """
    if figure.odds:
        counts = (baseline.of, candidate.of)
        if not all(counts):
            return 0.0
        failed = baseline.number * counts[0] + candidate.number * counts[1]
        if failed < 0.5:
            failed = 0.0 if min(counts) * figure.floor >= 3 else 0.5
        share = failed / sum(counts)
        slope = 1 / (share + figure.floor) + 1 / (1 - share + figure.floor)
        return math.sqrt(sum(share * (1 - share) / each for each in counts)) * slope
    if figure.unit == "":
        return math.sqrt(sum(each.number / (each.number + figure.floor) ** 2 for each in (baseline, candidate)))
    return 0.0
