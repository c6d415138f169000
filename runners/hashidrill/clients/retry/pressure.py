"""Verdicts on what many operations do to the upstream: amplification, retry_budget, no_storm, recovers, circuit_breaks.

Pure functions of the times of operations and attempts, in ns; definitions and sources are in
hashidrill.core.tap.catalogue.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hashidrill.clients.retry.judged import Judged, failed, not_for_it, passed, unknown
from hashidrill.core.tap.attempts import SECOND
from hashidrill.core.tap.catalogue import AMPLIFICATION, RETRY_BUDGET

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
_BREAKS_TO = 0.2
_FEWEST_OPERATIONS = 10
_CONSTANT = 0.2
"""A load whose rate changes by less than this share is constant."""


def amplification(fault: str, attempts: int, operations: int, *, at_most: float = AMPLIFICATION) -> Judged:
    """Requests over operations; `at_most` is the product of the attempts that each layer may make."""
    if operations < _FEWEST_OPERATIONS:
        return unknown("amplification", fault, _too_few(operations))
    ratio = attempts / operations
    evidence = {"attempts": attempts, "operations": operations, "ratio": round(ratio, 3), "at_most": at_most}
    text = f"{ratio:.2f} requests per operation ({attempts} for {operations}), at most {at_most:g}"
    return (passed if ratio <= at_most else failed)("amplification", fault, text, **evidence)


def retry_budget(fault: str, attempts: int, operations: int, *, at_most: float = RETRY_BUDGET) -> Judged:
    """Retries over all attempts, 0 to 1."""
    if not attempts:
        return unknown("retry_budget", fault, "no attempt was made in that time")
    if operations < _FEWEST_OPERATIONS:
        return unknown("retry_budget", fault, _too_few(operations))
    retries = max(0, attempts - operations)
    ratio = retries / attempts
    evidence = {"attempts": attempts, "retries": retries, "share": round(ratio, 4), "at_most": at_most}
    text = f"{ratio:.1%} of {attempts} attempts were retries, at most {at_most:.0%}"
    return (passed if ratio <= at_most else failed)("retry_budget", fault, text, **evidence)


def no_storm(
    fault: str, attempts_ns: Int64s, operations_ns: Int64s, *, capacity_per_s: float, window_s: float = 1.0
) -> Judged:
    """Attempts never come faster than the capacity, in any window, as long as operations alone do not."""
    if not len(attempts_ns):
        return unknown("no_storm", fault, "no attempt was made in that time")
    offered, demanded = _peak_per_s(attempts_ns, window_s), _peak_per_s(operations_ns, window_s)
    evidence = {
        "peak_attempts_per_s": round(offered, 2),
        "peak_operations_per_s": round(demanded, 2),
        "capacity_per_s": capacity_per_s,
    }
    if demanded > capacity_per_s:
        text = f"operations alone come at {demanded:.1f}/s, over the capacity of {capacity_per_s:g}/s: no retry needed"
        return unknown("no_storm", fault, text, **evidence)
    text = f"attempts came at {offered:.1f}/s at most, operations at {demanded:.1f}/s; capacity {capacity_per_s:g}/s"
    return (passed if offered <= capacity_per_s else failed)("no_storm", fault, text, **evidence)


def recovers(
    fault: str,
    intended_ns: Int64s,
    ok: Bools,
    *,
    before_ns: tuple[int, int],
    after_ns: tuple[int, int],
    within_s: float,
    goodput: float = 0.9,
    window_s: float = 1.0,
) -> Judged:
    """Goodput comes back to a share of what it was before the trigger, in time after its end, and stays.

    `before_ns` and `after_ns` are the times before the trigger came and after it went, [start, end). Operations belong
    to the moment that they were meant to start.
    """
    before, after = _inside(intended_ns, before_ns), _inside(intended_ns, after_ns)
    if before.sum() < _FEWEST_OPERATIONS or after.sum() < _FEWEST_OPERATIONS:
        return unknown("recovers", fault, "too few operations before or after the trigger")
    rate, later = (float(mask.sum()) / ((b - a) / SECOND) for mask, (a, b) in ((before, before_ns), (after, after_ns)))
    normal = float(ok[before].sum()) / ((before_ns[1] - before_ns[0]) / SECOND)
    evidence: dict[str, float | str] = {
        "rate_before_per_s": round(rate, 2),
        "rate_after_per_s": round(later, 2),
        "goodput_before_per_s": round(normal, 2),
        "goodput_share": goodput,
    }
    if abs(later - rate) > _CONSTANT * rate:
        text = f"the load was not constant: {rate:.1f}/s before the trigger, {later:.1f}/s after it"
        return unknown("recovers", fault, text, **evidence)
    if not normal:
        return unknown("recovers", fault, "nothing succeeded before the trigger", **evidence)
    if (after_ns[1] - after_ns[0]) / SECOND < within_s + window_s:
        return unknown("recovers", fault, f"less than {within_s + window_s:g}s were measured after it", **evidence)
    edges = np.arange(after_ns[0], after_ns[1] + 1, int(window_s * SECOND))
    good = np.histogram(intended_ns[after & ok], edges)[0] / window_s
    low = np.flatnonzero(good < goodput * normal)
    back_s = 0.0 if not len(low) else float(low[-1] + 1) * window_s
    at_end = float(good[-1])
    evidence |= {
        "back_after_s": back_s if len(low) < len(good) or not len(low) else "never",
        "goodput_at_end_per_s": round(at_end, 2),
    }
    if len(low) and low[-1] == len(good) - 1:
        text = (
            f"goodput never recovered: {at_end:.1f}/s at the end, {normal:.1f}/s before, although the trigger is gone"
        )
        return failed("recovers", fault, text, **evidence)
    text = f"goodput recovered {back_s:g}s after the trigger was gone (allowed: {within_s:g}s)"
    return (passed if back_s <= within_s else failed)("recovers", fault, text, **evidence)


def circuit_breaks(fault: str, attempts_ns: Int64s, operations_ns: Int64s, *, lasted_ns: tuple[int, int]) -> Judged:
    """In the second half of the fault, attempts come at a fifth of the rate of operations, or less."""
    half = (lasted_ns[0] + lasted_ns[1]) // 2, lasted_ns[1]
    attempts = int(_inside(attempts_ns, half).sum())
    operations = int(_inside(operations_ns, half).sum())
    if operations < _FEWEST_OPERATIONS:
        return not_for_it("circuit_breaks", fault, f"{operations} operations in the second half of the fault: too few")
    ratio = attempts / operations
    evidence = {"attempts": attempts, "operations": operations, "ratio": round(ratio, 3), "at_most": _BREAKS_TO}
    text = f"{ratio:.2f} requests per operation in the second half of the fault, at most {_BREAKS_TO:g}"
    return (passed if ratio <= _BREAKS_TO else failed)("circuit_breaks", fault, text, **evidence)


def _too_few(operations: int) -> str:
    return f"{operations} operations were due in that time, too few to judge (needed: {_FEWEST_OPERATIONS})"


def _inside(t_ns: Int64s, span_ns: tuple[int, int]) -> Bools:
    return np.asarray((t_ns >= span_ns[0]) & (t_ns < span_ns[1]), np.bool_)


def _peak_per_s(t_ns: Int64s, window_s: float) -> float:
    """The largest number of events in any window of that width, per second."""
    if not len(t_ns):
        return 0.0
    times = np.sort(t_ns)
    ends = np.searchsorted(times, times + int(window_s * SECOND))
    return float(np.max(ends - np.arange(len(times)))) / window_s
