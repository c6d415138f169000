"""Is a lock of a `consul.lock` load ever held twice, and what is shed first under overload?"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from hashidrill import Held, HypothesisInvalidError, Operations, Percent, Recording, hypothesis, measure, require
from hashidrill.core.hypothesis import needs_fault
from hashidrill.core.judging.checkable import spans_in_force
from hashidrill.core.judging.measure import SECOND, seconds, share, when
from hashidrill.products.consul.loads.locks import SESSION_GONE, Action

_SHOWN = 5
_FEWEST = 10
_SHED = (429, 503)
_SERVED = 0.99
"""If this share of renewals succeeded, renewals were served well, whatever happened to the claims."""


@dataclass(frozen=True)
class Act:
    """One operation of a contender, with its details."""

    action: Action
    key: str
    start_ns: int
    end_ns: int
    outcome: str
    status: int
    reason: str


@dataclass(frozen=True)
class Belief:
    """A span of time in which a session had every right to believe that it holds a lock."""

    key: str
    action: Action
    start_ns: int
    end_ns: int
    ran_out: bool
    """Whether the span ended because no renewal was acknowledged in time: lock and session were not given up."""


@hypothesis(needs_valid_run=False, timed=False, never=needs_fault)
def no_two_lock_holders(recording: Recording, *, load: str) -> Held:
    """No two sessions hold the same lock at the same time.

    A contender may rely on its lock from the moment its claim is acknowledged until it sends a release, learns that its
    session is gone, or one TTL has passed since it *sent* its last acknowledged renewal: Consul does not expire a
    session before that. So if two such spans overlap, the lock was really held twice. The hypothesis is also broken if
    one LockIndex, the fencing token of a lock, appears with two sessions.

    INVALID if no lock was held while a fault was in force. Judged even in an INVALID run.
    """
    acts = _acts(recording.operations(load), load)
    asked = defaultdict(set)
    for act in acts:
        if act.action.op in {"claim", "refused"} and act.outcome == "ok":
            asked[act.key].add(act.action.session)
    if not any(len(sessions) > 1 for sessions in asked.values()):
        raise HypothesisInvalidError(f"no two sessions claimed the same lock of {load}, so no lock could be held twice")
    held = beliefs(acts)
    if not held:
        raise HypothesisInvalidError(f"no claim of {load} was acknowledged, so no holder had a lock")
    twice = list(_overlaps(held))
    reused = _reused_tokens(acts)
    in_force = [
        belief
        for belief in held
        if any(belief.start_ns < end_ns and belief.end_ns > start_ns for start_ns, end_ns in spans_in_force(recording))
    ]
    gone = {act.action.session for act in acts if act.reason == SESSION_GONE}
    figures = {
        "locks": len({belief.key for belief in held}),
        "holders": len({belief.action.session for belief in held}),
        "held_in_force": len(in_force),
        "held_twice": len(twice),
        "held_twice_s": sum(_length_s(*pair) for pair in twice),
        "longest_held_twice_s": max((_length_s(*pair) for pair in twice), default=0.0),
        "fencing_tokens_reused": len(reused),
        "leases_ran_out": sum(belief.ran_out for belief in held),
        "sessions_gone": len(gone),
        "shed": sum(act.status in _SHED for act in acts),
        "timed_out": sum(act.outcome == "unknown" and not act.status for act in acts),
    }
    require(not twice and not reused, _why(load, twice, reused), **figures)
    if not in_force:
        raise HypothesisInvalidError(
            f"no lock of {load} was held while a fault was in force, so the fault could not break a lock"
        )
    return Held(
        f"no lock of {load} was held twice: {figures['holders']} sessions held {figures['locks']} locks,"
        f" {len(in_force)} holds overlapped a fault;"
        f" {figures['leases_ran_out']} leases ran out, {figures['sessions_gone']} sessions were gone,"
        f" {figures['shed']} requests were shed",
        **figures,
    )


@hypothesis(never=needs_fault)
def renewals_before_claims(
    recording: Recording, *, load: str, fault: str | None = None, by: Percent = Percent("10%")
) -> Held:
    """Under overload, lock holders keep renewing: new claims are rejected before renewals.

    A failed renewal costs its holder the lock, and all other contenders an election: the fix in juju-2021 was "shed
    claims first". While the fault is in force, the share of renewals that succeed must be `by` points larger than the
    share of claims that are answered ("another session holds it" is an answer), or at least 99 %. A renewal whose
    session was already gone counts as failed. INVALID if no request was shed or timed out.
    """
    ops = measure.during(recording, recording.operations(load), fault)
    acts = _acts(ops, load)
    renewals = [act.outcome == "ok" for act in acts if act.action.op == "renew"]
    claims = [_answered(act) for act in acts if act.action.op in {"claim", "refused"}]
    if min(len(renewals), len(claims)) < _FEWEST:
        raise HypothesisInvalidError(
            f"only {len(renewals)} renewals and {len(claims)} claims of {load} were due while {fault or 'a fault'} was"
            f" in force; the comparison needs at least {_FEWEST} of each"
        )
    if all(renewals) and all(claims):
        raise HypothesisInvalidError(f"every renewal and claim of {load} was served, so there was no overload")
    renewed, claimed = sum(renewals) / len(renewals), sum(claims) / len(claims)
    figures = {
        "renewals": len(renewals),
        "renewals_served_share": renewed,
        "claims": len(claims),
        "claims_served_share": claimed,
        "shed": sum(act.status in _SHED for act in acts),
    }
    compared = f"{share(renewed)} of {len(renewals)} renewals against {share(claimed)} of {len(claims)} claims"
    require(
        renewed >= min(claimed + by, _SERVED),
        f"under overload renewals of {load} were not served better than claims: {compared} (expected {by} more)\n"
        "hint: Consul's rate limits count a renewal like any other write. Leave headroom for renewals, claim less"
        " often, and do not retry claims",
        **figures,
    )
    return Held(f"renewals of {load} were served better than claims: {compared}", **figures)


def beliefs(acts: Sequence[Act]) -> list[Belief]:
    """Every span of time in which a session may rely on a lock."""
    by_session: defaultdict[str, list[Act]] = defaultdict(list)
    for act in acts:
        if act.action.session and act.action.op != "fence":
            by_session[act.action.session].append(act)
    # every session of a load has the same TTL
    ttl_ns = round(max((act.action.ttl_s for act in acts), default=0.0) * SECOND)
    # after the load has ended, no contender uses a lock any more
    last_ns = max((act.end_ns for act in acts), default=0)
    return [belief for own in by_session.values() for belief in _of_session(own, ttl_ns, last_ns)]


def _of_session(acts: Sequence[Act], ttl_ns: int, last_ns: int) -> Iterator[Belief]:
    lease = _merged(
        (act.end_ns, act.start_ns + ttl_ns)
        for act in acts
        if act.outcome == "ok" and act.action.op in {"session", "renew"}
    )
    gone_ns = min((act.end_ns for act in acts if act.reason == SESSION_GONE), default=last_ns)
    claimed: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for act in acts:
        if act.action.op == "claim" and act.outcome == "ok":
            # a release sent while the claim was in flight may reach Consul after the claim
            stops = [other.start_ns for other in acts if _gives_up(other, act.key) and other.start_ns >= act.start_ns]
            claimed[act.key].append((act.end_ns, min([gone_ns, last_ns, *stops])))
    for key, times in claimed.items():
        for start_ns, stop_ns in _merged(times):
            for from_ns, until_ns in lease:
                begin_ns, end_ns = max(start_ns, from_ns), min(stop_ns, until_ns)
                if begin_ns < end_ns:
                    yield Belief(key, acts[0].action, begin_ns, end_ns, ran_out=until_ns < stop_ns)


def _gives_up(act: Act, key: str) -> bool:
    return act.action.op == "end" or (act.action.op == "release" and act.key == key)


def _merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(span for span in spans if span[0] < span[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _overlaps(held: Sequence[Belief]) -> Iterator[tuple[Belief, Belief]]:
    by_key: defaultdict[str, list[Belief]] = defaultdict(list)
    for belief in held:
        by_key[belief.key].append(belief)
    for beliefs_of_key in by_key.values():
        open_ones: list[Belief] = []
        for belief in sorted(beliefs_of_key, key=lambda each: each.start_ns):
            open_ones = [other for other in open_ones if other.end_ns > belief.start_ns]
            yield from ((other, belief) for other in open_ones if other.action.session != belief.action.session)
            open_ones.append(belief)


def _reused_tokens(acts: Sequence[Act]) -> dict[tuple[str, int], set[str]]:
    """(lock, LockIndex) -> the sessions that held the lock with that index, if there are several."""
    seen: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
    for act in acts:
        if act.action.op == "fence" and act.outcome == "ok" and act.action.session:
            seen[act.key, act.action.lock_index].add(act.action.session)
    return {token: sessions for token, sessions in seen.items() if len(sessions) > 1}


def _acts(ops: Operations, load: str) -> list[Act]:
    try:
        actions = [Action.of(detail) for detail in ops.details]
    except ValueError as error:
        raise HypothesisInvalidError(f"{load} is not a consul.lock load: {error}") from None
    starts, ends, statuses = ops.start_ns.tolist(), ops.end_ns.tolist(), ops.status.tolist()
    columns = zip(actions, ops.keys, starts, ends, ops.outcome.tolist(), statuses, ops.reasons, strict=True)
    return [Act(*row) for row in columns]


def _answered(act: Act) -> bool:
    """A claim whose session was gone was answered too: it was not shed."""
    return act.outcome == "ok" or act.reason == SESSION_GONE


def _length_s(one: Belief, other: Belief) -> float:
    return (min(one.end_ns, other.end_ns) - max(one.start_ns, other.start_ns)) / SECOND


def _why(load: str, twice: Sequence[tuple[Belief, Belief]], reused: dict[tuple[str, int], set[str]]) -> str:
    lines = []
    if twice:
        locks = sorted({one.key for one, _ in twice})
        lines.append(
            f"locks of {load} held by two sessions at once: {len(locks)}, in {len(twice)} overlaps:"
            f" {', '.join(locks[:10])}"
        )
        lines += [
            f"  {one.key}: {one.action.holder} and {other.action.holder} both held it"
            f" for {seconds(_length_s(one, other))} ({when(other.start_ns)})"
            for one, other in twice[:_SHOWN]
        ]
    if reused:
        lines.append(f"{len(reused)} fencing tokens of {load} appeared with two sessions")
        lines += [
            f"  {key}: LockIndex {index}: {', '.join(sorted(sessions))}"
            for (key, index), sessions in list(reused.items())[:_SHOWN]
        ]
    lines.append("hint: look for destroyed sessions, a lock-delay of 0s, or a restored snapshot")
    return "\n".join(lines)
