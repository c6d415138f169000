"""Verdicts on whether a client tries again: present, transport_only, bounded, timeout_present, idempotent_only.

Pure functions of runs (hashidrill.core.tap.attempts); definitions and sources are in hashidrill.core.tap.catalogue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hashidrill.clients.retry.judged import Judged, failed, not_for_it, passed, unknown
from hashidrill.core.tap.attempts import SECOND, Attempt, DoubtError, Run, is_ambiguous
from hashidrill.core.tap.catalogue import MOST_RETRIES, UNBOUNDED_ATTEMPTS

_RESETS_OF_FRESH = ("reset-after-fresh", "reset-before-fresh")
_PROMPT_S = 0.1
"""An attempt that ends so close to the moment its client was killed was ended by that."""


def present(fault: str, runs: Sequence[Run], *, success: float = 1.0) -> Judged:
    """Every operation with a failed attempt is retried, and at least this share of them (0 to 1) succeeds."""
    faulted = [run for run in runs if run.faulted]
    if not faulted:
        return unknown("present", fault, "no attempt failed this way", operations=len(runs))
    if is_ambiguous(fault) and (write := next((run for run in faulted if run.unkeyed), None)):
        key = "a key that is not the same in each attempt" if write.changed_key else "no key"
        text = f"{_named(write.faulted[0])} has {key}: sending it again would be wrong (see idempotent_only)"
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
            text += "; the caller takes the failure for an answer"
        return failed("present", fault, text, **evidence)
    if ok < success * len(faulted):
        note = next(run.note for run in faulted if not run.ok)
        return failed("present", fault, f"tried again, but the caller did not succeed: {note}", **evidence)
    return passed("present", fault, f"tried again ({evidence['attempts']} attempts), and it succeeded", **evidence)


def transport_only(fault: str, reused: Sequence[Run], others: Mapping[str, Sequence[Run]]) -> Judged:
    """`reused` had a reset on a reused connection; `others`, by fault, had a 503 or a reset on a fresh one."""
    tried = {name: [run for run in runs if run.faulted] for name, runs in others.items()}
    tried = {name: runs for name, runs in tried.items() if runs}
    own = sorted(name for name, runs in tried.items() if any(run.retries for run in runs))
    if own:
        return passed(
            "transport_only", fault, f"it retries by itself: after {', '.join(own)}", transport_only=False, retried=own
        )
    if "503" not in tried or tried.keys().isdisjoint(_RESETS_OF_FRESH):
        text = "it takes a 503 and a reset on a fresh connection to compare with; not both were given"
        return unknown("transport_only", fault, text)
    resets = [run for run in reused if run.faulted]
    if not resets:
        return not_for_it("transport_only", fault, "it never used a connection twice, and retries nothing else")
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
        "transport_only", fault, "nothing is replayed, on a reused connection neither", transport_only=False
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
            return not_for_it("bounded", fault, "it does not retry on this: there is nothing to bound", **evidence)
        return unknown("bounded", fault, "it had not tried again at the deadline, nor given up", **evidence)
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


def idempotent_only(fault: str, runs: Sequence[Run]) -> Judged:
    """After a fault that leaves open whether a write was applied, it is not sent again without a key."""
    faulted = [run for run in runs if run.faulted]
    if not faulted:
        return unknown("idempotent_only", fault, "no attempt failed this way")
    writes = [run for run in faulted if run.unkeyed]
    if not writes:
        _check_doubts(faulted)
        harmless = _named(faulted[0].faulted[0])
        return not_for_it("idempotent_only", fault, f"{harmless} may be sent twice: no write without a key was sent")
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
        text = f"{first} was sent with {old}, then with {new}: nothing says whether the first one was applied"
    elif not all(run.ended for run in over):
        text = f"{first} was sent once, but the client was still at work at the deadline"
    else:
        return passed("idempotent_only", fault, f"{first} was sent once", **evidence)
    return unknown("idempotent_only", fault, text, **evidence)


def _check_doubts(runs: Sequence[Run]) -> None:
    """Raises DoubtError."""
    for run in runs:
        if run.doubt:
            raise DoubtError(run.doubt)


def _precondition_changed(run: Run) -> bool:
    """A precondition may have been read again. An idempotency key that changes is none."""
    changed = run.changed_key
    return changed is not None and all(changed) and not any(each.idempotency_key for each in run.at())


def _named(attempt: Attempt) -> str:
    return f"{attempt.method} {attempt.path.partition('?')[0]}"


def _waited_s(run: Run, attempt: Attempt) -> float | None:
    """How long the client waited for a reply; None when it was still waiting as it was stopped."""
    if not run.ended and attempt.end_ns > run.end_ns - _PROMPT_S * SECOND:
        return None
    return (attempt.end_ns - attempt.start_ns) / SECOND


def _of(count: int, runs: Sequence[Run]) -> str:
    return "1 attempt" if len(runs) == 1 else f"{count} of {len(runs)} operations"
