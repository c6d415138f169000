"""A load's operations during a run: those that ended, and those still waiting for an answer.

Figures follow the definition that verdicts use (hashidrill.core.judging.measure): latency counts from the moment an
operation was due, and one that was not acknowledged is infinitely slow. A verdict knows how every operation ended.
Here some are still waiting: each has waited for at least its age, and nobody knows how much longer it will. If
nothing waits, the figures equal those of a verdict.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hashidrill.core.recording.reader import Bools, Floats, Int64s

_NS = 1e9
_ROUNDING = 1e-9
"""Survival is a product of fractions, so it may miss a round share by this much."""
_USUAL = 2.0
"""An operation that takes this many times longer than any served one is not being served as usual."""


class Ended:
    """The operations of one load that ended, and those that are known to wait, on the engine's side."""

    def __init__(self) -> None:
        # in order of arrival; `_heard` never decreases, so bisection finds a window without a scan
        self._heard, self._due, self._end, self._ok = array("q"), array("q"), array("q"), array("b")
        self._waiting: Counter[int] = Counter()
        self._looked_ns = -1
        self._windows: dict[float, Window] = {}  # of this look, by length, shared by all conditions

    def __len__(self) -> int:
        return len(self._heard)

    def add(self, due_ns: int, end_ns: int, *, ok: bool) -> None:
        self._windows.clear()
        self._heard.append(max(end_ns, self._heard[-1]) if self._heard else end_ns)
        self._due.append(due_ns)
        self._end.append(end_ns)
        self._ok.append(ok)

    def wait(self, begun: Iterable[int], ended: Iterable[int]) -> None:
        """What `hashidrill.core.loads.waiting.Waiting.take` returned."""
        self._windows.clear()
        self._waiting.update(begun)
        for due_ns in ended:
            self._waiting[due_ns] -= 1
            if self._waiting[due_ns] <= 0:
                del self._waiting[due_ns]

    def forget(self, before_ns: int) -> None:
        """Drops what ended before that, but only once it is half of what is kept: dropping moves the other half."""
        old = bisect_left(self._heard, before_ns)
        if old * 2 > len(self._heard):
            for column in (self._heard, self._due, self._end, self._ok):
                del column[:old]

    def window(self, now_ns: int, window_s: float) -> Window:
        """The operations that were in flight at some moment of the last `window_s` seconds."""
        if now_ns != self._looked_ns:
            self._windows.clear()
            self._looked_ns = now_ns
        if window_s not in self._windows:
            self._windows[window_s] = self._window(now_ns, window_s)
        return self._windows[window_s]

    def _window(self, now_ns: int, window_s: float) -> Window:
        since_ns = now_ns - int(window_s * _NS)
        at = bisect_left(self._heard, since_ns)
        end = np.frombuffer(self._end[at:], np.int64)
        inside = (end >= since_ns) & (end <= now_ns)
        due = np.frombuffer(self._due[at:], np.int64)[inside]
        ok = np.frombuffer(self._ok[at:], np.bool_)[inside]
        waiting = np.fromiter(self._waiting.elements(), np.int64)
        return Window(window_s, since_ns, now_ns, due, end[inside], ok, waiting[waiting < now_ns])


