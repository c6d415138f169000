"""Does Nomad start jobs, replace lost replicas, register services, and keep work away from a node that fails it?"""

from dataclasses import asdict

import numpy as np

from hashidrill import (
    Duration,
    Held,
    HypothesisInvalidError,
    Operations,
    Percent,
    Recording,
    hypothesis,
    measure,
    require,
)
from hashidrill.core.hypothesis import room
from hashidrill.core.judging.measure import seconds, share, when
from hashidrill.core.recording.reader import Bools
from hashidrill.products.nomad.loads.replicas import Start

_PLACED = "nomad.allocs_placed"
_JUST_NOW_S = 2.0
"""A problem this soon before the loads stopped proves nothing: it takes one or two looks to see a change."""
_WRONG = ("missing", "critical", "stale", "duplicate")
_BLIND_AT_MOST_S = 5.0
"""A look asks two products, each for 2 s at most, twice a second."""


@hypothesis
def cold_start_within(recording: Recording, *, load: str, limit: Duration) -> Held:
    """All replicas of a job run within `limit` of its registration, starting from none.

    The load has the kind `nomad.replicas`. The time runs from the client's request until Nomad's servers know that the
    last replica runs. If the recording has Nomad's own timestamps, they show the parts of the last replica's time.
    """
    ops = recording.operations(load, unknown="a replica runs once a look has seen it")
    first = measure.pick(ops, _at_the_start(ops))
    longest = float(measure.served_s(first).max())
    where, parts = _parts_of_the_last(first)
    figures = {"replicas": len(first), "started": int(first.ok.sum()), "longest_s": longest, **parts}
    require(
        longest <= limit,
        f"the cold start of {load} took {seconds(longest)}: {int(first.ok.sum())} of {len(first)} replicas came to run,"
        f" expected all within {limit}{where}",
        **figures,
    )
    return Held(f"{len(first)} replicas of {load} ran after {seconds(longest)} (within {limit}){where}", **figures)


@hypothesis(never=room(since="start"))
def replicas_return(
    recording: Recording, *, load: str, within: Duration, fault: str | None = None, lost_at_least: int = 0
) -> Held:
    """Each replica that goes away after a fault began is replaced in at most `within`.

    The load has the kind `nomad.replicas`. A replica is away once Nomad's servers no longer report it as running; the
    time until a silent node counts as lost is not included. INVALID if fewer than `lost_at_least` replicas went away,
    if looks at Nomad failed long enough that a replica may have been away for longer unseen, or if a replica that was
    away still had time left when the loads stopped.
    """
    ops = recording.operations(load, unknown="what was away stays away")
    if not measure.pick(ops, _at_the_start(ops)).ok.all():
        raise HypothesisInvalidError(f"not all replicas of {load} ever ran: the job was never complete")
    start_ns = min(measure.in_force(recording, window)[0] for window in measure.faults(recording, fault))
    span = start_ns, measure.loads_end_ns(recording)
    away = ops.between(*span)
    if len(away) < lost_at_least:
        raise HypothesisInvalidError(
            f"{len(away)} replicas of {load} went away, expected at least {lost_at_least}: too few of them ran where"
            " the fault was"
        )
    if not len(away):
        measure.nothing_longer_unseen(recording, load, span, longest_s=0.0, within=within)
        return Held(f"no replica of {load} went away", away=0, returned=0)
    took = measure.lasted_s(recording, away, within, f"replicas of {load}")
    longest = float(took.max())
    figures = {"away": len(away), "returned": int(away.ok.sum()), "longest_s": longest}
    late, slow = int(np.argmax(took)), int((took > float(within)).sum())
    require(
        longest <= within,
        f"{slow} of {len(away)} replicas of {load} were not back within {within}; the longest took"
        f" {seconds(longest)}: {away.keys[late]}, away from {when(int(away.intended_ns[late]))}",
        **figures,
    )
    measure.nothing_longer_unseen(recording, load, span, longest_s=longest, within=within)
    return Held(f"{len(away)} replicas of {load} were back after {seconds(longest)} (within {within})", **figures)


