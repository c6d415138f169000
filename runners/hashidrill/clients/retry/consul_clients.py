"""Verdicts on what only a client of Consul has to get right: watch_resets, lock_reacquired.

Pure functions of attempts; definitions and sources are in hashidrill.core.tap.catalogue.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from hashidrill.clients.retry.judged import Judged, failed, not_for_it, passed, unknown
from hashidrill.core.tap.attempts import SECOND, Attempt

_SPINS_PER_S = 10


def watch_resets(fault: str, attempts: Sequence[Attempt]) -> Judged:
    """After an index that went backwards a watch begins again at 0, and does not spin."""
    watches: dict[tuple[str, str], list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        if attempt.method == "GET":
            watches[attempt.what].append(attempt)
    watches = {what: each for what, each in watches.items() if any(a.asked_index is not None for a in each)}
    if not watches:
        return not_for_it("watch_resets", fault, "it made no blocking query")
    resets = [pair for each in watches.values() for pair in _backwards(each)]
    if not resets:
        return unknown("watch_resets", fault, "no index went backwards", watches=len(watches))
    followed = [(before, after) for before, after in resets if after is not None]
    if not followed:
        return unknown("watch_resets", fault, "it ended before another query after the index went backwards")
    wrong = [(before, after) for before, after in followed if after.asked_index]
    evidence = {"resets": len(followed), "not_reset": len(wrong)}
    if wrong:
        before, after = wrong[0]
        text = f"the index went back to {before.index}, and the next query asked for {after.asked_index}, not for 0"
        return failed("watch_resets", fault, text, **evidence)
    first_ns = min(before.end_ns for before, _ in followed)
    busiest = max(_most_in_a_second([a for a in each if a.start_ns >= first_ns]) for each in watches.values())
    evidence["most_in_a_second"] = busiest
    if busiest > _SPINS_PER_S:
        return failed("watch_resets", fault, f"it spins: {busiest} queries in one second after the reset", **evidence)
    return passed("watch_resets", fault, "the query after the index went backwards began again at 0", **evidence)


def lock_reacquired(fault: str, attempts: Sequence[Attempt], *, lost_ns: int, within_s: float | None = None) -> Judged:
    """The client gets a lock back that it held when the fault began (`lost_ns`), in time."""
    granted = [attempt for attempt in attempts if attempt.granted]
    held = [attempt for attempt in granted if attempt.start_ns < lost_ns]
    if not held:
        return not_for_it("lock_reacquired", fault, "no lock was held when the fault came")
    again = [attempt for attempt in granted if attempt.start_ns >= lost_ns]
    tried = sum(1 for attempt in attempts if attempt.granted is not None and attempt.start_ns >= lost_ns)
    if not again:
        return failed("lock_reacquired", fault, f"the lock was never granted again ({tried} tries)", tries=tried)
    after_s = (again[0].end_ns - lost_ns) / SECOND
    evidence = {"after_s": round(after_s, 3), "tries": tried}
    text = f"the lock was granted again {after_s:.1f}s after the fault came"
    if within_s is not None and after_s > within_s:
        return failed("lock_reacquired", fault, f"{text}, expected within {within_s:g}s", **evidence)
    return passed("lock_reacquired", fault, text, **evidence)


def _backwards(watch: Sequence[Attempt]) -> list[tuple[Attempt, Attempt | None]]:
    """Each reply whose index is smaller than the one before, and the query after it."""
    found: list[tuple[Attempt, Attempt | None]] = []
    last = 0
    for number, attempt in enumerate(watch):
        if not attempt.index:
            continue
        if attempt.index < last:
            found.append((attempt, watch[number + 1] if number + 1 < len(watch) else None))
        last = attempt.index
    return found


def _most_in_a_second(attempts: Sequence[Attempt]) -> int:
    starts = [attempt.start_ns for attempt in attempts]
    return max((sum(1 for later in starts if start <= later < start + SECOND) for start in starts), default=0)
