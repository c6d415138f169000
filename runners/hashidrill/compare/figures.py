"""Figures of one recording that two sides can be compared by: latency under fault, errors, recovery, loss, and cost.

Only what was measured validly counts. Seconds in doubt (hashidrill.judging.doubts: a generator that fell behind, a
silent probe, a machine that other work kept busy) are left out, and a figure of which too much is in doubt was not
measured: a slow generator must not pass for a slow product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from hashidrill import measure
from hashidrill.compare.statistics import Paired, of_intervals
from hashidrill.errors import HypothesisInvalidError, RecordingError, UsageError
from hashidrill.experiment.model import LoadSpec
from hashidrill.judging.checkable import spans_in_force
from hashidrill.judging.doubts import Doubt, doubts
from hashidrill.judging.registers import check_registers
from hashidrill.judging.traced import Read
from hashidrill.measure import SECOND
from hashidrill.registry import near

if TYPE_CHECKING:
    from hashidrill.experiment.model import Experiment
    from hashidrill.recording.columns import Bools, Floats, Int64s, Operations
    from hashidrill.recording.reader import Recording

INTERVAL_S = 1.0
IN_DOUBT_AT_MOST = 0.25
"""A figure of which a larger share is in doubt was not measured."""
FEWEST = 20
"""Operations that a percentile needs at least."""
FEWEST_INTERVALS = 5
"""With fewer intervals that were measured on both sides, a round says no more than its two numbers."""
LOST = "no_acknowledged_write_lost"
"""The hypothesis whose loads are read back at the end, so that what they lost can be counted."""
SHORTEST_RECOVERY_S = 2.0
SLOW = 2.0
"""Recovered: the p50 is at most this many times that of the steady state, where the experiment states no limit."""


@dataclass(frozen=True)
class Measured:
    """A figure of one recording.

    `number` is NaN where it was not measured, and `why` says why; infinity stands for never. `at_most` is the most that
    the run could have measured: what never came took at least that long. `intervals`: the same figure in each second of
    the time it covers, by the method's clock; NaN for a second that says nothing.
    """

    number: float
    intervals: Floats | None = field(default=None, repr=False)
    at_most: float = math.inf
    why: str = ""


@dataclass(frozen=True)
class Figure:
    """One figure that two sides are compared by.

    `floor` is added to both sides of a ratio: the size below which a difference means nothing, in the figure's unit. It
    makes none against none a ratio of 1, and 0.1 ms against 0.3 ms little more. `margin`: the ratio from which a
    difference counts. A figure that `decides` is needed for an answer; another one only raises an alarm.
    """

    name: str
    unit: str
    floor: float
    margin: float
    decides: bool
    measure: Callable[[_Run], Measured] = field(repr=False, compare=False)
    lower_is_better: bool = True

    def of(self, recording: Recording, *, though_busy: bool = False) -> Measured:
        """Never raises: what cannot be measured says why.

        With `though_busy`, seconds in which other work kept the machine busy count too. That makes a figure worse,
        never better: a limit that it keeps is kept.
        """
        try:
            run = _Run.of(recording)
            if though_busy:
                run = replace(run, doubts=[doubt for doubt in run.doubts if not doubt.broken_only])
            return self.measure(run)
        except (HypothesisInvalidError, RecordingError) as error:
            return Measured(math.nan, why=str(error))

    def shown(self, number: float) -> str:
        """For a person, with its unit."""
        if math.isnan(number):
            return "not measured"
        if self.unit == "s":
            return measure.seconds(number)
        if self.unit == "":
            return f"{number:g}"
        if self.unit == "share":
            return measure.share(number)
        if self.unit == "bytes":
            return f"{number / 1e6:.3g} MB"
        return f"{number:.3g} {self.unit}"


def figures(experiment: Experiment) -> list[Figure]:
    """All figures of an experiment: those of each load that has a latency of its own, and the cost of all agents."""
    return [
        *(each for load, spec in experiment.traffic.items() for each in _of_load(load, experiment, spec)),
        Figure("cpu", "CPU seconds", 0.5, 1.3, False, _cpu),
        Figure("memory", "bytes", 10e6, 1.3, False, _memory),
        Figure("written", "bytes", 1e5, 1.3, False, _written),
    ]


def figure(name: str, experiment: Experiment) -> Figure:
    """The figure of that name, also of a client that reports its operations. Raises UsageError with the near names.

    `figures` leaves such clients out: nothing says beforehand whether a service reports.
    """
    services = {name for name, client in experiment.clients.items() if client.service}
    reported = [each for name in services for each in _of_each(name, experiment)]
    found = {each.name: each for each in [*figures(experiment), *reported]}
    if name not in found:
        raise UsageError(f"no figure {name!r} in experiment {experiment.metadata.name}: {near(name, found)}")
    return found[name]


def _of_load(load: str, experiment: Experiment, spec: object) -> Iterator[Figure]:
    if not isinstance(spec, LoadSpec) and not getattr(spec, "rate", None):
        return
    yield from _of_each(load, experiment)


def _of_each(load: str, experiment: Experiment) -> Iterator[Figure]:
    yield Figure(f"{load}.latency.p50", "s", 5e-4, 1.2, True, partial(_latency, load=load, percent=50.0))
    yield Figure(f"{load}.latency.p99", "s", 2e-3, 1.5, False, partial(_latency, load=load, percent=99.0))
    # a fault hides what a change costs every day: 5 ms that become 25 are little beside a disk that takes 500
    yield Figure(f"{load}.steady.p50", "s", 5e-4, 1.5, False, partial(_steady, load=load))
    yield Figure(f"{load}.errors", "share", 0.01, 1.5, True, partial(_errors, load=load))
    if experiment.recovery.for_ >= SHORTEST_RECOVERY_S and any(
        step.fault != measure.NO_FAULT for step in experiment.faults
    ):
        yield Figure(f"{load}.recovery", "s", 1.0, 1.5, True, partial(_recovery, load=load))
    if any(each.hypothesis == LOST and each.params.get("load") == load for each in experiment.expect):
        yield Figure(f"{load}.lost", "", 1.0, 1.5, True, partial(_lost, load=load))


def paired(figure: Figure, baseline: Measured, candidate: Measured, *, seed: int = 0) -> Paired | None:
    """One round; None where a side was not measured.

    By its intervals, where enough of them were measured on both sides; else by the two numbers.
    """
    if math.isnan(baseline.number) or math.isnan(candidate.number):
        return None
    one, other = baseline.intervals, candidate.intervals
    if one is not None and other is not None:
        count = min(len(one), len(other))
        logs = _log_ratio(figure, one[:count], other[:count], min(baseline.at_most, candidate.at_most))
        logs = logs[~np.isnan(logs)]
        if len(logs) >= FEWEST_INTERVALS:
            return of_intervals(logs, seed)
    at_most = min(baseline.at_most, candidate.at_most)
    return Paired(float(_log_ratio(figure, np.array([baseline.number]), np.array([candidate.number]), at_most)[0]))


def _log_ratio(figure: Figure, baseline: Floats, candidate: Floats, at_most: float) -> Floats:
    """What was never seen counts as `at_most`, on both sides the same; where both were never seen, they are equal."""
    if math.isinf(at_most):
        finite = np.concatenate([each[np.isfinite(each)] for each in (baseline, candidate)])
        at_most = float(finite.max()) if len(finite) else 1.0
    one, other = (np.minimum(each, at_most) + figure.floor for each in (baseline, candidate))
    return np.asarray(np.log(other / one), np.float64)


@dataclass(frozen=True)
class _Run:
    """A recording, and what of it is in doubt."""

    recording: Recording
    doubts: Sequence[Doubt]

    @classmethod
    def of(cls, recording: Recording) -> _Run:
        """Reads the doubts once for all figures of a recording."""
        known: _Run | None = recording.__dict__.get("_compared")
        if known is None:
            measure.method(recording)  # raises where the run never got there
            known = recording.__dict__["_compared"] = cls(recording, doubts(recording, recording.experiment))
        return known

    def doubtful(self, of: str, t_ns: Int64s) -> Bools:
        """Which of these moments are in doubt, for a load or a signal."""
        mask = np.zeros(len(t_ns), np.bool_)
        for doubt in self.doubts:
            if doubt.touches(Read(of, None, ((doubt.start_ns, doubt.end_ns),))):
                mask |= (t_ns >= doubt.start_ns) & (t_ns < doubt.end_ns)
        return mask

    def valid(self, load: str, ops: Operations) -> Operations:
        """The operations outside of all doubts. Raises HypothesisInvalidError where those are too few."""
        if not len(ops):
            raise HypothesisInvalidError(f"no operation of {load} was due then")
        mask = self.doubtful(load, ops.intended_ns)
        self.enough(load, float(mask.mean()))
        return ops.picked(~mask)

    def enough(self, of: str, in_doubt: float) -> None:
        if in_doubt > IN_DOUBT_AT_MOST:
            reason = next(each.reason for each in self.doubts if each.touches(Read(of)))
            raise HypothesisInvalidError(f"{in_doubt:.0%} of it is in doubt: {reason}")

    @property
    def fault_spans(self) -> list[tuple[int, int]]:
        """When a fault was in force; the whole method for an experiment that has none."""
        spans = [span for span in spans_in_force(self.recording) if span[1] > span[0]]
        return spans or [measure.method(self.recording)]

    @property
    def loaded(self) -> tuple[int, int]:
        """The method and its recovery."""
        return measure.method(self.recording)[0], measure.loads_end_ns(self.recording)


def _latency(run: _Run, *, load: str, percent: float) -> Measured:
    """The percentile over the operations due while a fault was in force. What was not acknowledged never came."""
    return _served(run, load, percent, run.fault_spans, "under fault")


def _steady(run: _Run, *, load: str) -> Measured:
    """The p50 over the operations due in the steady state, before anything was broken."""
    return _served(run, load, 50.0, [run.recording.phases["steady"]], "in the steady state")


def _served(run: _Run, load: str, percent: float, spans: Sequence[tuple[int, int]], when: str) -> Measured:
    ops = run.recording.operations(load)
    inside = run.valid(load, ops.within(spans))
    if len(inside) < FEWEST:
        raise HypothesisInvalidError(f"{len(inside)} operations of {load} were due {when}; {FEWEST} are needed")
    served = measure.served_s(inside)
    at_most = (run.loaded[1] - min(start for start, _ in spans)) / SECOND
    number = measure.percentile(served, percent)
    # a percentile of a second needs operations on both sides of it
    needed = math.ceil(2 * 100 / min(percent, 100 - percent))
    edges = np.concatenate([_edges(start, end) for start, end in spans])
    low, high = np.searchsorted(inside.intended_ns, edges), np.searchsorted(inside.intended_ns, edges + SECOND)
    each = [measure.percentile(served[i:j], percent) if j - i >= needed else math.nan
            for i, j in zip(low, high, strict=True)]  # fmt: skip
    return Measured(number, np.array(each, np.float64), at_most)


def _edges(start_ns: int, end_ns: int) -> Int64s:
    """The beginnings of the whole intervals of a span."""
    width = int(INTERVAL_S * SECOND)
    return start_ns + np.arange((end_ns - start_ns) // width, dtype=np.int64) * width


def _errors(run: _Run, *, load: str) -> Measured:
    """The share that was not acknowledged, from the begin of the method to the end of the loads."""
    ops = measure.settled(run.recording, run.recording.operations(load).between(*run.loaded))
    return Measured(run.valid(load, ops).error_share(), at_most=1.0)


def _recovery(run: _Run, *, load: str) -> Measured:
    """Seconds from the end of the last fault until the p50 of a second is back, and stays."""
    recording = run.recording
    since_ns, until_ns = measure.faults_end_ns(recording), run.loaded[1]
    ops = measure.settled(recording, recording.operations(load).between(since_ns, until_ns))
    run.valid(load, ops)
    p50 = measure.sliding(ops, since_ns, until_ns)
    limit_s = _limit_s(recording, load)
    known = np.flatnonzero(~np.isnan(p50.value_s))
    if not len(known):
        raise HypothesisInvalidError(f"no operation of {load} was due after the last fault")
    slow = np.flatnonzero(p50.value_s[known] > limit_s)
    length_s = (until_ns - since_ns) / SECOND
    if len(slow) and slow[-1] + 1 == len(known):
        return Measured(math.inf, at_most=length_s)
    back_s = float(p50.t_ns[known[slow[-1] + 1]] - since_ns) / SECOND if len(slow) else 0.0
    return Measured(back_s, at_most=length_s)


def _limit_s(recording: Recording, load: str) -> float:
    """What the experiment calls steady, if it says so of the p50; else twice the p50 of its own steady state."""
    for condition in recording.experiment.steady_state.require:
        if condition.source == load and condition.what == "latency.p50" and condition.op.startswith("<"):
            return float(condition.limit)
    steady = recording.operations(load).between(*recording.phases["steady"])
    return SLOW * measure.percentile(measure.served_s(steady), 50)


def _lost(run: _Run, *, load: str) -> Measured:
    """Keys whose acknowledged write was gone at the end."""
    finals = run.recording.final_reads(load)
    if not finals:
        raise HypothesisInvalidError(f"the final reads of {load} are missing, so nobody knows what was lost")
    found = check_registers(run.recording.operations(load), finals)
    return Measured(float(len(found.lost) + len(found.phantoms)))


def _cpu(run: _Run) -> Measured:
    """CPU seconds of all agents over the method and the recovery, and in each second of it."""
    cores, width_s = _per_interval(run, "process.cpu")
    return Measured(float(np.nansum(cores)) * width_s, cores * width_s)


def _written(run: _Run) -> Measured:
    """Bytes that all agents wrote to storage; on a file system that has none (tmpfs), bytes passed to write calls."""
    rates, width_s = _per_interval(run, "process.write_rate")
    if not np.nansum(rates):
        rates, width_s = _per_interval(run, "process.wchar_rate")
    return Measured(float(np.nansum(rates)) * width_s)


def _memory(run: _Run) -> Measured:
    """The most that each agent held, of all agents together."""
    series = run.recording.series("process.rss").between(*run.loaded)
    hosts = np.array(series.host)
    peaks = [series.value[hosts == host] for host in sorted(set(series.host))]
    known = [float(np.nanmax(values)) for values in peaks if not np.isnan(values).all()]
    if not known:
        raise HypothesisInvalidError("no agent's memory was measured")
    return Measured(sum(known))


def _per_interval(run: _Run, signal: str) -> tuple[Floats, float]:
    """The sum over all agents of a signal's mean in each interval, and the width of one in seconds.

    An agent that was not sampled in an interval (it was down) had none of it.
    """
    start_ns, end_ns = run.loaded
    series = run.recording.series(signal).between(start_ns, end_ns)
    if not len(series):
        raise HypothesisInvalidError(f"{signal} was not sampled in the method or after it")
    run.enough(signal, float(run.doubtful(signal, series.t_ns).mean()))
    width_ns = int(2 * INTERVAL_S * SECOND)  # two samples of each agent
    at = ((series.t_ns - start_ns) // width_ns).astype(np.int64)
    hosts = np.array(series.host)
    total = np.zeros(max(1, (end_ns - start_ns) // width_ns))
    for host in sorted(set(series.host)):
        mine = (hosts == host) & ~np.isnan(series.value) & (at < len(total))
        sums = np.bincount(at[mine], series.value[mine], len(total))
        counts = np.bincount(at[mine], minlength=len(total))
        total += sums / np.maximum(counts, 1)
    return total, width_ns / SECOND