@hypothesis(never=room(since="start"))
def services_agree(
    recording: Recording, *, load: str, within: Duration, fault: str | None = None, wrong_at_least: int = 0
) -> Held:
    """From the start of a fault on, Consul's registrations are never wrong for longer than `within`.

    The load has the kind `nomad.services`. A registration is wrong if Consul lacks an instance that Nomad runs, calls
    it sick, has an entry without a running allocation, or has two entries of one allocation. INVALID if the two
    products could not be compared at the end, or if failed comparisons may hide a longer error. Also INVALID if a wrong
    registration still had time left when the loads stopped, or if fewer than `wrong_at_least` went wrong.
    """
    ops = recording.operations(load, unknown="what was wrong stays wrong")
    if not measure.pick(ops, _at_the_start(ops)).ok.all():
        raise HypothesisInvalidError(f"not all instances of {load} were ever registered: there was nothing to lose")
    start_ns = min(measure.in_force(recording, window)[0] for window in measure.faults(recording, fault))
    end_ns = measure.loads_end_ns(recording)
    _compared_at_the_end(recording, f"{load}.missing", end_ns)
    wrong = measure.settled(recording, ops.between(start_ns, end_ns), grace_s=_JUST_NOW_S)
    if len(wrong) < wrong_at_least:
        raise HypothesisInvalidError(
            f"{len(wrong)} registrations of {load} went wrong, expected at least {wrong_at_least}: the fault did too"
            " little"
        )
    kinds = {kind: sum(value == kind for value in wrong.values) for kind in _WRONG}
    if not len(wrong):
        measure.nothing_longer_unseen(recording, load, (start_ns, end_ns), longest_s=0.0, within=within)
        return Held(f"no registration of {load} went wrong", **kinds, longest_s=0.0)
    took = measure.lasted_s(recording, wrong, within, f"registrations of {load}")
    longest = float(took.max())
    figures = {**kinds, "righted": int(wrong.ok.sum()), "longest_s": longest}
    words = ", ".join(f"{number} {kind}" for kind, number in kinds.items() if number)
    late, slow = int(np.argmax(took)), int((took > float(within)).sum())
    require(
        longest <= within,
        f"{slow} of {len(wrong)} wrong registrations of {load} ({words}) were not right within {within}; the longest"
        f" took {seconds(longest)}: {wrong.keys[late]}, {wrong.values[late]} from"
        f" {when(int(wrong.intended_ns[late]))}",
        **figures,
    )
    measure.nothing_longer_unseen(recording, load, (start_ns, end_ns), longest_s=longest, within=within)
    return Held(
        f"{len(wrong)} registrations of {load} went wrong ({words}) and were right after {seconds(longest)} at most"
        f" (within {within})",
        **figures,
    )


@hypothesis
def black_hole_is_avoided(
    recording: Recording,
    *,
    share_below: Percent,
    fault: str = "nomad.node.black_hole",
    placed_at_least: int = 10,
    mitigation: str | None = None,
) -> Held:
    """The node that fails everything gets less than `share_below` of the allocations placed while the fault is in
    force.

    A node that fails its tasks at once is always empty, so a scheduler prefers it, as at Roblox in October 2021. The
    placements are those that Nomad's servers know. INVALID if fewer than `placed_at_least` allocations were placed in
    all. `mitigation` names a later step, by name or kind: then only placements while both steps are in force count. If
    the node got less than `share_below` before the mitigation, there was nothing to mitigate: INVALID.
    """
    worst, host, placed = -1.0, "", dict[str, float]()
    before = ""
    figures: dict[str, float] = {}
    for window in measure.faults(recording, fault):
        start_ns, end_ns = measure.in_full_force(recording, window)
        if mitigation is not None:
            began_ns, ended_ns = _mitigated(recording, mitigation, start_ns, end_ns)
            earlier = _share(_placed(recording, start_ns, began_ns), window.host, fault, placed_at_least)
            if earlier < share_below:
                raise HypothesisInvalidError(
                    f"{window.host} got {share(earlier)} of all allocations before {mitigation}, so there was nothing"
                    " to mitigate"
                )
            before, figures = f"; before {mitigation} it got {share(earlier)}", {"share_before": earlier}
            start_ns, end_ns = began_ns, ended_ns
        here = _placed(recording, start_ns, end_ns)
        got = _share(here, window.host, fault, placed_at_least)
        if got > worst:
            worst, host, placed = got, window.host, here
    words = ", ".join(f"{name}: {number:g}" for name, number in sorted(placed.items()))
    figures |= {"share": worst, "swallowed": placed.get(host, 0.0), "placed": sum(placed.values())}
    require(
        worst < share_below,
        f"{host}, which failed everything, got {share(worst)} of all allocations, expected less than {share_below}"
        f" ({words}){before}",
        **figures,
    )
    return Held(f"{host}, which failed everything, got {share(worst)} of all allocations ({words}){before}", **figures)


