"""Do the clients retry, and do they retry well? The verdicts of `hashidrill retry`, over a recording.

A client's operations are recorded as the load of the same name, its attempts as the load `CLIENT.attempts`. If an
attempt failed without a fault from the tap, its status is its fault: `503`, or `no-reply`.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hashidrill import (
    Broken,
    Duration,
    Held,
    HypothesisInvalidError,
    Operations,
    Percent,
    Rate,
    Recording,
    hypothesis,
    measure,
)
from hashidrill.clients.retry import timing, verdicts
from hashidrill.clients.retry.verdicts import Judged
from hashidrill.core.hypothesis import room
from hashidrill.core.judging.verdict import Verdict
from hashidrill.core.loads.clients import SUFFIX, from_operations
from hashidrill.core.protocols.abc import Reason
from hashidrill.core.recording.reader import Bools, Int64s
from hashidrill.core.tap.attempts import Attempt, Run, is_ambiguous
from hashidrill.core.tap.catalogue import AMPLIFICATION, DEADLINE_S, JITTER_CLIENTS, MOST_RETRIES

_ANY = "any fault"
_LEAST_FINISHED = 10


@hypothesis
def present(recording: Recording, *, client: str, fault: str | None = None, success: Percent = Percent("99%")) -> Held:
    """Every operation with a failed attempt is retried, and at least `success` of them succeed.

    `fault` is a fault of the tap, or a status such as `503`. Source: RFC 9110 section 9.2.2.
    """
    return _answer(verdicts.present(fault or _ANY, _faulted(recording, client, fault), success=success))


@hypothesis
def transport_only(recording: Recording, *, client: str) -> Held:
    """The client retries itself. An HTTP library that replays requests on reused connections is not enough.

    A replay, such as that of Go's net/http, does not count as a retry.
    """
    runs = _runs(recording, client)
    reset = [run for run in runs if run.faulted and run.faulted[0].fault.endswith("-reused")]
    names = {run.faulted[0].fault for run in runs if run.faulted} - {"reset-before-reused", "reset-after-reused"}
    others = {name: [run for run in runs if run.faulted and run.faulted[0].fault == name] for name in names}
    return _answer(verdicts.transport_only("reset-after-reused", reset, others))


@hypothesis
def bounded(
    recording: Recording,
    *,
    client: str,
    fault: str | None = None,
    retries: int = MOST_RETRIES,
    deadline: Duration = Duration(DEADLINE_S),
) -> Held:
    """No operation exceeds the retry limit or the deadline."""
    runs = _faulted(recording, client, fault)
    return _answer(verdicts.bounded(fault or _ANY, runs, most_retries=retries, deadline_s=deadline))


@hypothesis
def timeout_present(
    recording: Recording, *, client: str, fault: str = "hang", deadline: Duration = Duration(DEADLINE_S)
) -> Held:
    """The client times out a hanging attempt itself, within the deadline."""
    return _answer(verdicts.timeout_present(fault, _faulted(recording, client, fault), deadline_s=deadline))


@hypothesis
def backoff(recording: Recording, *, client: str, fault: str | None = None) -> Held:
    """The gaps between the attempts of an operation grow."""
    return _answer(timing.backoff(fault or _ANY, _faulted(recording, client, fault)))


@hypothesis
def exponential(recording: Recording, *, client: str, fault: str | None = None) -> Held:
    """The gaps between attempts grow by a factor, up to a cap."""
    return _answer(timing.exponential(fault or _ANY, _faulted(recording, client, fault)))


@hypothesis
def jitter(
    recording: Recording, *, client: str, reference: str, fault: str | None = None, clients: int = JITTER_CLIENTS
) -> Held:
    """The client's retry gaps vary more than those of `reference`, a client without jitter."""
    mine, theirs = _faulted(recording, client, fault), _faulted(recording, reference, fault)
    return _answer(timing.jitter(fault or _ANY, mine, theirs, clients=clients))


