"""Dependencies between products: does a sick Consul make others fail, and can its sickness still be seen?"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from hashidrill import Duration, Held, HypothesisInvalidError, Operations, Recording, hypothesis, measure
from hashidrill.core.experiment.conditions import Condition
from hashidrill.core.hypothesis import require as _require
from hashidrill.core.hypothesis import room
from hashidrill.core.judging.measure import SECOND, in_force, seconds, settled, when

_BEFORE_S = 5.0
"""Seconds before a fault in which no load may be in breach yet, and telemetry must have been read."""
_STAYS = "what was wrong stays wrong"
"""The meaning of a failed look for a load that watches; `_no_gap` measures how long the load saw nothing."""
ROBLOX_NORMAL = Duration("300ms")
Loads = Annotated[list[str], Field(min_length=1)]


@hypothesis(never=room(window=False))
def cascade_within(
    recording: Recording,
    *,
    load: Loads,
    within: Duration,
    fault: str | None = None,
    p50_below: Duration = ROBLOX_NORMAL,
    window: Duration = Duration("2s"),
    spared: list[str] = [],  # noqa: B006 - never changed; YAML's default is []
    waits: list[str] = [],  # noqa: B006 - as above
    wait_below: Duration = Duration("2s"),
) -> Held:
    """Loads that fail with the fault meet their objective again at most `within` after it; others always meet theirs.

    A load is in breach while its p50 over a `window` is `p50_below` or more. For each load the verdict says when it was
    in breach, and when it was back for good. No load of `spared` may be in breach. INVALID if a load of `load` was
    never in breach, or if any load was in breach before the fault or was not measured all the time.

    `waits` are loads that fail as well, but whose operations are errors that last until they are corrected, as for
    `nomad.services`: such a load is in breach while one of its errors lasts `wait_below` or more.
    """
    start_ns = min(in_force(recording, one)[0] for one in measure.faults(recording, fault))
    ended_ns, end_ns = measure.faults_end_ns(recording, fault), measure.loads_end_ns(recording)
    if (end_ns - ended_ns) / SECOND < within:
        raise HypothesisInvalidError(
            f"the loads ran for only {seconds((end_ns - ended_ns) / SECOND)} after the fault, less than the {within}"
            " to judge: give the experiment a longer `recovery: {for: ...}`"
        )
    span = _Span(start_ns, ended_ns, end_ns, float(p50_below), float(window))
    fell = {name: _breach(recording, name, span) for name in load}
    fell |= {name: _waiting(recording, name, span, float(wait_below)) for name in waits}
    stood = {name: _breach(recording, name, span) for name in spared}
    figures = _per_load({**fell, **stood}) | _per_product(recording, fell)
    story = "; ".join(_told(recording, name, breach) for name, breach in {**fell, **stood}.items())
    for name, breach in stood.items():
        _require(
            breach is None,
            f"the cascade did not spare {name}, which was in breach (p50 of {p50_below} or more): {story}",
            **figures,
        )
    if unharmed := [name for name, breach in fell.items() if breach is None]:
        raise HypothesisInvalidError(
            f"{', '.join(unharmed)} kept the objective all the time: there was no cascade to judge; list loads that"
            " must withstand the fault under `spared`"
        )
    late = [name for name, breach in fell.items() if breach is not None and breach.back_s > within]
    _require(not late, f"{', '.join(late)} not back within {within} of the end of the fault: {story}", **figures)
    return Held(f"{story} (all back within {within})", **figures)


@dataclass(frozen=True)
class _Span:
    """When the fault began and ended and when the loads stopped, in ns; what counts as a breach, over which window."""

    start_ns: int
    ended_ns: int
    end_ns: int
    limit_s: float
    width_s: float


@dataclass(frozen=True)
class _Breach:
    """Seconds from the fault's start to the first breach, from its end to the last breach's end; the slowest time."""

    after_s: float
    back_s: float
    worst_s: float


def _breach(recording: Recording, load: str, span: _Span) -> _Breach | None:
    """None without a breach. Raises HypothesisInvalidError if the load cannot show one, or was in breach before."""
    first_ns = span.start_ns - int(_BEFORE_S * SECOND)
    ops = settled(recording, recording.operations(load).between(first_ns, span.end_ns), grace_s=span.width_s)
    _covers(load, ops, span)
    before = measure.percentile(measure.served_s(ops.between(first_ns, span.start_ns)), 50)
    if not before < span.limit_s:
        raise HypothesisInvalidError(
            f"{load} was in breach before the fault (p50 {seconds(before)} in the {_BEFORE_S:g}s before it), so the"
            " fault need not be the cause"
        )
    # the last window ends with the last operation that can be judged
    until_ns = min(span.end_ns, int(ops.intended_ns[-1]) + 1)
    p50 = measure.sliding(ops, span.start_ns, until_ns, width_s=span.width_s)
    measured = np.flatnonzero(~np.isnan(p50.value_s))
    slow = np.flatnonzero(p50.value_s[measured] >= span.limit_s)
    if not len(slow):
        return None
    last, width_ns = int(slow[-1]), int(span.width_s * SECOND)
    began_ns = int(p50.t_ns[measured[slow[0]]])
    first = ops.between(began_ns, began_ns + width_ns)
    began_ns = int(first.intended_ns[measure.served_s(first) >= span.limit_s][0])
    well_ns = p50.t_ns[measured[last + 1]] if last + 1 < len(measured) else None
    return _Breach(
        (began_ns - span.start_ns) / SECOND,
        float("inf") if well_ns is None else max(0.0, float(well_ns - span.ended_ns) / SECOND),
        float(np.nanmax(p50.value_s)),
    )


def _waiting(recording: Recording, load: str, span: _Span, limit_s: float) -> _Breach | None:
    """Like `_breach`, for a load whose operations are errors. The load's samples prove that it was measuring."""
    first_ns = span.start_ns - int(_BEFORE_S * SECOND)
    looked_ns = {span.end_ns}
    for signal in recording.signals:
        if signal.startswith(f"{load}.") and signal != f"{load}.level":
            series = recording.series(signal, unknown=_STAYS).between(first_ns, span.end_ns)
            looked_ns.update(series.t_ns[~np.isnan(series.value)].tolist())
    _no_gap(load, sorted(looked_ns), first_ns, span)
    # an error that began just before the loads stopped was not watched for long enough to count
    ops = settled(recording, recording.operations(load, unknown=_STAYS).between(first_ns, span.end_ns), grace_s=limit_s)
    took_s = measure.served_s(ops)
    slow = took_s >= limit_s
    if (slow & (ops.intended_ns < span.start_ns)).any():
        raise HypothesisInvalidError(f"{load} was in breach before the fault, so the fault need not be the cause")
    if not slow.any():
        return None
    lasted = bool(np.isinf(took_s[slow]).any())
    return _Breach(
        float(ops.intended_ns[slow].min() - span.start_ns) / SECOND,
        float("inf") if lasted else max(0.0, float(ops.end_ns[slow].max() - span.ended_ns) / SECOND),
        float(took_s.max()),
    )


