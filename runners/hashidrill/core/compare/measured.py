"""Figures, and which parts of a recording count for them.

Only valid measurements count. Seconds in doubt (hashidrill.core.judging.doubts: a generator that fell behind, a
silent probe, a machine that other work kept busy) are left out, and a figure with too much in doubt counts as not
measured: a slow generator must not count as a slow product.

Operations that the generator did not start because too many were already waiting are not in doubt here: they are
unserved demand, caused by a product that stalls. If the generator itself used up its core, its seconds are in doubt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from hashidrill.core.errors import HypothesisInvalidError, RecordingError
from hashidrill.core.judging import measure
from hashidrill.core.judging.checkable import spans_in_force
from hashidrill.core.judging.doubts import SHED, Doubt
from hashidrill.core.judging.measure import SECOND
from hashidrill.core.judging.reads import Read
from hashidrill.core.judging.validity import Validity
from hashidrill.core.protocols.abc import Reason
from hashidrill.core.recording.columns import Bools, Floats, Int64s, Operations
from hashidrill.core.recording.reader import Recording

IN_DOUBT_AT_MOST = 0.25
"""A figure with a larger share in doubt counts as not measured."""


@dataclass(frozen=True)
class Measured:
    """A figure of one recording.

    `number` is NaN if it was not measured, and `why` says why; infinity stands for never. `at_most` is the most that
    the run could have measured: an event that never came took at least that long. `intervals`: the same figure in
    each second of the time it covers, by the method's clock; NaN for a second without a measurement.
    """

    number: float
    intervals: Floats | None = field(default=None, repr=False)
    at_most: float = math.inf
    why: str = ""
    of: int = 0
    """For a share, the number of operations that it is a share of; 0 if nothing was counted."""
    absent: float = 0.0
    """For a cost, the share of the agents' time in which an agent was down, so that its use is missing."""
    who: str = ""
    """Which agent was absent for the longest."""
    shed: float = 0.0
    """The share of operations that the generator did not start, because too many were waiting already."""


@dataclass(frozen=True)
class Run:
    """A recording, and its doubts."""

    recording: Recording
    doubts: Sequence[Doubt]

    @classmethod
    def of(cls, recording: Recording) -> Run:
        """Reads the doubts once for all figures of a recording. Raises HypothesisInvalidError without a method."""
        known: Run | None = recording.__dict__.get("_compared")
        if known is None:
            measure.method(recording)  # raises if the run never reached its method
            validity = Validity.of(recording)
            if validity.damaged:
                raise HypothesisInvalidError(validity.damaged[0])
            found = [doubt for doubt in validity.doubts if doubt.about != SHED]
            known = recording.__dict__["_compared"] = cls(recording, found)
        return known

    def doubtful(self, of: str, t_ns: Int64s) -> Bools:
        """Which of these moments are in doubt, for a load or a signal."""
        mask = np.zeros(len(t_ns), np.bool_)
        for doubt in self.doubts:
            if doubt.touches(Read(of, None, ((doubt.start_ns, doubt.end_ns),))):
                mask |= (t_ns >= doubt.start_ns) & (t_ns < doubt.end_ns)
        return mask

    def valid(self, load: str, ops: Operations) -> Operations:
        """The operations outside of all doubts. Raises HypothesisInvalidError if too large a share is in doubt."""
        if not len(ops):
            raise HypothesisInvalidError(f"no operation of {load} was due then")
        mask = self.doubtful(load, ops.intended_ns)
        self.enough(load, float(mask.mean()))
        return ops.picked(~mask)

    def enough(self, of: str, in_doubt: float) -> None:
        """Raises HypothesisInvalidError if too large a share is in doubt."""
        if in_doubt > IN_DOUBT_AT_MOST:
            reason = next(each.reason for each in self.doubts if each.touches(Read(of)))
            raise HypothesisInvalidError(f"{in_doubt:.0%} of its measurements are in doubt: {reason}")

    @property
    def fault_spans(self) -> list[tuple[int, int]]:
        """The times when a fault was in force; the whole method if the experiment has no fault."""
        spans = [span for span in spans_in_force(self.recording) if span[1] > span[0]]
        return spans or [measure.method(self.recording)]

    @property
    def loaded(self) -> tuple[int, int]:
        """The method and its recovery."""
        return measure.method(self.recording)[0], measure.loads_end_ns(self.recording)