@hypothesis
def retry_after_honoured(recording: Recording, *, client: str) -> Held:
    """No attempt comes before the previous answer's Retry-After has passed (RFC 9110, 10.2.3).

    Needs 3 operations with a Retry-After on their first attempt, and 12 that got a 429 or 503 without one, because a
    client that always waits that long does not honour the header.
    """
    runs = [run for run in _runs(recording, client) if run.faulted]
    told = [run for run in runs if any(each.retry_after_s is not None for each in run.attempts)]
    refused = [run for run in runs if run.at()[0].status in {429, 503}]
    others = [run for run in refused if all(each.retry_after_s is None for each in run.attempts)]
    return _answer(timing.retry_after_honoured("Retry-After", told, others))


@hypothesis
def idempotent_only(recording: Recording, *, client: str, fault: str | None = None) -> Held:
    """The client does not resend a POST, PATCH or plain PUT that may already have been applied."""
    runs = [run for run in _faulted(recording, client, fault) if _leaves_open(run.faulted[0])]
    return _answer(verdicts.idempotent_only(fault or _ANY, runs))


@hypothesis
def amplification(
    recording: Recording, *, client: str, at_most: float = AMPLIFICATION, fault: str | None = None
) -> Held:
    """Attempts per operation stay below a limit during a fault.

    If several layers retry, the bound is the product of their attempts. `fault` is a kind of fault in the experiment.
    Source: Google's SRE book, Handling Overload.
    """
    attempts, operations = _during(recording, client, fault)
    return _answer(verdicts.amplification(fault or _ANY, len(attempts), len(operations), at_most=at_most))


@hypothesis
def retry_budget(
    recording: Recording, *, client: str, at_most: Percent = Percent("20%"), fault: str | None = None
) -> Held:
    """Retries stay below a share of all attempts during a fault, like Finagle's RetryBudget."""
    attempts, operations = _during(recording, client, fault)
    return _answer(verdicts.retry_budget(fault or _ANY, len(attempts), len(operations), at_most=at_most))


@hypothesis
def progress_stays(
    recording: Recording, *, client: str, finished: Percent = Percent("50%"), fault: str | None = None
) -> Held:
    """A client that stays busy during a fault finishes its work, and does not begin it again and again.

    In tfs-2013, old accounts did full syncs over and over. Operations that succeed while a fault is in force must,
    per second, be at least the share `finished` of those before the first fault. INVALID if the client sent less than
    half as many attempts per second as before, or if fewer than ten operations succeeded before.
    """
    operations, attempts = _reported(recording, client), _load(recording, client + SUFFIX)
    spans = [measure.in_force(recording, one) for one in measure.windows(recording, fault)]
    earlier = [(int(operations.intended_ns[0]), min(start_ns for start_ns, _ in spans))] if len(operations) else []
    done_ns = operations.end_ns[operations.ok]
    if _inside(done_ns, earlier).sum() < _LEAST_FINISHED:
        raise HypothesisInvalidError(
            f"fewer than {_LEAST_FINISHED} operations of {client} succeeded before the fault: make `steady_state.for`"
            " longer"
        )
    done = [_per_s(done_ns, each) for each in (earlier, spans)]
    sent = [_per_s(attempts.start_ns, each) for each in (earlier, spans)]
    figures = {
        "finished_per_s": done[1],
        "finished_per_s_before": done[0],
        "sent_per_s": sent[1],
        "sent_per_s_before": sent[0],
    }
    told = f"{sent[1]:.1f} attempts/s ({sent[0]:.1f} before), {done[1]:.2f} finished/s ({done[0]:.2f} before)"
    if sent[1] < sent[0] / 2:
        raise HypothesisInvalidError(f"{client} was not busy while the fault was in force: {told}")
    if done[1] < finished * done[0]:
        raise Broken(f"{client} was busy without progress: {told}; expected at least {finished} of before", **figures)
    return Held(f"{client} was busy and finished its work: {told}", **figures)