def _covers(load: str, ops: Operations, span: _Span) -> None:
    """Raises HypothesisInvalidError if no operation of the load was due for longer than two windows."""
    first_ns = span.start_ns - int(_BEFORE_S * SECOND)
    _no_gap(load, [*ops.intended_ns.tolist(), span.end_ns], first_ns, span)


def _no_gap(load: str, moments_ns: Sequence[int], first_ns: int, span: _Span) -> None:
    edges = [first_ns, *moments_ns]
    gaps = np.diff(np.asarray(edges, np.int64))
    at = int(np.argmax(gaps))
    if gaps[at] / SECOND > 2 * span.width_s:
        raise HypothesisInvalidError(
            f"{load} does not cover the cascade: it measured nothing for {seconds(gaps[at] / SECOND)} from"
            f" {when(edges[at])} on; raise its rate, or the `window`"
        )


def _product(recording: Recording, load: str) -> str:
    spec = recording.experiment.load.get(load)
    return spec.kind.partition(".")[0] if spec else load


def _per_load(breaches: dict[str, _Breach | None]) -> dict[str, float]:
    figures = {}
    for name, breach in breaches.items():
        figures[f"{name}_breach_after_s"] = float("inf") if breach is None else breach.after_s
        if breach is not None:
            figures[f"{name}_back_after_s"] = breach.back_s
            figures[f"{name}_worst_s"] = breach.worst_s
    return figures


