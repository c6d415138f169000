"""Figures over time in bounded memory: as a run grows longer, its buckets grow wider.

A value is a number, None where nothing was measured, and NEVER for a latency of what is never served.
"""

from __future__ import annotations

import itertools
import math
from typing import Literal

MOST = 900
"""Buckets of one series: as many as a wide screen can show."""
NARROWEST_S = 1.0
NEVER = "never"
Value = float | str | None
Kind = Literal["mean", "worst"]


def plain(value: float | None) -> Value:
    """As JSON has it, with four significant digits: a pixel shows fewer."""
    if value is None or math.isnan(value):
        return None
    return NEVER if math.isinf(value) else float(f"{value:.4g}")


def worst(first: Value, second: Value) -> Value:
    """The higher one; what was not measured counts least, and what is never served most."""
    return max(first, second, key=_rank)


def _rank(value: Value) -> float:
    return -math.inf if value is None else math.inf if isinstance(value, str) else value


class Series:
    """One value a bucket: the mean of what came in it, or the worst. `values` is shared with the document."""

    def __init__(self, kind: Kind) -> None:
        self.values: list[Value] = []
        self._kind = kind
        self._at = -1
        self._count = 0
        """How many values the mean of the bucket `_at` is of."""

    def add(self, index: int, value: Value) -> Value:
        """What the bucket holds with this value; the caller puts it there."""
        before = self.values[index] if index < len(self.values) else None
        if index != self._at:
            self._at, self._count = index, 0 if before is None else 1
        if value is None:
            return before
        self._count += 1
        if self._kind == "mean" and isinstance(before, float) and isinstance(value, float):
            return plain(before + (value - before) / self._count)
        return worst(before, value)

    def halve(self) -> None:
        """Two buckets become one."""
        pairs = itertools.zip_longest(self.values[::2], self.values[1::2])
        self.values[:] = [_together(self._kind, *pair) for pair in pairs]
        self._count *= 1 + self._at % 2
        self._at //= 2


def _together(kind: Kind, first: Value, second: Value) -> Value:
    if kind == "mean" and isinstance(first, float) and isinstance(second, float):
        return plain((first + second) / 2)
    return worst(first, second)


class Axis:
    """The time axis that all series of a run share."""

    def __init__(self, *, most: int = MOST, narrowest_s: float = NARROWEST_S) -> None:
        self.width_s = narrowest_s
        self._most = most

    def index(self, t_s: float) -> int:
        """The bucket of a moment; beyond the last one, double the width first (`double`)."""
        return max(int(t_s / self.width_s), 0)

    def is_full(self, t_s: float) -> bool:
        """Whether that moment is beyond the last bucket."""
        return self.index(t_s) >= self._most

    def double(self) -> None:
        """Every series is halved by whoever holds it."""
        self.width_s *= 2
