"""Which curve a client's gaps lie on: growth by a factor, or along a line, a square, a cube.

Growth by a factor is a straight line in the logarithm (or bends up, where something is added to each gap: additive
jitter, the machine); every power of the retry's number bends down. So the slope alone tells nothing: 1, 4, 9, 16 has
a steeper one than 1, 2, 4, 8. Both families are fitted, and the difference has to be more than the gaps scatter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
_ADDED = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
"""What may be added to each gap of a growth by a factor, as shares of the shortest one."""
_POWERS: tuple[tuple[float, str, tuple[float, ...]], ...] = (
    (2, "a square", (1, 2, 3)),
    (3, "a cube", (1, 2, 3)),
    (4, "a fourth power", (1, 2)),
)
"""`base * attempt ** power`, with an attempt that is counted from one of these."""
_FEWEST = 4


@dataclass(frozen=True)
class Curve:
    """`slope`: doublings a retry, and its standard error. `factor`, `power`: how badly each family fits (chi square).

    `rival` names the power that fits best.
    """

    slope: float
    slope_error: float
    factor: float
    power: float
    rival: str


def curve_of(gaps_s: Sequence[float], errors: Sequence[float]) -> Curve:
    """The curve of at least four gaps over 0 s. `errors`: the standard error of each, as a share of it, over 0."""
    gaps, sigma = np.array(gaps_s, dtype=np.float64), np.array(errors, dtype=np.float64)
    logs, scatter = np.log(gaps), np.log1p(sigma)
    centred = np.arange(len(gaps)) - (len(gaps) - 1) / 2
    weights = centred / float(np.sum(centred**2)) / math.log(2)
    slope, slope_error = float(weights @ logs), float(np.sqrt(np.sum((weights * scatter) ** 2)))

    def best(family: Callable[[Floats, Floats], Iterator[tuple[float, str]]]) -> tuple[float, str]:
        # a cap that noise keeps from being seen as a plateau belongs to either family
        return min(
            (chi + _level(logs[end:], scatter[end:]), name)
            for end in range(_FEWEST, len(gaps) + 1)
            for chi, name in family(gaps[:end], scatter[:end])
        )

    factor, _ = best(_by_a_factor)
    power, rival = best(_by_a_power)
    return Curve(slope, slope_error, factor, power, rival)


def constant(gaps_s: Sequence[float], errors: Sequence[float]) -> bool:
    """Whether gaps differ by no more than chance makes them differ."""
    misfit = _level(np.log(np.array(gaps_s)), np.log1p(np.array(errors)))
    return misfit <= len(gaps_s) + 3 * math.sqrt(2 * len(gaps_s))


def _by_a_factor(gaps: Floats, sigma: Floats) -> Iterator[tuple[float, str]]:
    position = np.arange(len(gaps), dtype=np.float64)
    for share in _ADDED:
        rest = gaps - share * float(gaps.min())
        weights = rest / gaps / sigma  # a share of the gap is a larger one of what grows
        slope, start = np.polyfit(position, np.log(rest), 1, w=weights)
        if slope > 0:
            yield _misfit(gaps, np.exp(start + slope * position) + gaps - rest, sigma), "a factor"
    yield math.inf, "a factor"


def _by_a_power(gaps: Floats, sigma: Floats) -> Iterator[tuple[float, str]]:
    position = np.arange(len(gaps), dtype=np.float64)
    for power, name, starts in _POWERS:
        for start in starts:
            shape = (position + start) ** power
            level = np.average(np.log(gaps / shape), weights=1 / sigma**2)
            yield _misfit(gaps, shape * math.exp(level), sigma), name
    for power, name in ((1.0, "a straight line"), (2.0, "a square"), (3.0, "a cube")):
        parts = np.stack([np.ones(len(gaps)), position**power], axis=1)
        by_share = parts / (gaps * sigma)[:, None]
        (first, rise), *_ = np.linalg.lstsq(by_share, 1 / sigma, rcond=None)
        if first > 0 and rise >= 0:
            yield _misfit(gaps, parts @ np.array([first, rise]), sigma), name
    yield math.inf, "a straight line"


def _misfit(gaps: Floats, fitted: Floats, sigma: Floats) -> float:
    return float(np.sum((np.log(gaps / fitted) / sigma) ** 2))


def _level(logs: Floats, sigma: Floats) -> float:
    if len(logs) < 2:
        return 0.0
    return float(np.sum(((logs - np.average(logs, weights=1 / sigma**2)) / sigma) ** 2))
