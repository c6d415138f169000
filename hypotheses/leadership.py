"""Who leads, and does leadership stay or move as it should?

All of these read the majority's view of the leader. It is sampled, so times are exact to one probe interval.
"""

from itertools import pairwise

import numpy as np

from hashidrill import measure
from hashidrill.errors import HypothesisInvalidError
from hashidrill.hypothesis import Held, hypothesis, require
from hashidrill.measure import SECOND, Reign, in_force, seconds, when
from hashidrill.recording.reader import FaultWindow, Recording
from hashidrill.units import Duration

_ELECTION = "no write is acknowledged during an election"
_SLACK_S = 0.5
"""A fault with `for: 20s` may be in force for 19.9s by its journal entries."""


@hypothesis
def leader_elected(recording: Recording, *, within: Duration = Duration("10s"), fault: str | None = None) -> Held:
    """After a fault removes the leader, a majority knows a leader again `within` that time.

    The time starts when the fault is applied, so it includes the time to notice that the leader is gone. Consul's own
    budget for an election is 2 to 4 s at `raft_multiplier: 1` and 10 to 20 s at the default of 5; the default of 10 s
    lies between the two. If the fault does not remove the leader, this is INVALID: see `leadership_leaves`.
    """
    took_s: dict[str, float] = {}
    for window in measure.faults(recording, fault):
        started_ns, ended_ns = in_force(recording, window)
        watched_ns = _watched_until(recording, window)
        seen = measure.reigns(recording, started_ns, watched_ns)
        lost = [reign for reign in seen[1:] if reign.start_ns < ended_ns]
        if seen[0].host and not lost:
            continue
        leaders = [reign for reign in seen[1:] if reign.host]
        name = _name(recording, window)
        if not leaders and (watched_ns - started_ns) / SECOND < within:
            raise HypothesisInvalidError(
                f"no leader was seen after {name}, but the run went on for only"
                f" {seconds((watched_ns - started_ns) / SECOND)} of the {within}: give the experiment a longer recovery"
            )
        took_s[name] = (leaders[0].start_ns - started_ns) / SECOND if leaders else float("inf")
        require(
            took_s[name] <= within,
            f"no leader was known to a majority within {within} of {name}: "
            + (f"{leaders[0].host} led after {seconds(took_s[name])}" if leaders else "none was ever seen")
            + f"\nleaders: {_story(recording, seen)}\n"
            "hint: an election needs a majority of servers that are up and reach each other",
            elected_after_s=took_s[name],
        )
    if not took_s:
        raise HypothesisInvalidError(
            f"{fault or 'no fault'}{' did not remove' if fault else ' removed'} the leader, so there was no election to"
            " judge; to expect that, use `leadership_stays`"
        )
    slowest = max(took_s, key=lambda name: took_s[name])
    return Held(
        f"a majority knew a leader {seconds(took_s[slowest])} after {slowest} (allowed: {within})",
        elected_after_s=took_s[slowest],
    )


@hypothesis
def leadership_leaves(recording: Recording, *, fault: str, within: Duration) -> Held:
    """Leadership moves away from the faulted leader `within` that time.

    Raft's heartbeats do not wait for the disk, so a leader with a slow disk keeps leading and every write waits for it
    (hashicorp/consul#22064, #3552; hashicorp/raft#503). This expectation catches that.
    """
    took_s: list[float] = []
    for window in measure.faults(recording, fault):
        started_ns, ended_ns = in_force(recording, window)
        seen = measure.reigns(recording, started_ns, ended_ns)
        if seen[0].host != window.host:
            continue
        name = _name(recording, window)
        others = [reign for reign in seen[1:] if reign.host not in {"", window.host}]
        length_s = (ended_ns - started_ns) / SECOND
        if not others and length_s < within - _SLACK_S:
            raise HypothesisInvalidError(
                f"{window.host} still led when {name} ended after {seconds(length_s)}, which is too short to tell"
                f" whether leadership leaves within {within}: let the fault last longer"
            )
        took_s.append((others[0].start_ns - started_ns) / SECOND if others else float("inf"))
        require(
            took_s[-1] <= within,
            f"leadership did not leave {window.host} within {within} of {name}: "
            + (f"it took {seconds(took_s[-1])}" if others else f"it still led after {seconds(length_s)}")
            + f"\nleaders: {_story(recording, seen)}\n"
            "hint: Raft does not replace a slow leader while its heartbeats arrive. Alert on raft.commit_time and move"
            " leadership by hand (`consul operator raft transfer-leader`)",
            left_after_s=took_s[-1],
        )
    if not took_s:
        raise HypothesisInvalidError(
            f"{fault} hit no host that led at that moment, so leadership had no host to leave: use `on: consul:leader`"
        )
    return Held(f"leadership left the faulted host {seconds(max(took_s))} after {fault} (allowed: {within})",
                left_after_s=max(took_s))  # fmt: skip


