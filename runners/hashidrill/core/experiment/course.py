"""The level of a load over time, and the open-loop schedule that follows from it.

A level is a multiple of what the experiment asks for: 1 is the nominal rate (or count), 2 is twice that. A `Course`
consists of pieces in which the level is constant or changes evenly. A `Pace` integrates it, so the n-th operation is
due when exactly n operations should have been offered. Rounding errors do not add up: each due time is computed from
the start of its piece, not from the previous operation.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Piece:
    """From `start_ns` until the next piece begins: the level at its start, and its change per second."""

    start_ns: int
    level: float
    slope_per_s: float = 0.0

    def at(self, t_ns: int) -> float:
        return self.level + self.slope_per_s * (t_ns - self.start_ns) / _NS


@dataclass(frozen=True, slots=True)
class Share:
    """What one of several generators offers of a load: operation number `index`, and every `of`-th from there on."""

    index: int = 0
    of: int = 1

    @property
    def first(self) -> bool:
        """Of the generators that share a load, this one does what is done once."""
        return self.index == 0

    def count(self, operations: int) -> int:
        """How many of that number of operations are in it."""
        return max(0, -(-(operations - self.index) // self.of))


class Course:
    """One load's level: 1 until the method begins, then what its profile says.

    `profile` holds the pieces of the method; their times count from its start. `share`: which of the operations that
    follow from it are offered here.
    """

    def __init__(self, profile: Sequence[Piece] = (), share: Share = Share()) -> None:
        self._profile = profile
        self.share = share
        self.start_ns: int | None = None
        """When operation 0 is due, where that was agreed with other generators; None: when the load begins."""
        self.pieces: list[Piece] = [Piece(0, 1.0)]
        self.changes = 0
        """Counts changes, so that whoever planned with the pieces knows to look again."""
        self._held_ns, self._slope_per_s = 0, 0.0
        self._later: list[Piece] = []

    def begin(self, t_ns: int) -> None:
        """The method began at `t_ns`, possibly a moment ago; the course is the same as if this had been known then."""
        for piece in self._profile:
            self._add(replace(piece, start_ns=t_ns + piece.start_ns))

    def set(self, t_ns: int, level: float) -> None:
        """Sets the level from `t_ns` on."""
        self._add(Piece(t_ns, level))

    def hold(self, t_ns: int) -> None:
        """From `t_ns` on the level stays as it is, until `go`."""
        self._held_ns, self._slope_per_s = t_ns, self.piece(t_ns).slope_per_s
        self._later = [piece for piece in self.pieces if piece.start_ns > t_ns]
        self._add(Piece(t_ns, self.at(t_ns)))

    def go(self, t_ns: int) -> None:
        """What was to come when the level was held comes now, later by as long as it was held."""
        self._add(Piece(t_ns, self.at(t_ns), self._slope_per_s))
        for piece in self._later:
            self._add(replace(piece, start_ns=piece.start_ns + t_ns - self._held_ns))

    def _add(self, piece: Piece) -> None:
        while self.pieces and self.pieces[-1].start_ns >= piece.start_ns:
            self.pieces.pop()
        self.pieces.append(piece)
        self.changes += 1

    def piece(self, t_ns: int) -> Piece:
        """The piece that contains `t_ns`."""
        return self.pieces[max(0, bisect_right(self.pieces, t_ns, key=lambda piece: piece.start_ns) - 1)]

    def at(self, t_ns: int) -> float:
        return self.piece(t_ns).at(t_ns)


class Pace:
    """When the n-th operation is due of a load that began at `start_ns` and offers `rate_per_s` at level 1."""

    def __init__(self, course: Course, rate_per_s: float, start_ns: int) -> None:
        self._course = course
        self._rate_per_s = rate_per_s
        self._start_ns = start_ns
        self._rewind()

    def _rewind(self) -> None:
        self._changes = self._course.changes
        self._index = 0
        self._done = 0.0  # operations that were due before the piece at `_index`

    def due_ns(self, n: int) -> int | None:
        """None if, by the present pieces, no more operations are due. `n` never decreases between calls."""
        if self._changes != self._course.changes:
            self._rewind()
        pieces = self._course.pieces
        while True:
            piece = pieces[self._index]
            begin_ns = max(piece.start_ns, self._start_ns)
            last = self._index + 1 == len(pieces)
            until_ns = None if last else max(pieces[self._index + 1].start_ns, self._start_ns)
            level = piece.at(begin_ns)
            if until_ns is None:
                inside = math.inf if level > 0 else 0.0
            else:
                length_s = (until_ns - begin_ns) / _NS
                inside = self._rate_per_s * length_s * (level + piece.slope_per_s * length_s / 2)
            left = n - self._done
            if left < inside:
                return begin_ns + round(_after(left, self._rate_per_s, level, piece.slope_per_s) * _NS)
            if last:
                return None
            self._done += inside
            self._index += 1


def _after(count: float, rate_per_s: float, level: float, slope_per_s: float) -> float:
    """Seconds in which `count` operations are due: the integral of rate * (level + slope * t), solved for t."""
    if slope_per_s == 0:
        return count / (rate_per_s * level)
    share = count / rate_per_s
    # this form of the quadratic's root loses no digits when the slope is small
    return 2 * share / (level + math.sqrt(max(0.0, level * level + 2 * slope_per_s * share))) if share else 0.0
