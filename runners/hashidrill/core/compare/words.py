"""How two sides differ, in words: a ratio where that says something, percentage points for a share of errors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashidrill.core.compare.measured import Figure

MOST_TIMES = 100.0
"""Of more than this, nobody wants to know how much more."""


def difference(
    figure: Figure, baseline: float, candidate: float, ratio: float, bounds: tuple[float, float] | None = None
) -> tuple[str, str]:
    """For a person: (`1.53 times`, `1.41 to 1.66`). `ratio` and `bounds` are as compared.

    ("", "") where the two numbers say it all: something that never came back took no number of times as long, and 200
    losses are no multiple of none.
    """
    if math.isnan(ratio) or math.isinf(baseline) or math.isinf(candidate):
        return "", ""
    if figure.odds:
        low, high = (_points(figure, baseline, each) for each in bounds or (math.nan, math.nan))
        between = f"{low:+.1f} to {high:+.1f}" if bounds else ""
        return f"{_points(figure, baseline, ratio):+.1f} percentage points", between
    if figure.unit == "" and 0 in {baseline, candidate}:
        return "", ""
    return f"{_times(ratio)} times", f"{_times(bounds[0])} to {_times(bounds[1])}" if bounds else ""


def _times(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio <= MOST_TIMES else f"over {MOST_TIMES:g}"


def _points(figure: Figure, share: float, ratio: float) -> float:
    """Percentage points from a share to the one whose odds, as `Figure.log` has them, are `ratio` times as high."""
    odds = ratio * (share + figure.floor) / (1 - share + figure.floor)
    there = 1 + figure.floor if math.isinf(odds) else (odds * (1 + figure.floor) - figure.floor) / (1 + odds)
    return 100 * (min(max(there, 0.0), 1.0) - share)
