"""Verdicts on a client: whether it retries, and how many operations together load the upstream.

Pure functions of runs, attempts and their times in ns; definitions and sources are in hashidrill.core.tap.catalogue.
`timing` judges the times of the retries.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from hashidrill.core.judging.verdict import Verdict, merge
from hashidrill.core.tap.attempts import SECOND, Attempt, DoubtError, Run, is_ambiguous
from hashidrill.core.tap.catalogue import AMPLIFICATION, MOST_RETRIES, RETRY_BUDGET, UNBOUNDED_ATTEMPTS


@dataclass(frozen=True)
class Judged:
    """One verdict on one fault. `text` is a line for people, `evidence` the figures behind it.

    `applies`: False if the client does nothing of the kind (no write, no blocking query, no retry to judge). Such a
    verdict is INVALID too, but does not affect the overall verdict.
    """

    name: str
    fault: str
    verdict: Verdict
    text: str
    evidence: dict[str, Any] = field(default_factory=dict)
    applies: bool = True
    fix: str = ""
    """The fix for this client, instead of the general fix in `core.tap.catalogue.FIXES`."""

    def as_json(self) -> dict[str, Any]:
        """The verdict as `hashidrill retry --json` prints it."""
        evidence = {"text": self.text, **self.evidence}
        if not self.applies:
            evidence["applies"] = False
        return {"name": self.name, "fault": self.fault, "verdict": self.word, "evidence": evidence}

    @property
    def word(self) -> str:
        """The verdict as printed: `n/a` if the check does not apply."""
        return self.verdict.value if self.applies else "n/a"


def passed(name: str, fault: str, text: str, /, **evidence: Any) -> Judged:
    return Judged(name, fault, Verdict.PASS, text, evidence)


def failed(name: str, fault: str, text: str, /, **evidence: Any) -> Judged:
    return Judged(name, fault, Verdict.FAIL, text, evidence)


def unknown(name: str, fault: str, text: str, /, **evidence: Any) -> Judged:
    """INVALID, because it could not be measured."""
    return Judged(name, fault, Verdict.INVALID, text, evidence)


def not_for_it(name: str, fault: str, text: str, /, **evidence: Any) -> Judged:
    """INVALID, because the question does not apply to the client."""
    return Judged(name, fault, Verdict.INVALID, text, evidence, applies=False)


def overall(judged: Sequence[Judged]) -> Verdict:
    """The worst verdict (FAIL, then INVALID, then PASS) of the checks that apply to the client."""
    return merge(one.verdict for one in judged if one.applies)


_RESETS_OF_FRESH = ("reset-after-fresh", "reset-before-fresh")
_DRIP_S = 0.5
"""The pause between two bytes of a `slow-body`."""
_PROMPT_S = 0.1
"""If an attempt ends this soon before its client was killed, the kill ended it."""


def present(fault: str, runs: Sequence[Run], *, success: float = 1.0) -> Judged:
    """Every operation with a failed attempt is retried, and at least this share of them (0 to 1) succeeds."""
    faulted = [run for run in runs if run.faulted]
    if not faulted:
        return unknown("present", fault, "no attempt failed this way", operations=len(runs))
    if is_ambiguous(fault) and (write := next((run for run in faulted if run.unkeyed), None)):
        sent = write.faulted[0]
        key = "a key that is not the same in each attempt" if write.changed_key else f"no {key_of(sent)}"
        text = f"{_named(sent)} has {key}: sending it again would be wrong (see idempotent_only)"
        return not_for_it("present", fault, text)
    single = [run for run in faulted if not run.retries]
    ok = sum(run.ok for run in faulted)
    evidence = {
        "operations": len(faulted),
        "attempts": max(1 + run.retries for run in faulted),
        "not_retried": len(single),
        "succeeded": ok,
        "caller": faulted[0].note,
    }
    if single:
        fooled = sum(run.ok for run in single)
        text = f"not tried again: {_of(len(single), faulted)}" + (f", {single[0].note}" if single[0].note else "")
        if fooled:
            text += "; the caller mistakes the failure for an answer"
        return failed("present", fault, text, **evidence)
    if ok < success * len(faulted):
        note = next(run.note for run in faulted if not run.ok)
        return failed("present", fault, f"tried again, but the caller did not succeed: {note}", **evidence)
    return passed("present", fault, f"tried again ({evidence['attempts']} attempts), and it succeeded", **evidence)


def transport_only(fault: str, reused: Sequence[Run], others: Mapping[str, Sequence[Run]]) -> Judged:
    """`reused`: runs with a reset of a reused connection; `others`, by fault: with a 503 or a reset of a fresh one."""
    tried = {name: [run for run in runs if run.faulted] for name, runs in others.items()}
    tried = {name: runs for name, runs in tried.items() if runs}
    own = sorted(name for name, runs in tried.items() if any(run.retries for run in runs))
    if own:
        return passed(
            "transport_only",
            fault,
            f"it retries by itself after {', '.join(own)}",
            transport_only=False,
            retried=own,
        )
    if "503" not in tried or tried.keys().isdisjoint(_RESETS_OF_FRESH):
        text = "the comparison needs a 503 and a reset of a fresh connection, but one of them was not given"
        return unknown("transport_only", fault, text)
    resets = [run for run in reused if run.faulted]
    if not resets:
        return not_for_it("transport_only", fault, "it never reused a connection, and does not retry otherwise")
    replays = max(run.retries for run in resets)
    if replays:
        return failed(
            "transport_only",
            fault,
            f"is transport_only: replayed after a reset on a reused connection, never after {', '.join(sorted(tried))}",
            transport_only=True,
            replays=replays,
        )
    return not_for_it(
        "transport_only", fault, "nothing is replayed, not even on a reused connection", transport_only=False
    )


def bounded(
    fault: str, runs: Sequence[Run], *, most_retries: int = MOST_RETRIES, deadline_s: float | None = None
) -> Judged:
    """Under a lasting fault, the client gave up within the retry limit and the deadline."""
    faulted = [run for run in runs if run.faulted]
    if not faulted:
        return unknown("bounded", fault, "no attempt failed this way")
    worst = max(faulted, key=lambda run: (not run.ended, run.retries))
    attempts, took_s = 1 + worst.retries, (worst.end_ns - worst.start_ns) / SECOND
    evidence = {"attempts": attempts, "most": 1 + most_retries, "took_s": round(took_s, 3), "caller": worst.note}
    if not worst.retries:
        if worst.ended:
            return not_for_it("bounded", fault, "it does not retry after this: there is nothing to bound", **evidence)
        return unknown("bounded", fault, "at the deadline it had neither tried again nor given up", **evidence)
    late = not worst.ended or (deadline_s is not None and took_s > deadline_s)
    if attempts >= UNBOUNDED_ATTEMPTS or late:
        return failed("bounded", fault, f"unbounded: {attempts} attempts in {took_s:.1f}s, {worst.note}", **evidence)
    if worst.retries > most_retries:
        text = f"{attempts} attempts, at most {1 + most_retries} expected (one and {most_retries} retries)"
        return failed("bounded", fault, text, **evidence)
    return passed("bounded", fault, f"gave up after {attempts} attempts, {took_s:.1f}s", **evidence)


def timeout_present(fault: str, runs: Sequence[Run], *, deadline_s: float) -> Judged:
    """The client itself timed out an attempt whose reply never ended."""
    faulted = [run for run in runs if run.faulted]
    if not faulted:
        return unknown("timeout_present", fault, "no attempt failed this way")
    waits = [_waited_s(run, run.faulted[0]) for run in faulted]
    if all(run.ok and len(run.attempts) == 1 for run in faulted) and max(map(_or_forever, waits)) < _DRIP_S:
        text = "it succeeded after the answer's headers, and never read the body: there was nothing to time out"
        return not_for_it("timeout_present", fault, text)
    still = [run for run, waited in zip(faulted, waits, strict=True) if waited is None or waited > deadline_s]
    if still:
        text = f"still {'waiting' if fault == 'hang' else 'reading, though no limit for one read was reached,'}"
        return failed("timeout_present", fault, f"{text} after {deadline_s:g}s", deadline_s=deadline_s)
    longest = max(waited for waited in waits if waited is not None)
    return passed(
        "timeout_present",
        fault,
        f"gave the attempt up after {longest:.1f}s (allowed: {deadline_s:g}s)",
        waited_s=round(longest, 3),
        deadline_s=deadline_s,
    )


def _or_forever(waited_s: float | None) -> float:
    return float("inf") if waited_s is None else waited_s


def idempotent_only(fault: str, runs: Sequence[Run]) -> Judged:
    """After a fault that leaves open whether a write was applied, a write without a key is not sent again."""
    faulted = [run for run in runs if run.faulted]
    if not faulted:
        return unknown("idempotent_only", fault, "no attempt failed this way")
    writes = [run for run in faulted if run.unkeyed]
    if not writes:
        _check_doubts(faulted)
        harmless = _named(faulted[0].faulted[0])
        return not_for_it("idempotent_only", fault, f"{harmless} may be sent twice: every write carried a key")
    over = [run for run in writes if _waited_s(run, run.faulted[0]) is not None]
    if not over:
        return not_for_it("idempotent_only", fault, "it was still waiting at the deadline: nothing to replay yet")
    replayed = [run for run in over if not run.doubt and run.retries]
    certain = [run for run in replayed if not _precondition_changed(run)]
    first = _named(over[0].faulted[0])
    evidence = {"writes": len(over), "replayed": len(replayed), "request": first}
    if certain:
        applied = sum(attempt.upstream for run in certain for attempt in run.at())
        how = "with another key each time" if any(run.changed_key for run in certain) else "without a key"
        text = f"{first} was sent {1 + max(run.retries for run in certain)} times {how}"
        if applied:
            text += f", and applied {applied} times"
        return failed("idempotent_only", fault, text, applied=applied, **evidence)
    _check_doubts(over)
    if replayed:
        old, new = replayed[0].changed_key or ("", "")
        text = f"{first} was sent with {old}, then with {new}: it is unknown whether the first was applied"
    elif not all(run.ended for run in over):
        text = f"{first} was sent once, but the client was still at work at the deadline"
    else:
        return passed("idempotent_only", fault, f"{first} was sent once", **evidence)
    return unknown("idempotent_only", fault, text, **evidence)


def _check_doubts(runs: Sequence[Run]) -> None:
    for run in runs:
        if run.doubt:
            raise DoubtError(run.doubt)


def _precondition_changed(run: Run) -> bool:
    """Whether only a precondition (like `cas`) changed, which the client may have read again."""
    changed = run.changed_key
    return changed is not None and all(changed) and not any(each.idempotency_key for each in run.at())


def key_of(attempt: Attempt) -> str:
    """The kind of key that would make it harmless to send this write twice."""
    return "idempotency key or cas" if attempt.bare_path.startswith("/v1/kv/") else "idempotency key"


def _named(attempt: Attempt) -> str:
    return f"{attempt.method} {attempt.path.partition('?')[0]}"


def _waited_s(run: Run, attempt: Attempt) -> float | None:
    """How long the client waited for a reply; None if it was still waiting when we stopped it."""
    if not run.ended and attempt.end_ns > run.end_ns - _PROMPT_S * SECOND:
        return None
    return (attempt.end_ns - attempt.start_ns) / SECOND


def _of(count: int, runs: Sequence[Run]) -> str:
    return "1 attempt" if len(runs) == 1 else f"{count} of {len(runs)} operations"


_SPINS_PER_S = 10


def watch_resets(fault: str, attempts: Sequence[Attempt]) -> Judged:
    """After the index went backwards, a watch starts again at index 0, and does not spin."""
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
        text = f"the index went back to {before.index}, but the next query used {after.asked_index}, not 0"
        return failed("watch_resets", fault, text, **evidence)
    first_ns = min(before.end_ns for before, _ in followed)
    busiest = max(_most_in_a_second([a for a in each if a.start_ns >= first_ns]) for each in watches.values())
    evidence["most_in_a_second"] = busiest
    if busiest > _SPINS_PER_S:
        return failed("watch_resets", fault, f"it spins: {busiest} queries in one second after the reset", **evidence)
    return passed("watch_resets", fault, "the query after the index went backwards began again at 0", **evidence)


def lock_reacquired(fault: str, attempts: Sequence[Attempt], *, lost_ns: int, within_s: float | None = None) -> Judged:
    """The client gets back, in time, a lock that it held when the fault began (`lost_ns`)."""
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


Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
_BREAKS_TO = 0.2
_FEWEST_OPERATIONS = 10
_NO_ATTEMPT = "no attempt was seen in that time"
_CONSTANT = 0.2
"""A load whose rate changes by less than this share is constant."""


def amplification(fault: str, attempts: int, operations: int, *, at_most: float = AMPLIFICATION) -> Judged:
    """Requests per operation; `at_most` is the product of the attempts that each layer may make."""
    if not attempts:
        return unknown("amplification", fault, _NO_ATTEMPT)
    if operations < _FEWEST_OPERATIONS:
        return unknown("amplification", fault, _too_few(operations))
    ratio = attempts / operations
    evidence = {"attempts": attempts, "operations": operations, "ratio": round(ratio, 3), "at_most": at_most}
    text = f"{ratio:.2f} requests per operation ({attempts} for {operations}), at most {at_most:g}"
    return (passed if ratio <= at_most else failed)("amplification", fault, text, **evidence)


def retry_budget(fault: str, attempts: int, operations: int, *, at_most: float = RETRY_BUDGET) -> Judged:
    """Retries as a share of all attempts, 0 to 1."""
    if not attempts:
        return unknown("retry_budget", fault, _NO_ATTEMPT)
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
    """The rate of attempts never exceeds the capacity in any window, provided that the operations' rate does not."""
    if not len(attempts_ns):
        return unknown("no_storm", fault, _NO_ATTEMPT)
    offered, demanded = _peak_per_s(attempts_ns, window_s), _peak_per_s(operations_ns, window_s)
    evidence = {
        "peak_attempts_per_s": round(offered, 2),
        "peak_operations_per_s": round(demanded, 2),
        "capacity_per_s": capacity_per_s,
    }
    if demanded > capacity_per_s:
        text = f"even without retries, {demanded:.1f} operations/s exceed the capacity of {capacity_per_s:g}/s"
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
    """After the trigger ends, goodput returns in time to a share of its earlier value, and stays there.

    `before_ns` and `after_ns` are the periods before and after the trigger, [start, end). Operations count at the
    moment at which they were due.
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
    """In the second half of the fault, the rate of attempts is at most a fifth of the rate of operations."""
    half = (lasted_ns[0] + lasted_ns[1]) // 2, lasted_ns[1]
    attempts = int(_inside(attempts_ns, half).sum())
    operations = int(_inside(operations_ns, half).sum())
    if operations < _FEWEST_OPERATIONS:
        return not_for_it("circuit_breaks", fault, f"{operations} operations in the second half of the fault: too few")
    if not _inside(attempts_ns, lasted_ns).any():
        return unknown("circuit_breaks", fault, _NO_ATTEMPT)  # a breaker opens because of failed attempts
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
