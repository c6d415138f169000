"""Figures of one recording that two sides can be compared by: latency under fault, errors, recovery, loss, and cost."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from hashidrill.core.compare.comparison import paired as paired  # noqa: PLC0414 - stored hypotheses import it here
from hashidrill.core.compare.measured import Figure, Measured, Run, bytes_written, cpu_cost, memory_cost, shed_share
from hashidrill.core.errors import HypothesisInvalidError, UsageError
from hashidrill.core.experiment.model import Experiment, LoadSpec
from hashidrill.core.experiment.resolved import ResolvedExperiment
from hashidrill.core.judging import measure
from hashidrill.core.judging.linearizability import check_registers
from hashidrill.core.judging.measure import SECOND
from hashidrill.core.protocols.registry import near
from hashidrill.core.recording.columns import Int64s
from hashidrill.core.recording.reader import Recording
from hashidrill.core.units import Duration

INTERVAL_S = 1.0
FEWEST = 20
"""The fewest operations for a percentile."""
LOST = "no_acknowledged_write_lost"
"""The hypothesis whose loads are read back at the end, so that their losses can be counted."""
SHORTEST_RECOVERY_S = 2.0
LITTLE = 0.1
"""A share of the p50 that the experiment allows: smaller differences do not matter under a fault."""
SLOW = 2.0
"""Recovered means a p50 of at most this many times the steady state's, if the experiment states no limit."""


def figures(experiment: Experiment) -> list[Figure]:
    """All figures of an experiment: the figures of each load that has its own latency, and those of all agents."""
    return [
        *(each for load, spec in experiment.traffic.items() for each in _of_load(load, experiment, spec)),
        # loads do not notice it: in 20 runs of ten experiments, three servers took 3 to 7 s to be ready
        Figure("ready", "s", 2.0, 2.0, False, _ready, noise=0.5),
        Figure("cpu", "CPU seconds", 0.5, 1.3, False, cpu_cost),
        Figure("memory", "bytes", 10e6, 1.3, False, memory_cost),
        Figure("written", "bytes", 1e5, 1.3, False, bytes_written),
    ]


def figure(name: str, experiment: Experiment) -> Figure:
    """The figure of that name, which may be that of a service. Raises UsageError with similar names.

    `figures` leaves services out, because it is unknown beforehand whether a service reports its operations.
    """
    services = {name for name, client in experiment.clients.items() if client.service}
    reported = [each for name in services for each in _of_each(name, experiment)]
    found = {each.name: each for each in [*figures(experiment), *reported]}
    if name not in found:
        raise UsageError(f"no figure {name!r} in experiment {experiment.metadata.name}: {near(name, found)}")
    return found[name]


def beside(name: str, experiment: Experiment, other: str) -> Figure | None:
    """The same latency of another load in the same run, over the same time; None if the figure is not a latency."""
    load, _, what = name.rpartition(".latency.")
    if not load or not what:
        return None
    like = figure(name, experiment)
    measure_ = partial(_latency, load=other, percent=float(what[1:]), marked_by=load)
    return replace(like, name=f"{other}.latency.{what}", measure=measure_)


def _of_load(load: str, experiment: Experiment, spec: object) -> Iterator[Figure]:
    if not isinstance(spec, LoadSpec) and not getattr(spec, "rate", None):
        return
    yield from _of_each(load, experiment)


def _of_each(load: str, experiment: Experiment) -> Iterator[Figure]:
    little_s = LITTLE * (limit_s(experiment, load) or 0.0)
    p50, p99 = (partial(_latency, load=load, percent=percent) for percent in (50.0, 99.0))
    yield Figure(f"{load}.latency.p50", "s", max(5e-4, little_s), 1.2, True, p50, noise=0.8, usual=0.1)
    yield Figure(f"{load}.latency.p99", "s", max(2e-3, little_s), 1.5, False, p99)
    # a fault hides a daily cost: a rise from 5 to 25 ms is small against a disk that takes 500
    yield Figure(f"{load}.steady.p50", "s", 5e-4, 1.5, False, partial(_steady, load=load))
    yield Figure(
        f"{load}.errors", "share", 0.01, 2.0, True, partial(_errors, load=load), noise=0.7, usual=0.3, odds=True
    )
    if experiment.recovery.for_ >= SHORTEST_RECOVERY_S and any(
        step.fault != measure.NO_FAULT for step in experiment.faults
    ):
        yield Figure(f"{load}.recovery", "s", 1.0, 1.5, True, partial(_recovery, load=load))
    if any(each.hypothesis == LOST and each.params.get("load") == load for each in experiment.expect):
        yield Figure(f"{load}.lost", "", 1.0, 1.5, True, partial(_lost, load=load))


def _latency(run: Run, *, load: str, percent: float, marked_by: str | None = None) -> Measured:
    """The percentile over the operations due while a fault was in force. Unacknowledged operations count as infinitely
    long.

    If an expectation on this load names a mark, only the mark's time counts: a peak of 15 s at the end of a fault of
    45 s hardly moves the whole fault's p50. `marked_by` is the load whose expectations name the mark, if another one.
    """
    marked = _marked(run.recording, marked_by or load)
    return _served(run, load, percent, marked or run.fault_spans, "while marked" if marked else "under fault")