def _per_product(recording: Recording, breaches: dict[str, _Breach | None]) -> dict[str, float]:
    of: defaultdict[str, list[_Breach]] = defaultdict(list)
    for name, breach in breaches.items():
        if breach is not None:
            of[_product(recording, name)].append(breach)
    return {
        **{f"{product}_breach_after_s": min(each.after_s for each in all_) for product, all_ in of.items()},
        **{f"{product}_back_after_s": max(each.back_s for each in all_) for product, all_ in of.items()},
    }


def _told(recording: Recording, load: str, breach: _Breach | None) -> str:
    name = f"{_product(recording, load)} ({load})"
    if breach is None:
        return f"{name} never in breach"
    back = f"back {seconds(breach.back_s)} after its end" if np.isfinite(breach.back_s) else "never back"
    return f"{name} in breach {seconds(breach.after_s)} into the fault (at worst {seconds(breach.worst_s)}), {back}"


@hypothesis
def telemetry_survives(
    recording: Recording,
    *,
    load: str,
    gap_below: Duration,
    fault: str | None = None,
    targets_at_least: Annotated[int, Field(ge=1)] | None = None,
) -> Held:
    """While the fault is in force, the metrics of the servers that it makes sick can still be read.

    The load has the kind `consul.metrics.read`. For each server that it read in the 5 s before the fault, the longest
    time without metrics during the fault must stay under `gap_below`. With `targets_at_least` that many servers are
    enough: a server that the fault stops has no metrics to read. INVALID if nothing was read before the fault, or if
    such a gap could not have been seen because the looks were further apart or the fault was shorter. `contrast` shows
    what monitoring that depends on Consul misses.
    """
    ops = recording.operations(load)
    worst: dict[str, float] = {}
    for one in measure.faults(recording, fault):
        start_ns, end_ns = in_force(recording, one)
        if (end_ns - start_ns) / SECOND <= gap_below:
            raise HypothesisInvalidError(
                f"{measure.named(recording, one)} was in force for only {seconds((end_ns - start_ns) / SECOND)}: no gap"
                f" of {gap_below} could have been seen"
            )
        due = ops.between(start_ns, end_ns)
        unasked_s = _longest_s(due.intended_ns.tolist(), start_ns, end_ns)
        if unasked_s >= gap_below:
            raise HypothesisInvalidError(f"{load} did not look for {seconds(unasked_s)} while the fault was in force")
        earlier = ops.between(start_ns - int(_BEFORE_S * SECOND), start_ns)
        known = sorted({earlier.values[i] for i in np.flatnonzero(earlier.ok).tolist()})
        if len(known) < (targets_at_least or 1):
            raise HypothesisInvalidError(
                f"{load} read the metrics of {len(known)} servers in the {_BEFORE_S:g}s before the fault: there was too"
                " little telemetry to lose"
            )
        for target in known:
            gap_s = _longest_s(_read_ns(ops, target, start_ns, end_ns), start_ns, end_ns)
            worst[target] = max(worst.get(target, 0.0), gap_s)
    ranked = sorted(worst, key=lambda target: worst[target])
    wanted = ranked[: targets_at_least or len(ranked)]
    longest_s = worst[wanted[-1]]
    story = ", ".join(f"{target}: {seconds(worst[target])}" for target in ranked)
    figures = {"longest_gap_s": longest_s, "targets": len(ranked), **_outcomes(recording, ops, fault)}
    _require(
        longest_s < gap_below,
        f"{load} was blind: it read no metrics for {seconds(longest_s)} while the fault was in force, expected less"
        f" than {gap_below}\nlongest gap, by server: {story}\n{_first_error(recording, ops, fault)}",
        **figures,
    )
    return Held(f"{load} read metrics all the time, at most {seconds(longest_s)} apart ({story})", **figures)