@dataclass(frozen=True)
class Figure:
    """One figure that two sides are compared by.

    `floor` is added to both sides of a ratio: the size below which a difference means nothing, in the figure's unit.
    It makes zero against zero a ratio of 1, and 0.1 ms against 0.3 ms little more. `margin`: the ratio from which a
    difference counts. A figure that `decides` is needed for an answer; any other only raises an alarm.
    """

    name: str
    unit: str
    floor: float
    margin: float
    decides: bool
    measure: Callable[[Run], Measured] = field(repr=False, compare=False)
    lower_is_better: bool = True
    noise: float = 0.0
    """Standard deviation of a round's logarithm between equal sides: the largest measured on any machine, rounded up; 0
    if unknown.
    """
    usual: float = 0.0
    """The same on a shared machine: the estimate of the noise without a calibration."""
    odds: bool = False
    """It is a share, and is compared by its odds (hashidrill.core.compare.comparison): failed over served."""

    def of(self, recording: Recording, *, though_busy: bool = False, without: Sequence[Doubt] = ()) -> Measured:
        """Measures the figure. Never raises: a figure that cannot be measured says why.

        `though_busy` also counts seconds in which other work kept the machine busy. That can only make a figure worse,
        so a limit that is met then is met. `without`: time to leave out as well, as if it were in doubt.
        """
        try:
            run = Run.of(recording)
            if though_busy:
                run = replace(run, doubts=[doubt for doubt in run.doubts if not doubt.broken_only])
            return self.measure(replace(run, doubts=[*run.doubts, *without]) if without else run)
        except (HypothesisInvalidError, RecordingError) as error:
            return Measured(math.nan, why=str(error))

    def log(self, numbers: Floats) -> Floats:
        """The logarithms that are compared: the difference between two sides is the difference of these."""
        found = np.log(numbers + self.floor)
        return found - np.log(1 - numbers + self.floor) if self.odds else found

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


def shed_share(ops: Operations) -> float:
    """The share of operations that the generator did not start."""
    return sum(reason == Reason.OVERLOADED for reason in ops.reasons) / len(ops) if len(ops) else 0.0


WIDTH_S = 2.0
"""An interval: two samples of each agent."""


class _Taken(NamedTuple):
    """A signal's sum over all agents in each interval; the agents' mean absence, and which one was absent longest."""

    total: Floats
    absent: float
    who: str


def cpu_cost(run: Run) -> Measured:
    """CPU seconds of all agents over the method and the recovery, and in each interval of that time."""
    taken = _taken(run, "process.cpu")
    seconds = taken.total * WIDTH_S
    return Measured(float(np.nansum(seconds)), seconds, absent=taken.absent, who=taken.who)


def bytes_written(run: Run) -> Measured:
    """Bytes that all agents wrote to storage; on a file system in memory (tmpfs), bytes passed to write calls."""
    taken = _taken(run, "process.write_rate")
    if not np.nansum(taken.total):
        taken = _taken(run, "process.wchar_rate")
    return Measured(float(np.nansum(taken.total)) * WIDTH_S, absent=taken.absent, who=taken.who)


def memory_cost(run: Run) -> Measured:
    """The sum of the agents' largest memory uses, in bytes."""
    series = run.recording.series("process.rss").between(*run.loaded)
    hosts = np.array(series.host)
    peaks = [series.value[hosts == host] for host in sorted(set(series.host))]
    known = [float(np.nanmax(values)) for values in peaks if not np.isnan(values).all()]
    if not known:
        raise HypothesisInvalidError("no agent's memory was measured")
    taken = _taken(run, "process.rss", though_doubtful=True)
    return Measured(sum(known), absent=taken.absent, who=taken.who)


def _taken(run: Run, signal: str, *, though_doubtful: bool = False) -> _Taken:
    """The sum over all agents of a signal's mean in each interval.

    An agent that was not sampled in an interval counts as down, with 0. All agents that were sampled at any time of
    the run are expected.
    """
    start_ns, end_ns = run.loaded
    every = run.recording.series(signal)
    series = every.between(start_ns, end_ns)
    if not len(series):
        raise HypothesisInvalidError(f"{signal} was not sampled in the method or after it")
    if not though_doubtful:
        run.enough(signal, float(run.doubtful(signal, series.t_ns).mean()))
    width_ns = int(WIDTH_S * SECOND)
    at = ((series.t_ns - start_ns) // width_ns).astype(np.int64)
    hosts = np.array(series.host)
    total = np.zeros(max(1, (end_ns - start_ns) // width_ns))
    absent: dict[str, float] = {}
    for host in sorted(set(every.host)):
        mine = (hosts == host) & ~np.isnan(series.value) & (at < len(total))
        sums = np.bincount(at[mine], series.value[mine], len(total))
        counts = np.bincount(at[mine], minlength=len(total))
        absent[host] = float((counts == 0).mean())
        total += sums / np.maximum(counts, 1)
    return _Taken(total, float(np.mean(list(absent.values()))), max(absent, key=lambda host: absent[host]))