def _marked(recording: Recording, load: str) -> list[tuple[int, int]]:
    asked = [each.params for each in recording.experiment.expect if each.params.get("load") == load]
    names = {params.get("fault") for params in asked}
    return [measure.in_force(recording, mark) for mark in recording.marks if mark.mark in names]


def _steady(run: Run, *, load: str) -> Measured:
    """The p50 over the operations due in the steady state, before anything was broken."""
    return _served(run, load, 50.0, [run.recording.phases["steady"]], "in the steady state")


def _served(run: Run, load: str, percent: float, spans: Sequence[tuple[int, int]], when: str) -> Measured:
    ops = run.recording.operations(load)
    inside = run.valid(load, ops.within(spans))
    if len(inside) < FEWEST:
        raise HypothesisInvalidError(f"{len(inside)} operations of {load} were due {when}; {FEWEST} are needed")
    served = measure.served_s(inside)
    at_most = (run.loaded[1] - min(start for start, _ in spans)) / SECOND
    number = measure.percentile(served, percent)
    # the percentile of one second needs operations below and above it
    needed = math.ceil(2 * 100 / min(percent, 100 - percent))
    edges = np.concatenate([_edges(start, end) for start, end in spans])
    low, high = np.searchsorted(inside.intended_ns, edges), np.searchsorted(inside.intended_ns, edges + SECOND)
    each = [
        measure.percentile(served[i:j], percent) if j - i >= needed else math.nan
        for i, j in zip(low, high, strict=True)
    ]
    return Measured(number, np.array(each, np.float64), at_most, shed=shed_share(inside))


def _edges(start_ns: int, end_ns: int) -> Int64s:
    width = int(INTERVAL_S * SECOND)
    return start_ns + np.arange((end_ns - start_ns) // width, dtype=np.int64) * width


def _ready(run: Run) -> Measured:
    """Seconds from the start of the agents until the datacenter is ready: all alive, a leader known."""
    phases = run.recording.phases
    if not {"start", "ready"} <= phases.keys():
        raise HypothesisInvalidError("the start of its agents was not recorded")
    return Measured((phases["ready"][1] - phases["start"][0]) / SECOND)


def _errors(run: Run, *, load: str) -> Measured:
    """The share of operations that were not acknowledged, from the start of the method to the end of the loads."""
    ops = measure.settled(run.recording, run.recording.operations(load).between(*run.loaded))
    inside = run.valid(load, ops)
    return Measured(inside.error_share(), at_most=1.0, of=len(inside), shed=shed_share(inside))


def _recovery(run: Run, *, load: str) -> Measured:
    """Seconds from the end of the last fault until the p50 of a second is back, and stays."""
    recording = run.recording
    since_ns, until_ns = measure.faults_end_ns(recording), run.loaded[1]
    ops = measure.settled(recording, recording.operations(load).between(since_ns, until_ns))
    run.valid(load, ops)
    p50 = measure.sliding(ops, since_ns, until_ns)
    steady = recording.operations(load).between(*recording.phases["steady"])
    stated_s = limit_s(recording.experiment, load)
    allowed_s = SLOW * measure.percentile(measure.served_s(steady), 50) if stated_s is None else stated_s
    known = np.flatnonzero(~np.isnan(p50.value_s))
    if not len(known):
        raise HypothesisInvalidError(f"no operation of {load} was due after the last fault")
    slow = np.flatnonzero(p50.value_s[known] > allowed_s)
    length_s = (until_ns - since_ns) / SECOND
    if len(slow) and slow[-1] + 1 == len(known):
        return Measured(math.inf, at_most=length_s)
    back_s = float(p50.t_ns[known[slow[-1] + 1]] - since_ns) / SECOND if len(slow) else 0.0
    return Measured(back_s, at_most=length_s)


def limit_s(experiment: Experiment, load: str) -> float | None:
    """The p50 that the experiment allows this load, in its steady state or in the loosest of its expectations."""
    for condition in experiment.steady_state.require:
        if condition.source == load and condition.what == "latency.p50" and condition.op.startswith("<"):
            return float(condition.limit)
    asked = [each.params.get("p50_below") for each in experiment.expect if each.params.get("load") == load]
    return max((float(Duration(str(each))) for each in asked if each is not None), default=None)


def _lost(run: Run, *, load: str) -> Measured:
    finals = run.recording.final_reads(load)
    if not finals:
        raise HypothesisInvalidError(f"the final reads of {load} are missing, so the losses are unknown")
    found = check_registers(run.recording.operations(load), finals)
    return Measured(float(len(found.lost) + len(found.phantoms)))


FIGURE = "figure"
"""The parameter of a comparison that names a figure of both sides."""


def check_figures(resolved: ResolvedExperiment, variants: Mapping[str, ResolvedExperiment]) -> None:
    """Raises UsageError for a comparison of a figure that one of its sides does not have."""
    for comparison in resolved.experiment.compare:
        named = comparison.params.get(FIGURE)
        sides = [variants[each] for each in comparison.params.values() if isinstance(each, str) and each in variants]
        for side in sides if isinstance(named, str) else ():
            figure(str(named), side.experiment)
