"""The statistics of proofs that involve chance: which counts prove that a fault is in force, or gone.

An observer makes some trials before the fault is applied (the baseline) and as many at each later look, and counts
hits: trials that went as the fault makes them go. Two questions decide, and each has its error probability:

- Are there more hits than the baseline explains? Fisher's exact test: if nothing had changed, every way to deal the
  hits of both samples out over both is equally likely. It needs no assumption on how often a hit comes by itself.
- Are there as many hits as the fault that was asked for makes? The exact binomial distribution.

In force: more than the baseline explains, and as many as asked for. Gone: no more than the baseline explains, and too
few for the fault that was asked for. Both at once is impossible. What is neither proves nothing, and the observer looks
again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

PROOF_ERROR = 1e-6
"""How probable it is, at most, that chance alone proves a fault in force that is not, or gone that is not."""
_LOOKS = 200
"""An observer is asked until it agrees: 20 s at most, with gaps of 0.1 s (hashidrill.engine.inject)."""
LOOK_ERROR = PROOF_ERROR / _LOOKS
_MISSED = 1e-6
"""How probable it is that a fault in force is not recognised at one look; the next look may."""
_NOISY = 0.01
"""The same for its absence."""
_TOLERATED = 0.1
"""Trials are enough to bear a baseline that has this share of the hits that the fault makes."""
_MOST_TRIALS = 1 << 20


@dataclass(frozen=True)
class Counts:
    """From `least` to `most` hits of `trials` prove the fault in force; `free` hits or fewer prove it gone."""

    trials: int
    least: int
    most: int
    free: int

    def shows(self, hits: int) -> bool:
        return self.least <= hits <= self.most

    def is_free(self, hits: int) -> bool:
        return hits <= self.free


@lru_cache(maxsize=4096)
def trials_for(share: float, highest: float | None = None) -> int:
    """How many trials tell a fault that hits `share` of them from its absence. Raises ValueError for none or all."""
    if not 0 < share <= 1:
        raise ValueError(f"a share of {share} cannot be told from nothing")
    high = 1
    while not _enough(high, share, highest):
        high *= 2
        if high > _MOST_TRIALS:
            raise ValueError(f"a share of {share} needs more than {_MOST_TRIALS} trials")
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _enough(middle, share, highest) else (middle, high)
    return high


def _enough(trials: int, share: float, highest: float | None) -> bool:
    return counts(trials, share, max(1, int(_TOLERATED * share * trials)), highest=highest) is not None


@lru_cache(maxsize=4096)
def counts(trials: int, share: float, before: int, *, highest: float | None = None) -> Counts | None:
    """What to demand of `trials`, when `before` of as many were hits in the baseline.

    The fault hits `share` of the trials, or up to `highest` where it cannot be said better. None: with such a baseline
    these trials cannot tell the fault from its absence.
    """
    least = _lowest(trials, share)
    if more_than(least, before, trials) > LOOK_ERROR:
        return None
    most = _highest(trials, share if highest is None else highest)
    free = _largest_explained(before, trials, below=least)
    if at_most(free, trials, share) > LOOK_ERROR:
        return None
    return Counts(trials, least, most, free)


def most_before(trials: int, share: float, *, highest: float | None = None) -> int:
    """The most hits in a baseline that still lets the fault be told from its absence; -1: not even none does."""
    low, high = -1, trials
    while high - low > 1:
        middle = (low + high) // 2
        fits = counts(trials, share, middle, highest=highest) is not None
        low, high = (middle, high) if fits else (low, middle)
    return low


def smallest_share(trials: int) -> float:
    """The smallest share, rounded up to whole percent, that this many trials can prove; over 1: none."""
    return next((percent / 100 for percent in range(1, 101) if trials_for(percent / 100) <= trials), math.inf)


def more_than(hits: int, before: int, trials: int) -> float:
    """How probable it is to see `hits` or more in the second of two samples, when both are alike (Fisher's test)."""
    both = hits + before
    highest = min(both, trials)
    logs = [_log_choose(trials, k) + _log_choose(trials, both - k) for k in range(hits, highest + 1)]
    return min(1.0, sum(math.exp(each - _log_choose(2 * trials, both)) for each in logs))


def at_most(hits: int, trials: int, share: float) -> float:
    """The binomial distribution: how probable `hits` or fewer of `trials` are."""
    return min(1.0, math.fsum(_probable(k, trials, share) for k in range(hits + 1)))


def _probable(hits: int, trials: int, share: float) -> float:
    if share >= 1 or share <= 0:
        return float(hits == (trials if share >= 1 else 0))
    log = _log_choose(trials, hits) + hits * math.log(share) + (trials - hits) * math.log1p(-share)
    return math.exp(log)


def _lowest(trials: int, share: float) -> int:
    """The most hits that the fault falls short of with a probability of `_MISSED` at most."""
    fewer = 0.0
    for hits in range(trials + 1):
        fewer += _probable(hits, trials, share)  # that there are `hits` or fewer
        if fewer > _MISSED:
            return hits
    return trials


def _highest(trials: int, share: float) -> int:
    """The fewest hits that the fault exceeds with a probability of `_MISSED` at most."""
    more = 1.0
    for hits in range(trials + 1):
        more -= _probable(hits, trials, share)
        if more <= _MISSED:
            return hits
    return trials


def _largest_explained(before: int, trials: int, *, below: int) -> int:
    """The most hits, under `below`, that a baseline of `before` explains."""
    low, high = -1, below
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if more_than(middle, before, trials) > _NOISY else (low, middle)
    return low


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def least_share(background: float) -> float:
    """The smallest share, in steps of a percent, that is told from that many hits without the fault."""
    return next(
        (
            percent / 100
            for percent in range(1, 100)
            if counts(trials_for(percent / 100), percent / 100, int(background * trials_for(percent / 100)))
        ),
        1.0,
    )


SMALLEST_SHARE = 0.01
"""The least that a fault may hit of the operations on a disk: some 9,500 trials tell it from nothing."""


def delays_over(delay: float, jitter: float) -> tuple[float, float]:
    """(seconds, share): at least that share of what is delayed by `delay` plus or minus `jitter` takes so long.

    Delays come late and never early, so that all take the shortest one. Where jitter makes that one too short to be
    told from none, three in four take `delay - jitter / 2`: jitter is evenly distributed.
    """
    return (0.98 * (delay - jitter), 1.0) if jitter <= delay / 2 else (0.98 * (delay - jitter / 2), 0.75)
