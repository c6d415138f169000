"""Conditions over a whole run, each judged at its worst time, for a steady state and for the search for a limit."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hashidrill.core.errors import HypothesisInvalidError
from hashidrill.core.experiment.conditions import LOAD_STATISTICS, Condition
from hashidrill.core.hypothesis import Held, require
from hashidrill.core.judging import measure
from hashidrill.core.recording.reader import Recording

_OF_THE_LEADER = "raft"
_SHORTEST_S = 1.0
"""If a fault was in force for less (a transfer of leadership), nothing can be measured during it."""


def all_hold(recording: Recording, until: Sequence[Condition]) -> Held:
    worst = {condition: at_worst(recording, condition) for condition in until}
    text = "; ".join(
        f"{condition} (measured {condition.figure(one.value)} {one.when})" for condition, one in worst.items()
    )
    require(all(condition.holds(one.value, unknown=True) for condition, one in worst.items()), text)
    unknown = [f"{c}: nothing was measured {one.when}" for c, one in worst.items() if np.isnan(one.value)]
    if unknown:  # figures without a measurement neither held nor broke
        raise HypothesisInvalidError("; ".join(unknown))
    return Held(text)


@dataclass(frozen=True)
class Worst:
    """A condition's signal at its worst time; `value` is NaN if nothing was measured. `when` is text for people."""

    value: float
    when: str


def at_worst(recording: Recording, condition: Condition) -> Worst:
    """The condition's signal in the part of the run in which it was worst; with a `for`, in the worst such window.

    Without a `for`, the steady state, the time of each fault, and the whole method are measured separately: in one
    figure over all of them, a fault of 20 s in a run of 60 s would move no median. The worst part is one that breaks
    the condition; if none does, one in which nothing was measured; otherwise one that holds.
    """
    spans = _parts(recording) if condition.window_s is None else _windows(recording, condition.window_s)
    found = [Worst(_value(recording, condition, start, end), when) for start, end, when in spans]
    broken = [one for one in found if not condition.holds(one.value, unknown=True)]
    unknown = [one for one in found if np.isnan(one.value)]
    ranked = broken or unknown or found
    if unknown and not broken:
        return unknown[0]
    return (min if condition.op.startswith(">") else max)(ranked, key=lambda one: one.value)


def _parts(recording: Recording) -> Iterator[tuple[int, int, str]]:
    begin_ns, (method_ns, end_ns) = _steady_ns(recording), recording.phases["method"]
    yield begin_ns, recording.phases["steady"][1], "in the steady state"
    yield method_ns, end_ns, "over the method"
    for window in recording.faults:
        since, until = measure.in_full_force(recording, window)
        for start, end, when in ((window.intent_ns, since, "while applying"), (since, min(until, end_ns), "under")):
            if end - start >= _SHORTEST_S * measure.SECOND:
                yield start, end, f"{when} {window.kind}"
    for mark in recording.marks:
        since, until = measure.in_force(recording, mark)
        if until - since >= _SHORTEST_S * measure.SECOND:
            yield since, until, f"in {mark.mark}"


def _windows(recording: Recording, width_s: float) -> Iterator[tuple[int, int, str]]:
    begin_ns, end_ns = _steady_ns(recording), recording.phases["method"][1]
    width_ns = int(width_s * measure.SECOND)
    for start in range(begin_ns, max(begin_ns + 1, end_ns - width_ns + 1), max(1, width_ns // 4)):
        after_s = (start - begin_ns) / measure.SECOND
        yield start, min(end_ns, start + width_ns), f"over {width_s:g} s, from {after_s:.1f} s on"


def _steady_ns(recording: Recording) -> int:
    steady = recording.phases["steady"]
    return max(steady[0], steady[1] - int(recording.experiment.steady_state.for_ * measure.SECOND))


def _value(recording: Recording, condition: Condition, start_ns: int, end_ns: int) -> float:
    """NaN if nothing was measured. An unacknowledged operation counts as infinitely slow."""
    if condition.source in recording.loads and condition.what in LOAD_STATISTICS:
        ops = recording.operations(condition.source).between(start_ns, end_ns)
        if condition.what == "rate":
            return float(ops.ok.sum()) * measure.SECOND / (end_ns - start_ns)
        if condition.what == "errors":
            return ops.error_share()
        served = measure.served_s(ops)
        percent = {"latency.p50": 50, "latency.p90": 90, "latency.p99": 99, "latency.max": 100}.get(condition.what)
        if percent is not None:
            return measure.percentile(served, percent)
        return float(np.mean(served)) if len(served) else float("nan")
    by_host: dict[str, list[float]] = defaultdict(list)
    try:
        series = recording.series(f"{condition.source}.{condition.what}").between(start_ns, end_ns)
    except HypothesisInvalidError:
        return float("nan")
    for host, value in zip(series.host, series.value, strict=True):
        by_host[host].append(float(value))
    return _of_hosts(condition, by_host)


def _of_hosts(condition: Condition, by_host: Mapping[str, Sequence[float]]) -> float:
    """The mean of a host that breaks the condition, if there is one; NaN if an unmeasured host might break it.

    A signal without a host replaces all hosts' signals. Only the leader reports Raft's figures, so gaps in the
    followers' do not count.
    """
    chosen = [by_host[""]] if "" in by_host else list(by_host.values())
    samples = [np.array(values) for values in chosen]
    means = [float(np.mean(values[~np.isnan(values)])) for values in samples if not np.isnan(values).all()]
    gaps = any(np.isnan(values).any() for values in samples) and condition.source != _OF_THE_LEADER
    broken = [mean for mean in means if not condition.holds(mean, unknown=True)]
    if not means or (gaps and not broken):
        return float("nan")
    return (min if condition.op.startswith(">") else max)(broken or means)
