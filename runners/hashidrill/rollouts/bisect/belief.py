"""What runs that may be wrong say about where a list of candidates turns from good to bad.

Runs are noisy: a good candidate breaks now and then, and a bad one holds now and then. How often is not known
beforehand, so it is learnt along with the answer: a belief is a joint distribution over the turn (the first bad
candidate) and over both rates, on a grid. This is noisy bisection as Burnashev and Zigangirov (1974) have it, with
unknown rates. It ends when all that is left beside one turn weighs less than the chance of a wrong answer that the
caller allows.

A run that is clear (`hashidrill.rollouts.bisect.trials.Trial`) is wrong less often than another one. It has rates of
its own: fewer beforehand, and learnt like the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

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
_PRIOR_CLEAR = 199.0
"""Of clear runs, Beta(1, 199): one in two hundred is wrong."""
_CLEAR_AS_ANY = 0.1
"""How likely it is that clear runs are wrong as often as any: where they contradict each other, this weighs most."""
ENDS_WRONG = 0.05
"""How likely it is, before any run, that an end that somebody calls good or bad is not."""


def _grid() -> tuple[Floats, Floats, Floats, Floats]:
    """The rates at which a good and a bad candidate break, and the log of how likely each pair is beforehand.

    The latter twice: for any run, and for a clear one.
    """
    good, held = (axis.ravel() for axis in np.meshgrid(GOOD_BREAKS, BAD_HOLDS, indexing="ij"))
    possible = (1 - held) - good >= APART
    good, held = good[possible], held[possible]
    widths = np.log(_width(good, GOOD_BREAKS)) + np.log(_width(held, BAD_HOLDS))
    right = np.log1p(-good) + np.log1p(-held)
    any_run, rare = (_normal(widths + (prior - 1) * right) for prior in (_PRIOR, _PRIOR_CLEAR))
    clear = np.logaddexp(np.log(1 - _CLEAR_AS_ANY) + rare, np.log(_CLEAR_AS_ANY) + any_run)
    return good, 1 - held, any_run, _normal(clear)


def _width(values: Floats, axis: Floats) -> Floats:
    """How much of the range of rates each point of an uneven grid stands for."""
    edges = np.concatenate([[0.0], (axis[1:] + axis[:-1]) / 2, [axis[-1] + (axis[-1] - axis[-2]) / 2]])
    widths: Floats = np.diff(edges)[np.searchsorted(axis, values)]
    return widths


def _normal(log_weights: Floats) -> Floats:
    top = log_weights.max()
    normal: Floats = log_weights - (top + np.log(np.exp(log_weights - top).sum()))
    return normal


_GOOD, _BAD, _BEFOREHAND, _CLEAR_BEFOREHAND = _grid()


@dataclass(frozen=True)
class Noise:
    """What is known about both rates: the log weight of each pair of the grid, and the same of clear runs."""

    log_weights: Floats
    clear: Floats = field(default_factory=lambda: _CLEAR_BEFOREHAND)

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
            self._prior = np.log(np.fromiter(prior, dtype=float))
        if len(self._prior) != count + 1:
            raise ValueError(f"{count} candidates have {count + 1} turns, not {len(self._prior)}")
        self.count = count
        # given the turn, the rates of clear runs and of others know nothing of each other
        self._log: Mapping[bool, Floats] = {
            clear: np.repeat(weights[None, :], count + 1, axis=0)
            for clear, weights in ((False, noise.log_weights), (True, noise.clear))
        }
        self._turns = np.exp(_normal(self._prior))

    def observe(self, candidate: int, *, broken: bool, clear: bool = False) -> None:
        """One valid run of a candidate."""
        good, bad = (_GOOD, _BAD) if broken else (1 - _GOOD, 1 - _BAD)
        is_bad = np.arange(self.count + 1)[:, None] <= candidate
        log = self._log[clear]
        log += np.where(is_bad, np.log(bad), np.log(good))
        self._turns = np.exp(_normal(self._prior + sum(_summed(each) for each in self._log.values())))

    @property
    def turns(self) -> Floats:
        """How likely each turn is."""
        return self._turns

    def bad(self, candidate: int) -> float:
        """How likely it is that this candidate is bad."""
        return float(self.turns[: candidate + 1].sum())

    def noise(self) -> Noise:
        """What is known about the rates now, wherever the turn is."""
        return Noise(self._rates(self._log[False]), self._rates(self._log[True]))

    def _rates(self, log: Floats) -> Floats:
        weights = (np.exp(log - _summed(log)[:, None]) * self._turns[:, None]).sum(axis=0)
        with np.errstate(divide="ignore"):
            return _normal(np.log(weights))


def _summed(log: Floats) -> Floats:
    """The log of the sum of each row."""
    top = log.max(axis=1)
    summed: Floats = top + np.log(np.exp(log - top[:, None]).sum(axis=1))
    return summed
