"""The statistics of proofs that involve chance: which counts prove that a fault is in force, or gone.

An observer makes some trials before the fault is applied (the baseline) and as many at each later look, and counts
hits: trials that look as they do under the fault. Two questions decide, each with its own error probability:

- Are there more hits than the baseline explains? Fisher's exact test: if nothing changed, every distribution of
  all hits over the two samples is equally likely. It needs no assumption about how often hits occur by themselves.
- Are there as many hits as the requested fault causes? The exact binomial distribution.

In force: more hits than the baseline explains, and as many as requested. Gone: no more than the baseline explains,
and too few for the requested fault. Both at once is impossible. Any other count proves nothing, and the observer
looks again.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

PROOF_ERROR = 1e-6
"""The highest probability with which chance alone may prove a fault in force, or gone, when it is not."""
_LOOKS = 200
"""An observer is asked until it agrees: 20 s at most, with gaps of 0.1 s (hashidrill.core.engine.inject)."""
LOOK_ERROR = PROOF_ERROR / _LOOKS
_MISSED = 1e-6
"""The probability that one look misses a fault that is in force; the next look may see it."""
_NOISY = 0.01
"""The probability that one look does not see that a fault is gone."""
_TOLERATED = 0.1
"""There are enough trials for a baseline with this share of the hits that the fault causes."""
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
    """How many trials tell a fault that hits `share` of them from no fault. Raises ValueError if none do."""
    if not 0 < share <= 1:
        raise ValueError(f"a share of {share} cannot be distinguished from nothing")
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
    """The counts that prove presence or absence with `trials`, if the baseline of as many had `before` hits.

    The fault hits `share` of the trials, or up to `highest` if its share is not known exactly. None: with such a
    baseline, this many trials cannot distinguish the fault from its absence.
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
    """The most hits of a baseline with which the fault is provable; -1 if it is not even without any."""
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
    """The probability of `hits` or more in the second of two samples if both are alike (Fisher's exact test)."""
    both = hits + before
    highest = min(both, trials)
    logs = [_log_choose(trials, k) + _log_choose(trials, both - k) for k in range(hits, highest + 1)]
    return min(1.0, sum(math.exp(each - _log_choose(2 * trials, both)) for each in logs))


def at_most(hits: int, trials: int, share: float) -> float:
    """The binomial distribution: the probability of `hits` or fewer of `trials`."""
    return min(1.0, math.fsum(_probable(k, trials, share) for k in range(hits + 1)))


def _probable(hits: int, trials: int, share: float) -> float:
    if share >= 1 or share <= 0:
        return float(hits == (trials if share >= 1 else 0))
    log = _log_choose(trials, hits) + hits * math.log(share) + (trials - hits) * math.log1p(-share)
    return math.exp(log)


def _lowest(trials: int, share: float) -> int:
    """The largest number of hits such that the fault has fewer with a probability of at most `_MISSED`."""
    fewer = 0.0
    for hits in range(trials + 1):
        fewer += _probable(hits, trials, share)  # the probability of `hits` or fewer
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
    """The smallest share, in whole percent, that can be distinguished from this share of hits without the fault."""
    return next(
        (
            percent / 100
            for percent in range(1, 100)
            if counts(trials_for(percent / 100), percent / 100, int(background * trials_for(percent / 100)))
        ),
        1.0,
    )


SMALLEST_SHARE = 0.01
"""The smallest share of disk operations that a fault may hit: some 9,500 trials prove it."""


def delays_over(delay: float, jitter: float) -> tuple[float, float]:
    """(seconds, share): of operations delayed by `delay` plus or minus `jitter`, at least that share takes this long.

    Delays may be late but never early, so all operations take at least the shortest delay. If jitter makes that too
    short to prove, three in four take at least `delay - jitter / 2`: jitter is evenly distributed.
    """
    return (0.98 * (delay - jitter), 1.0) if jitter <= delay / 2 else (0.98 * (delay - jitter / 2), 0.75)
