"""Who leads, and does leadership stay or move as it should?

All hypotheses here read the majority's view of the leader, and the Raft term in which the leader says that it leads. A
new term is an election, even if the same server wins it. Both views are sampled: times are exact to one probe interval.
The leader is that of the product that the fault hits: Nomad's under a fault on an agent of Nomad, otherwise Consul's.
"""

import numpy as np

from hashidrill import Duration, FaultWindow, Held, HypothesisInvalidError, Recording, hypothesis, measure, require
from hashidrill.core.hypothesis import room
from hashidrill.core.judging.measure import SECOND, Reign, in_force, seconds, when
from hashidrill.core.protocols.service import SILENT_S

_ELECTION = "no write is acknowledged during an election"
_BLIP_S = 1.0
"""A shorter time without a known leader counts as one late answer of the probe, if leader and term stay the same."""
_LOOKS_NS = 2 * SECOND
"""A server is asked for its term once a second, and answers within a second."""
_SLACK_S = 0.5
"""A fault with `for: 20s` may have been in force for 19.9s according to its journal entries."""


@hypothesis(never=room(since="start"))
def leader_elected(recording: Recording, *, within: Duration = Duration("10s"), fault: str | None = None) -> Held:
    """After a fault removes the leader, a majority knows a leader again in at most `within`.

    The time starts at the loss: when the leader last said that it leads, or when the fault began if the leader has said
    nothing since. So it includes the time to notice the loss. Each loss while a fault is in force counts. The same
    server may win again: a new term is an election. Under a fault on Nomad's agents the leader is Nomad's. Consul's own
    budget is 2 to 4 s at `raft_multiplier: 1`, and 10 to 20 s at the default of 5. INVALID if the fault does not remove
    the leader (see `leadership_leaves`), or if the leader's term is unknown and nothing else shows whether there was an
    election, or when the leader was lost.
    """
    took_s: dict[str, float] = {}
    for window in measure.faults(recording, fault):
        started_ns, ended_ns = in_force(recording, window)
        watched_ns = _watched_until(recording, window)
        signal = measure.leader_signal(window)
        seen = _without_blips(measure.reigns(recording, started_ns, watched_ns, signal))
        lost = measure.absences(recording, seen, started_ns, ended_ns, signal)
        if not lost:
            _same_term(recording, seen[0].host, started_ns, min(ended_ns, watched_ns), signal)
            continue
        name = _name(recording, window)
        for each in lost:
            after_s = each.took_s(within, watched_ns)
            took_s[name] = max(after_s, took_s.get(name, 0.0))
            require(
                after_s <= within,
                f"no leader was known to a majority within {within} of its loss under {name}: "
                + (f"{each.host} led after {seconds(after_s)}" if each.host else _none_again(seen[-1]))
                + f"\nleaders: {_story(seen)}\n"
                "hint: an election needs a majority of servers that are up and reach each other",
                elected_after_s=after_s,
            )
    if not took_s:
        raise HypothesisInvalidError(
            f"{fault or 'no fault'}{' did not remove' if fault else ' removed'} the leader, so there was no election to"
            " judge; to expect that, use `leadership_stays`"
        )
    slowest = max(took_s, key=lambda name: took_s[name])
    return Held(
        f"a majority knew a leader {seconds(took_s[slowest])} after its loss under {slowest} (allowed: {within})",
        elected_after_s=took_s[slowest],
    )


@hypothesis(never=room(until="fault"))
def leadership_leaves(recording: Recording, *, fault: str, within: Duration) -> Held:
    """Leadership moves away from the faulted leader at most `within` after the fault is applied.

    Raft's heartbeats do not wait for the disk, so a leader with a slow disk keeps leading and every write waits for it
    (hashicorp/consul#22064, #3552; hashicorp/raft#503).
    """
    took_s: list[float] = []
    for window in measure.faults(recording, fault):
        started_ns, ended_ns = in_force(recording, window)
        seen = measure.reigns(recording, started_ns, ended_ns, measure.leader_signal(window))
        if seen[0].host != window.host:
            continue
        name = _name(recording, window)
        others = [reign for reign in seen[1:] if reign.host not in {"", window.host}]
        applied_ns, _ = measure.in_full_force(recording, window)
        length_s = (ended_ns - applied_ns) / SECOND
        if not others and length_s < within - _SLACK_S:
            raise HypothesisInvalidError(
                f"{window.host} still led when {name} ended after {seconds(length_s)}, which is too short to tell"
                f" whether leadership leaves within {within}: let the fault last longer"
            )
        took_s.append(max(0.0, (others[0].start_ns - applied_ns) / SECOND) if others else float("inf"))
        require(
            took_s[-1] <= within,
            f"leadership did not leave {window.host} within {within} of {name}: "
            + (f"it took {seconds(took_s[-1])}" if others else f"it still led after {seconds(length_s)}")
            + f"\nleaders: {_story(seen)}\n"
            f"hint: {_why_it_stays(recording, window)}",
            left_after_s=took_s[-1],
        )
    if not took_s:
        raise HypothesisInvalidError(
            f"{fault} hit no host that led at that moment, so leadership had no host to leave: use `on: consul:leader`"
            " or `on: nomad:leader`"
        )
    return Held(
        f"leadership left the faulted host {seconds(max(took_s))} after {fault} (allowed: {within})",
        left_after_s=max(took_s),
    )