@hypothesis
def no_storm(recording: Recording, *, client: str, capacity: Rate, window: Duration = Duration("1s")) -> Held:
    """Retries never push attempts above the upstream's capacity, in any window."""
    attempts, operations = _load(recording, client + SUFFIX), _reported(recording, client)
    return _answer(
        verdicts.no_storm(_ANY, attempts.start_ns, operations.intended_ns, capacity_per_s=capacity, window_s=window)
    )


@hypothesis(never=room())
def recovers(
    recording: Recording,
    *,
    client: str,
    within: Duration,
    goodput: Percent = Percent("90%"),
    window: Duration = Duration("1s"),
    fault: str | None = None,
) -> Held:
    """Goodput recovers at most `within` after the fault, at constant load: no metastable failure.

    `goodput` is a share of the goodput per second before the fault. Source: Bronson et al., HotOS 2021.
    """
    operations = _load(recording, client)
    spans = [measure.in_force(recording, one) for one in measure.windows(recording, fault)]
    before_ns = int(operations.intended_ns[0]), min(start for start, _ in spans)
    after_ns = measure.faults_end_ns(recording, fault), measure.loads_end_ns(recording)
    judged = verdicts.recovers(
        fault or _ANY,
        operations.intended_ns,
        operations.ok,
        before_ns=before_ns,
        after_ns=after_ns,
        within_s=within,
        goodput=goodput,
        window_s=window,
    )
    return _answer(judged)


@hypothesis
def circuit_breaks(recording: Recording, *, client: str, fault: str | None = None) -> Held:
    """In the second half of a fault the client sends at most one attempt per five operations."""
    attempts, operations = _load(recording, client + SUFFIX), _reported(recording, client)
    spans = [measure.in_force(recording, one) for one in measure.windows(recording, fault)]
    lasted_ns = min(start for start, _ in spans), max(end for _, end in spans)
    judged = verdicts.circuit_breaks(fault or _ANY, attempts.start_ns, operations.intended_ns, lasted_ns=lasted_ns)
    return _answer(judged)


@hypothesis
def watch_resets(recording: Recording, *, client: str) -> Held:
    """When the index goes backwards, a blocking query restarts at 0 and does not spin."""
    return _answer(verdicts.watch_resets(_ANY, _attempts(recording, client)))


@hypothesis(never=room(since="start"))
def lock_reacquired(
    recording: Recording, *, client: str, within: Duration | None = None, fault: str | None = None
) -> Held:
    """A client that held a lock when the fault began gets it back."""
    lost_ns = min(measure.in_force(recording, one)[0] for one in measure.windows(recording, fault))
    attempts = _attempts(recording, client)
    return _answer(verdicts.lock_reacquired(fault or _ANY, attempts, lost_ns=lost_ns, within_s=within))


def _answer(judged: Judged) -> Held:
    if judged.verdict is Verdict.INVALID:
        raise HypothesisInvalidError(judged.text)
    if judged.verdict is Verdict.FAIL:
        raise Broken(judged.text, **judged.evidence)
    return Held(judged.text, **judged.evidence)


def _load(recording: Recording, name: str) -> Operations:
    return recording.operations(name)


def _reported(recording: Recording, client: str) -> Operations:
    """The client's operations. Raises HypothesisInvalidError if the client went silent: it may not retry, or may hang
    in an attempt that it does not report.
    """
    operations = _load(recording, client)
    missing = sum(reason == Reason.UNREPORTED for reason in operations.reasons)
    if missing:
        first = operations.reasons.index(Reason.UNREPORTED)
        raise HypothesisInvalidError(
            f"client {client} went silent {measure.when(int(operations.intended_ns[first]))}:"
            f" {operations.errors[first]}; about {missing} operations are missing, so nothing shows how it retries"
        )
    return operations


def _attempts(recording: Recording, client: str) -> list[Attempt]:
    """All attempts. If an attempt failed without an injected fault, its fault is its status, or `no-reply`."""
    return [_named(each) for each in from_operations(_load(recording, client + SUFFIX))]


