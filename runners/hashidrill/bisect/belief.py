"""What runs that may be wrong say about where a list of candidates turns from good to bad.

Runs are noisy: a good candidate breaks now and then, and a bad one holds now and then. How often is not known
beforehand, so it is learnt along with the answer: a belief is a joint distribution over the turn (the first bad
candidate) and over both rates, on a grid. This is noisy bisection as Burnashev and Zigangirov (1974) have it, with
unknown rates. It ends when all that is left beside one turn weighs less than the chance of a wrong answer that the
caller allows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

GOOD_BREAKS = np.array([0.003, 0.01, 0.03, 0.06, 0.1, 0.15, 0.2, 0.26, 0.33, 0.4])
"""Rates at which a good candidate may break."""
BAD_HOLDS = np.array([0.003, 0.01, 0.03, 0.06, 0.1, 0.15, 0.2, 0.26, 0.33, 0.4, 0.5, 0.6])
"""Rates at which a bad candidate may hold. A race shows itself in some runs only: this may be higher."""
APART = 0.25
"""A bad candidate breaks at least this much more often than a good one; otherwise there is nothing to find."""
_PRIOR = 9.0
"""Both rates are Beta(1, 9) beforehand: one run in ten is wrong, and more is unlikely but possible."""
ENDS_WRONG = 0.05
"""How likely it is, before any run, that an end that somebody calls good or bad is not."""


def _grid() -> tuple[Floats, Floats, Floats]:
    """The rates at which a good and a bad candidate break, and the log of how likely each pair is beforehand."""
    good, held = (axis.ravel() for axis in np.meshgrid(GOOD_BREAKS, BAD_HOLDS, indexing="ij"))
    possible = (1 - held) - good >= APART
    good, held = good[possible], held[possible]
    weights = np.log(_width(good, GOOD_BREAKS)) + np.log(_width(held, BAD_HOLDS))
    weights += (_PRIOR - 1) * (np.log1p(-good) + np.log1p(-held))
    return good, 1 - held, _normal(weights)


def _width(values: Floats, axis: Floats) -> Floats:
    """How much of the range of rates each point of an uneven grid stands for."""
    edges = np.concatenate([[0.0], (axis[1:] + axis[:-1]) / 2, [axis[-1] + (axis[-1] - axis[-2]) / 2]])
    widths: Floats = np.diff(edges)[np.searchsorted(axis, values)]
    return widths


def _normal(log_weights: Floats) -> Floats:
    top = log_weights.max()
    normal: Floats = log_weights - (top + np.log(np.exp(log_weights - top).sum()))
    return normal


_GOOD, _BAD, _BEFOREHAND = _grid()


@dataclass(frozen=True)
class Noise:
    """What is known about both rates: the log weight of each pair of the grid."""

    log_weights: Floats

    @classmethod
    def unknown(cls) -> Noise:
        return cls(_BEFOREHAND)

    @property
    def good_breaks(self) -> float:
        """The rate at which a good candidate breaks, as far as is known."""
        return float(np.exp(self.log_weights) @ _GOOD)

    @property
    def bad_breaks(self) -> float:
        return float(np.exp(self.log_weights) @ _BAD)

    @property
    def a_run_tells(self) -> float:
        """By what factor, in logs, one more right run changes the odds of a turn, on average."""
        good, bad = self.good_breaks, self.bad_breaks
        forward = bad * np.log(bad / good) + (1 - bad) * np.log((1 - bad) / (1 - good))
        backward = good * np.log(good / bad) + (1 - good) * np.log((1 - good) / (1 - bad))
        return float(min(forward, backward))


class Belief:
    """Where the turn is in a list of `count` candidates: turn t says that t and those after it are bad.

    Turns go from 0 (all are bad) to `count` (none is). `prior`: how likely each is beforehand.
    """

    def __init__(self, count: int, prior: Iterable[float], noise: Noise) -> None:
        with np.errstate(divide="ignore"):
            turns = np.log(np.fromiter(prior, dtype=float))
        if len(turns) != count + 1:
            raise ValueError(f"{count} candidates have {count + 1} turns, not {len(turns)}")
        self.count = count
        self._log = turns[:, None] + noise.log_weights[None, :]
        self._log = _normal(self._log)

    def observe(self, candidate: int, *, broken: bool) -> None:
        """One valid run of a candidate."""
        good, bad = (_GOOD, _BAD) if broken else (1 - _GOOD, 1 - _BAD)
        is_bad = np.arange(self.count + 1)[:, None] <= candidate
        self._log = _normal(self._log + np.where(is_bad, np.log(bad), np.log(good)))

    @property
    def turns(self) -> Floats:
        """How likely each turn is."""
        weights: Floats = np.exp(self._log).sum(axis=1)
        return weights

    def bad(self, candidate: int) -> float:
        """How likely it is that this candidate is bad."""
        return float(self.turns[: candidate + 1].sum())

    def noise(self) -> Noise:
        """What is known about the rates now, wherever the turn is."""
        weights = np.exp(self._log).sum(axis=0)
        with np.errstate(divide="ignore"):
            return Noise(_normal(np.log(weights)))