@dataclass(frozen=True)
class Window:
    """The operations that were in flight at some moment between `since_ns` and `now_ns`."""

    length_s: float
    since_ns: int
    now_ns: int
    due_ns: Int64s
    end_ns: Int64s
    ok: Bools
    waiting_ns: Int64s
    """When the operations that still wait were due."""

    @property
    def empty(self) -> bool:
        return not len(self.due_ns) and not len(self.waiting_ns)

    def rate(self, *, acknowledged: bool) -> float:
        """Operations per second that ended; only the acknowledged ones, or all."""
        return float(self.ok.sum() if acknowledged else len(self.ok)) / self.length_s

    def errors(self) -> float:
        """Share of operations that were not acknowledged, 0 to 1; NaN if nothing is known.

        An operation that has waited for the whole window, and twice as long as any served one in it, is not being
        served: it counts as one error, at the moment this became true. If nothing was served, and some operations
        failed or waited that long, the share is 1.
        """
        age_ns = (self.end_ns - self.due_ns).astype(np.float64)
        patience_ns = self._patience_ns()
        failed_ns = self.due_ns[~self.ok] + np.minimum(age_ns[~self.ok], patience_ns)
        given_up_ns = self.waiting_ns + patience_ns
        good = int(self.ok.sum())
        bad = int((failed_ns >= self.since_ns).sum())
        bad += int(((given_up_ns >= self.since_ns) & (given_up_ns <= self.now_ns)).sum())
        if good + bad:
            return bad / (good + bad)
        return 1.0 if len(failed_ns) or (given_up_ns <= self.now_ns).any() else float("nan")

    def failed(self) -> float:
        """Share of ended operations that were not acknowledged, 0 to 1; NaN if none ended. See also `overdue`."""
        return float(1 - self.ok.mean()) if len(self.ok) else float("nan")

    def overdue(self) -> tuple[int, float]:
        """How many operations have waited so long that `errors` counts them; the age of the oldest in seconds."""
        ages_ns = self.now_ns - self.waiting_ns[self.waiting_ns + self._patience_ns() <= self.now_ns]
        return len(ages_ns), float(ages_ns.max()) / _NS if len(ages_ns) else 0.0

    def _patience_ns(self) -> float:
        """An operation that has waited longer than this is not being served."""
        served_ns = (self.end_ns - self.due_ns)[self.ok]
        longest_ns = float(served_ns.max()) if len(served_ns) else 0.0
        return max(self.length_s * _NS, _USUAL * longest_ns)

    def percentile(self, percent: float) -> float:
        """The latency in seconds that `percent` of the operations stay within; NaN for none.

        If it lies among those that still wait, the age of the oldest of them, which is a lower bound.
        """
        if self.empty:
            return float("nan")
        course = self._course
        reached = np.flatnonzero(course.waits <= 1 - percent / 100 + _ROUNDING)
        if percent < 100 and len(reached):
            return float(course.at_s[reached[0]])
        never = course.left * course.never / max(course.never + course.beyond, 1)
        if not course.beyond or (percent < 100 and never > 1 - percent / 100 + _ROUNDING):
            return course.longest_s
        return float("inf") if percent >= 100 and course.never else course.oldest_s

    def mean(self) -> float:
        """Mean latency in seconds, infinite with a single failure; NaN for none."""
        if self.empty:
            return float("nan")
        course = self._course
        if course.never:
            return float("inf")
        before = np.concatenate(([1.0], course.waits))
        steps_s = np.diff(np.concatenate(([0.0], course.at_s, [course.oldest_s])))
        return float((before * np.maximum(steps_s, 0.0)).sum())

    @cached_property
    def _course(self) -> _Course:
        """How many operations were served after which time: a life table of this period.

        An operation that was due before the window counts only for the ages at which the window saw it, one that still
        waits only up to its age (Kaplan and Meier's estimate, with delayed entry). So a window shorter than the
        latencies in it neither overlooks waiting operations, nor is swayed by a few old ones that outlast all others.
        """
        served_ns = np.sort((self.end_ns - self.due_ns)[self.ok])
        ages_ns = np.sort(self.now_ns - self.waiting_ns)
        # the window sees operations due inside it from age 0 on; only the others have a later entry
        due_ns = np.concatenate((self.due_ns, self.waiting_ns))
        entry_ns = np.sort(self.since_ns - due_ns[due_ns < self.since_ns])
        from_birth = len(due_ns) - len(entry_ns)
        first = np.flatnonzero(np.diff(served_ns, prepend=served_ns[:1] - 1))  # where in served_ns each latency begins
        at_ns, count = served_ns[first], np.diff(first, append=len(served_ns))
        left = first + np.searchsorted(ages_ns, at_ns, "left")
        present = from_birth + np.searchsorted(entry_ns, at_ns, "right") - left
        waits = np.cumprod(1 - count / np.maximum(present, count), dtype=np.float64)
        last_ns = int(at_ns[-1]) if len(at_ns) else -1
        oldest_ns = max(int(ages_ns[-1]) if len(ages_ns) else 0, last_ns)
        return _Course(
            at_ns / _NS,
            waits,
            float(waits[-1]) if len(waits) else 1.0,
            int((~self.ok).sum()),
            int((ages_ns > last_ns).sum()),
            oldest_ns / _NS,
        )


@dataclass(frozen=True)
class _Course:
    """`waits[i]` is the share not served by `at_s[i]`, and `left` the share after the last of them."""

    at_s: Floats
    waits: Floats
    left: float
    never: int
    """How many failed."""
    beyond: int
    """How many have waited longer than any served operation took."""
    oldest_s: float

    @property
    def longest_s(self) -> float:
        return float("inf") if self.never else self.oldest_s


STATISTICS: dict[str, Callable[[Window], float]] = {
    "latency.p50": lambda window: window.percentile(50),
    "latency.p90": lambda window: window.percentile(90),
    "latency.p99": lambda window: window.percentile(99),
    "latency.max": lambda window: window.percentile(100),
    "latency.mean": Window.mean,
    "errors": Window.errors,
}