@hypothesis
def leadership_stays(recording: Recording, *, fault: str | None = None, grace: Duration = Duration("1s")) -> Held:
    """The same leader stays known from the start of the method until the loads stop.

    With `fault`, only while faults of that kind are in force. A gap shorter than `grace` without a known leader counts
    as one late answer of the probe, not as an election.
    """
    if fault is None:
        spans = [(measure.method(recording)[0], measure.loads_end_ns(recording))]
    else:
        spans = [in_force(recording, window) for window in measure.windows(recording, fault)]
    for start_ns, end_ns in spans:
        seen = measure.reigns(recording, start_ns, end_ns)
        if not any(reign.host for reign in seen):
            raise HypothesisInvalidError(f"the probe saw no leader at all from {when(recording, start_ns)} on")
        leader = next(reign.host for reign in seen if reign.host)
        wrong = [reign for reign in seen if reign.host != leader and (reign.host or _length_s(reign) >= grace)]
        require(
            not wrong,
            f"leadership did not stay with {leader}"
            + (f" while {fault} was in force" if fault else "")
            + f": it changed {len(wrong)} times, first {when(recording, wrong[0].start_ns) if wrong else ''}"
            + f"\nleaders: {_story(recording, seen)}\nhint: {_ELECTION}",
            changes=len(wrong),
        )
    return Held(f"{leader} stayed the leader", leader=leader, changes=0)


@hypothesis
def survives_leader_changes(
    recording: Recording, *, load: str, changes: int = 3, within: Duration = Duration("5s")
) -> Held:
    """Leadership changes at least `changes` times, and no gap without an acknowledgement is too long.

    Judged from the start of the method until the loads stop. A change means that a majority names another host as the
    leader. No stall, around the changes or elsewhere, is longer than `within`: an election at `raft_multiplier: 1`
    takes 2 to 4 s, a leadership transfer well under 1 s. Fewer changes than `changes` are INVALID: there was too little
    to survive.
    """
    start_ns, end_ns = measure.method(recording)[0], measure.loads_end_ns(recording)
    seen = measure.reigns(recording, start_ns, end_ns)
    named = [reign for reign in seen if reign.host]
    moved = [after for before, after in pairwise(named) if after.host != before.host]
    if len(moved) < changes:
        raise HypothesisInvalidError(
            f"leadership changed {len(moved)} times, expected at least {changes}: there was too little to survive\n"
            f"leaders: {_story(recording, seen)}"
        )
    ops = recording.operations(load).between(0, end_ns)
    acked_ns = np.sort(ops.end_ns[ops.ok & (ops.end_ns >= start_ns) & (ops.end_ns <= end_ns)])
    edges = np.concatenate(([start_ns], acked_ns, [end_ns]))
    longest = int(np.argmax(np.diff(edges)))
    stall_s = float(np.diff(edges)[longest]) / SECOND
    figures = {
        "leader_changes": len(moved), "longest_stall_s": stall_s, "acknowledged": len(acked_ns),
        "leaders": len({reign.host for reign in named}),
    }  # fmt: skip
    require(
        stall_s <= within,
        f"{load} stalled during {len(moved)} leader changes: no operation was acknowledged for {seconds(stall_s)}"
        f" ({when(recording, int(edges[longest]))}); allowed: {within}"
        f"\nleaders: {_story(recording, seen)}\nhint: {_ELECTION}",
        **figures,
    )
    return Held(
        f"{load} survived {len(moved)} leader changes; the longest stall was {seconds(stall_s)} (allowed: {within})",
        **figures,
    )


def _watched_until(recording: Recording, window: FaultWindow) -> int:
    """Until the next fault is applied, which may cause an election of its own, or the loads stop."""
    own_ns = in_force(recording, window)[0]
    later = [in_force(recording, other)[0] for other in measure.faults(recording)]
    return min([start for start in later if start > own_ns], default=measure.loads_end_ns(recording))


def _length_s(reign: Reign) -> float:
    return (reign.end_ns - reign.start_ns) / SECOND


def _name(recording: Recording, window: FaultWindow) -> str:
    return f"{measure.named(recording, window)} ({when(recording, in_force(recording, window)[0])})"


def _story(recording: Recording, seen: list[Reign]) -> str:
    """The first few reigns: `consul-1, then nobody 3.1s into the method, then consul-2 4.0s into the method`."""
    first, *rest = seen[:8]
    told = [first.host or "nobody", *(f"{each.host or 'nobody'} {when(recording, each.start_ns)}" for each in rest)]
    return ", then ".join(told) + (f", and {len(seen) - 8} more" if len(seen) > 8 else "")