def _named(attempt: Attempt) -> Attempt:
    if attempt.fault or (0 < attempt.status < 500 and attempt.status != 429):
        return attempt
    return replace(attempt, fault=str(attempt.status) if attempt.status else "no-reply")


def _leaves_open(attempt: Attempt) -> bool:
    return is_ambiguous(attempt.fault) or attempt.fault == "no-reply"


def _runs(recording: Recording, client: str) -> list[Run]:
    """Every operation with its attempts, matched by the operation that an attempt names, otherwise by time.

    Operations that the end of the loads cut off are left out, because their continuation is unknown. Raises
    HypothesisInvalidError when operations overlap and attempts do not name theirs. An operation without faults, of a
    usual length, shows what the client sends normally.
    """
    operations, attempts = _reported(recording, client), _attempts(recording, client)
    by_key = {key: index for index, key in enumerate(operations.keys)}
    cut_off = (operations.outcome == "unknown") & (operations.end_ns >= measure.loads_end_ns(recording))
    mine: list[list[Attempt]] = [[] for _ in range(len(operations))]
    for attempt in attempts:
        index = by_key.get(attempt.operation) if attempt.operation else _by_time(client, operations, attempt)
        if index is not None:
            mine[index].append(attempt)
    every = [tuple(sorted(each, key=lambda attempt: attempt.start_ns)) for each in mine]
    clean = sorted(
        (each for index, each in enumerate(every) if operations.ok[index] and not any(one.fault for one in each)),
        key=len,
    )
    plain = clean[len(clean) // 2] if clean else ()
    return [
        Run(
            each,
            bool(operations.ok[index]),
            operations.outcome[index] != "unknown",
            int(operations.start_ns[index]),
            int(operations.end_ns[index]),
            plain,
            note=operations.errors[index],
        )
        for index, each in enumerate(every)
        if not cut_off[index]
    ]


def _by_time(client: str, operations: Operations, attempt: Attempt) -> int | None:
    at_ns = attempt.start_ns
    inside = np.flatnonzero((operations.start_ns <= at_ns) & (operations.end_ns >= at_ns))
    if len(inside) > 1:
        raise HypothesisInvalidError(
            f"operations of {client} overlap and its attempts do not name theirs: run one operation at a time"
        )
    return int(inside[0]) if len(inside) else None


def _inside(at_ns: Int64s, spans: Sequence[tuple[int, int]]) -> Bools:
    inside = np.zeros(len(at_ns), np.bool_)
    for start_ns, end_ns in spans:
        inside |= (at_ns >= start_ns) & (at_ns < end_ns)
    return inside


def _per_s(at_ns: Int64s, spans: Sequence[tuple[int, int]]) -> float:
    """Moments per second inside the spans; where spans overlap, each nanosecond counts once."""
    lasted_ns, until_ns = 0, 0
    for start_ns, end_ns in sorted(spans):
        lasted_ns += max(0, end_ns - max(start_ns, until_ns))
        until_ns = max(until_ns, end_ns)
    return float(_inside(at_ns, spans).sum()) * measure.SECOND / max(lasted_ns, 1)


def _faulted(recording: Recording, client: str, fault: str | None) -> Sequence[Run]:
    runs = [run for run in _runs(recording, client) if run.faulted]
    picked = [run for run in runs if fault is None or run.faulted[0].fault == fault]
    if not picked:
        known = sorted({run.faulted[0].fault for run in runs})
        what = f"no attempt of {client} failed" + (f" with {fault}" if fault else "")
        raise HypothesisInvalidError(f"{what}; the failures in this run: {', '.join(known) or 'none'}")
    return picked


def _during(recording: Recording, client: str, fault: str | None) -> tuple[Operations, Operations]:
    """The attempts made, and the operations due, while a fault was in force."""
    operations = measure.during(recording, _reported(recording, client), fault)
    attempts = _load(recording, client + SUFFIX)
    spans = [measure.in_force(recording, one) for one in measure.windows(recording, fault)]
    return measure.pick(attempts, _inside(attempts.start_ns, spans)), operations
