"""Operations of several workers in the order of time: what one generator would have reported.

A worker says up to when it has reported everything. What ended before the earliest of these moments can go on, in the
order in which it ended: nothing that comes later belongs before it. What has to wait for a worker that lags is bounded
by `behind`: whoever reads the workers' streams stops reading those that are far ahead.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

Line = Sequence[Any]
"""An operation as hashidrill.core.loads.lines packs it."""
_END = 3
_ended = itemgetter(_END)
MOST_WAITING = 500_000
"""Operations that may wait for the slowest worker, over all workers."""


class Merge:
    """What waits of each worker, and up to when each has reported. Times are of the run's clock."""

    def __init__(self, workers: Sequence[str]) -> None:
        self._waiting: dict[str, list[Line]] = {worker: [] for worker in workers}
        self._upto_ns = dict.fromkeys(workers, 0)
        self.waiting = 0

    def add(self, worker: str, operations: Sequence[Line]) -> None:
        self._waiting[worker].extend(operations)
        self.waiting += len(operations)

    def upto(self, worker: str, t_ns: int) -> None:
        """That worker has reported every operation that ended by then."""
        self._upto_ns[worker] = max(self._upto_ns[worker], t_ns)

    def ahead(self, worker: str, most: int = MOST_WAITING) -> bool:
        """Whether to read no more of that worker for now: too much waits, and for another one."""
        slowest_ns = min(self._upto_ns.values())
        return self.waiting >= most and self._upto_ns[worker] > slowest_ns

    def taken(self) -> list[Line]:
        """All that can go on now, in order."""
        return self._taken(min(self._upto_ns.values()))

    def rest(self) -> list[Line]:
        """All that is left, in order: the loads have stopped, and nothing more comes."""
        return self._taken(None)

    def _taken(self, before_ns: int | None) -> list[Line]:
        found: list[Line] = []
        for worker, lines in self._waiting.items():
            if before_ns is None:
                found += lines
                self._waiting[worker] = []
            elif lines:
                found += [line for line in lines if line[_END] <= before_ns]
                self._waiting[worker] = [line for line in lines if line[_END] > before_ns]
        found.sort(key=_ended)
        self.waiting -= len(found)
        return found