def _read_ns(ops: Operations, target: str, start_ns: int, end_ns: int) -> list[int]:
    mine = np.asarray([value == target for value in ops.values], np.bool_) & ops.ok
    return sorted(t_ns for t_ns in ops.end_ns[mine].tolist() if start_ns <= t_ns < end_ns)


def _longest_s(moments_ns: Sequence[int], start_ns: int, end_ns: int) -> float:
    return float(np.diff(np.asarray([start_ns, *moments_ns, end_ns], np.int64)).max()) / SECOND


def _outcomes(recording: Recording, ops: Operations, fault: str | None) -> dict[str, int]:
    due = measure.during(recording, ops, fault)
    return {"looks": len(due), "failed": int((~due.ok).sum())}


def _first_error(recording: Recording, ops: Operations, fault: str | None) -> str:
    due = measure.during(recording, ops, fault)
    return next(
        (
            f"first failure: {when(int(due.intended_ns[index]))}: {due.errors[index] or due.outcome[index]}"
            for index in _indexes(~due.ok)
        ),
        "no look failed, but the data came late",
    )


def _indexes(mask: Iterable[bool]) -> list[int]:
    return [int(index) for index in np.flatnonzero(np.asarray(mask, np.bool_))]


@hypothesis(never=room())
def gate_opens(
    recording: Recording,
    *,
    fault: str,
    require: Annotated[list[Condition], Field(min_length=1)],
    within: Duration,
    before: str | None = None,
) -> Held:
    """After a step of a restart, the conditions for the next step are met in at most `within`, and stay met.

    The gate is open while all conditions of `require` hold; they compare signals of probes, or of loads, with numbers.
    INVALID unless the gate was closed while the fault (the step that kept agents down) was in force. `before` names the
    next step: the gate must have opened before that step's agents were started again.
    """
    began_ns = min(in_force(recording, one)[0] for one in measure.faults(recording, fault))
    ended_ns, end_ns = measure.faults_end_ns(recording, fault), measure.loads_end_ns(recording)
    opened_s: dict[str, float] = {}
    closed = False
    for condition in require:
        signal = f"{condition.source}.{condition.what}"
        series = recording.series(signal, "", unknown="the gate is shut")
        down, after = series.between(began_ns, ended_ns), series.between(ended_ns, end_ns)
        if not len(down) or not len(after):
            raise HypothesisInvalidError(f"{signal} was not sampled while {fault} was in force and after it")
        closed = closed or not all(condition.holds(float(value), unknown=True) for value in down.value)
        held = np.asarray([condition.holds(float(value), unknown=False) for value in after.value], np.bool_)
        shut = np.flatnonzero(~held)
        first = int(shut[-1]) + 1 if len(shut) else 0
        opened_s[str(condition)] = float(after.t_ns[first] - ended_ns) / SECOND if first < len(held) else float("inf")
    if not closed:
        raise HypothesisInvalidError(f"the gate was open all the time {fault} was in force: it proves nothing")
    longest_s = max(opened_s.values())
    if np.isinf(longest_s):
        measure.watched(recording, ended_ns, within, f"the gate after {fault} was not open")
    story = ", ".join(f"{text}: {seconds(after_s)}" for text, after_s in opened_s.items())
    figures = {"opened_after_s": longest_s}
    _require(
        longest_s <= within,
        f"the gate after {fault} was not open for good within {within} of its end: {story}",
        **figures,
    )
    if before is not None:
        started_ns = min(in_force(recording, one)[1] for one in measure.faults(recording, before))
        spare_s = (started_ns - ended_ns) / SECOND - longest_s
        figures["open_before_next_s"] = spare_s
        _require(
            spare_s >= 0,
            f"the agents of the next step, {before}, were started {seconds(-spare_s)} before the gate after {fault} was"
            f" open: {story}",
            **figures,
        )
    return Held(f"the gate after {fault} was open after {seconds(longest_s)} (within {within}): {story}", **figures)