def _share(placed: dict[str, float], host: str, fault: str, at_least: int) -> float:
    """The share that the host got. Raises HypothesisInvalidError if too few allocations were placed."""
    total = sum(placed.values())
    if total < at_least:
        raise HypothesisInvalidError(
            f"{total:g} allocations were placed while {fault} was in force, expected at least {at_least}"
        )
    return placed.get(host, 0.0) / total


def _mitigated(recording: Recording, mitigation: str, start_ns: int, end_ns: int) -> tuple[int, int]:
    """The part of that time in which the mitigation was in force. Raises HypothesisInvalidError if there is none."""
    spans = [measure.in_full_force(recording, window) for window in measure.windows(recording, mitigation)]
    began_ns, ended_ns = max(start_ns, min(span[0] for span in spans)), min(end_ns, max(span[1] for span in spans))
    if began_ns >= ended_ns:
        raise HypothesisInvalidError(f"{mitigation} was never in force together with the fault: nothing was mitigated")
    return began_ns, ended_ns


_PARTS = {
    "again_s": "earlier tries and steps, before the evaluation that placed the replica",
    "evaluation_s": "its evaluation",
    "plan_s": "the plan, until the node had it",
    "start_s": "the start of its task on the node",
    "known_s": "until the servers knew",
}


def _parts_of_the_last(first: Operations) -> tuple[str, dict[str, float]]:
    """The parts of the last replica's time, as text and as figures.

    Empty for a recording without details: earlier versions did not write them.
    """
    starts = [Start.of(detail) if detail else None for detail in first.details] if first.details else []
    noted = {n: start for n, start in enumerate(starts) if start is not None and first.ok[n]}
    if not noted:
        return "", {}
    last = max(noted, key=lambda n: first.latency_s[n])
    parts = asdict(noted[last])
    parts["known_s"] = float(first.latency_s[last]) - sum(parts.values())
    words = ", ".join(f"{seconds(parts[part])} {words}" for part, words in _PARTS.items())
    return f"; of the last replica's time: {words}", {f"last_{part}": value for part, value in parts.items()}


def _at_the_start(ops: Operations) -> Bools:
    """The replicas that the job's registration should start. Raises HypothesisInvalidError if there are none."""
    if not len(ops):
        raise HypothesisInvalidError("the load recorded nothing: no replica was requested")
    return np.asarray(ops.intended_ns == ops.intended_ns.min(), np.bool_)


def _compared_at_the_end(recording: Recording, signal: str, end_ns: int) -> None:
    """Raises HypothesisInvalidError if the load could not see one of the two products when it was stopped."""
    series = recording.series(signal, unknown="what was wrong stays wrong")
    seen = series.t_ns[~np.isnan(series.value) & (series.t_ns <= end_ns)]
    blind_s = (end_ns - int(seen[-1])) / 1e9 if len(seen) else float("inf")
    if blind_s > _BLIND_AT_MOST_S:
        since = f"for the last {seconds(blind_s)}" if len(seen) else "at any time"
        raise HypothesisInvalidError(
            f"Nomad and Consul could not be compared {since} of the loads: what was wrong in that time is unknown"
        )


def _placed(recording: Recording, start_ns: int, end_ns: int) -> dict[str, float]:
    """The number of placements on each node in that time. Raises HypothesisInvalidError if nothing was sampled."""
    grown = {}
    for host in sorted(set(recording.series(_PLACED).between(start_ns, end_ns).host)):
        series = recording.series(_PLACED, host).known_between(start_ns, end_ns)
        counted = series.value[~np.isnan(series.value)]
        before = counted[0] if len(counted) and series.t_ns[0] <= start_ns else 0.0
        grown[host] = float(counted[-1] - before) if len(counted) else 0.0
    return grown