@hypothesis
def leadership_stays(recording: Recording, *, fault: str | None = None, grace: Duration = Duration("1s")) -> Held:
    """The same leader stays known, in the same term, from the start of the method until the loads stop.

    With `fault`, this is judged only while faults of that kind are in force. A gap shorter than `grace` without a known
    leader counts as one late answer of the probe, if the leader is in the same term before and after it. A new term is
    an election, whichever server wins it. INVALID if the leader did not report its term.
    """
    if fault is None:
        spans = [(measure.method(recording)[0], measure.loads_end_ns(recording), "raft.leader")]
    else:
        windows = measure.windows(recording, fault)
        spans = [(*in_force(recording, window), measure.leader_signal(window)) for window in windows]
    for start_ns, end_ns, signal in spans:
        seen = measure.reigns(recording, start_ns, end_ns, signal)
        if not any(reign.host for reign in seen):
            raise HypothesisInvalidError(f"the probe saw no leader at all from {when(start_ns)} on")
        leader = next(reign.host for reign in seen if reign.host)
        wrong = [reign for reign in seen if reign.host != leader and (reign.host or _length_s(reign) >= grace)]
        wrong += [after for before, after in _elections(seen) if after.host == leader == before.host]
        wrong.sort(key=lambda reign: reign.start_ns)
        require(
            not wrong,
            f"leadership did not stay with {leader}"
            + (f" while {fault} was in force" if fault else "")
            + f": it changed {len(wrong)} times, first {when(wrong[0].start_ns) if wrong else ''}"
            + f"\nleaders: {_story(seen)}\nhint: {_ELECTION}",
            changes=len(wrong),
        )
        term = _same_term(recording, leader, start_ns, end_ns, signal)
    return Held(f"{leader} stayed the leader, in term {term:g}", leader=leader, changes=0)


@hypothesis
def survives_leader_changes(
    recording: Recording,
    *,
    load: str,
    changes: int = 3,
    within: Duration = Duration("5s"),
    served_within: Duration | None = None,
) -> Held:
    """Leadership changes at least `changes` times, and no gap without an acknowledgement is too long.

    Judged from the start of the method until the loads stop. A change means that a majority names another host as the
    leader, or the same one in a new term. No stall, around the changes or elsewhere, is longer than `within`: an
    election at `raft_multiplier: 1` takes 2 to 4 s, a leadership transfer well under 1 s. With `served_within`, slower
    acknowledgements do not end a stall. INVALID if there were fewer changes; `changes: 0` requires no change.
    """
    start_ns, end_ns = measure.method(recording)[0], measure.loads_end_ns(recording)
    seen = measure.reigns(recording, start_ns, end_ns)
    named = [reign for reign in seen if reign.host]
    moved = _elections(seen)
    if len(moved) < changes:
        raise HypothesisInvalidError(
            f"leadership changed {len(moved)} times, expected at least {changes}: there was too little to survive\n"
            f"leaders: {_story(seen)}"
        )
    ops = recording.operations(load).between(0, end_ns)
    served = ops.ok if served_within is None else ops.ok & (ops.latency_s <= served_within)
    acked_ns = np.sort(ops.end_ns[served & (ops.end_ns >= start_ns) & (ops.end_ns <= end_ns)])
    edges = np.concatenate(([start_ns], acked_ns, [end_ns]))
    longest = int(np.argmax(np.diff(edges)))
    stall_s = float(np.diff(edges)[longest]) / SECOND
    figures = {
        "leader_changes": len(moved),
        "longest_stall_s": stall_s,
        "acknowledged": len(acked_ns),
        "leaders": len({reign.host for reign in named}),
    }
    hint = measure.clue(recording, int(edges[longest]), int(edges[longest + 1]))
    quickly = "" if served_within is None else f" within {served_within}"
    require(
        stall_s <= within,
        f"{load} stalled during {len(moved)} leader changes: no operation was acknowledged{quickly} for"
        f" {seconds(stall_s)} ({when(int(edges[longest]))}); allowed: {within}"
        f"\nleaders: {_story(seen)}\n{hint}",
        **figures,
    )
    return Held(
        f"{load} survived {len(moved)} leader changes; the longest stall was {seconds(stall_s)} (allowed: {within})",
        **figures,
    )


def _why_it_stays(recording: Recording, window: FaultWindow) -> str:
    said, slow = measure.slowed(recording, *in_force(recording, window), window.host)
    if slow is None:
        return said
    if not slow:
        return f"{said} on {window.host}: the fault did not slow this leader down"
    return (
        f"{said} on {window.host}. Raft does not replace a slow leader while its heartbeats arrive: alert on"
        " raft.commit_time and move leadership by hand (`consul operator raft transfer-leader`)"
    )


def _elections(seen: list[Reign]) -> list[tuple[Reign, Reign]]:
    """The reigns before and after each election that is certain: another host leads, or the same one in a new term."""
    found: list[tuple[Reign, Reign]] = []
    before: Reign | None = None
    for reign in seen:
        if before is None or reign.host != before.host or before.term is None:
            found += [(before, reign)] if before and reign.host and reign.host != before.host else []
            before = reign if reign.host else before
        elif reign.term is not None:
            found += [(before, reign)] if reign.term != before.term else []
            before = reign
    return found


def _without_blips(seen: list[Reign]) -> list[Reign]:
    """The reigns, without short gaps: times without a known leader between two reigns of one leader in one term."""
    kept = [seen[0]]
    for reign in seen[1:]:
        back = len(kept) > 1 and not kept[-1].host and _length_s(kept[-1]) < _BLIP_S
        if back and kept[-2].term is not None and (kept[-2].host, kept[-2].term) == (reign.host, reign.term):
            kept.pop()
        else:
            kept.append(reign)
    return kept


def _same_term(recording: Recording, leader: str, start_ns: int, end_ns: int, signal: str) -> float:
    """The term in which the leader led all the time. Raises HypothesisInvalidError if it is unknown at either end.

    Terms only grow: if the first and the last are the same, all between them are.
    """
    said = measure.terms_led(recording, leader, start_ns, end_ns + int(SILENT_S * SECOND), signal)
    late = [term for t_ns, term in said if t_ns >= end_ns][:1]
    lately = [term for t_ns, term in said if end_ns - _LOOKS_NS <= t_ns < end_ns]
    if not said or said[0][0] > start_ns or said[0][1] not in {*late, *lately}:
        raise HypothesisInvalidError(
            f"{leader} did not say in which term it leads before {when(start_ns)} and after"
            f" {when(end_ns)}, so it is unknown whether it was elected again"
        )
    return said[0][1]


def _watched_until(recording: Recording, window: FaultWindow) -> int:
    """The end of the span: when the next fault is applied, which may cause an election, or when the loads stop."""
    own_ns = in_force(recording, window)[0]
    later = [in_force(recording, other)[0] for other in measure.faults(recording)]
    return min([start for start in later if start > own_ns], default=measure.loads_end_ns(recording))


def _none_again(last: Reign) -> str:
    return f"the others named {last.host} until the end, but it led no longer" if last.host else "no leader was seen"


def _length_s(reign: Reign) -> float:
    return (reign.end_ns - reign.start_ns) / SECOND


def _name(recording: Recording, window: FaultWindow) -> str:
    return f"{measure.named(recording, window)} ({when(in_force(recording, window)[0])})"


def _story(seen: list[Reign]) -> str:
    """The first few reigns: `consul-1, then nobody 13.1s into the run, then consul-1 again (term 3) 14.0s ...`."""
    told, led = [seen[0].host or "nobody"], seen[0]
    for reign in seen[1:8]:
        again = f" again (term {reign.term:g})" if measure.elected_again(led, reign) else ""
        told.append(f"{reign.host or 'nobody'}{again} {when(reign.start_ns)}")
        led = reign if reign.host else led
    return ", then ".join(told) + (f", and {len(seen) - 8} more" if len(seen) > 8 else "")
