"""Figures, and which parts of a recording count for them.

Only valid measurements count. Seconds in doubt (hashidrill.core.judging.doubts: a generator that fell behind, a
silent probe, a machine that other work kept busy) are left out, and a figure with too much in doubt counts as not
measured: a slow generator must not count as a slow product.

Operations that the generator did not start because too many were already waiting are not in doubt here: they are
unserved demand, caused by a product that stalls. If the generator itself used up its core, its seconds are in doubt.

A run that other work on the machine (processes outside of the run) disturbed is only compared with a run that was
disturbed in the same way. A side whose own agents use up the CPU is not disturbed: the machine had enough CPU for the
need of the leaner side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from hashidrill.core.errors import OTHER_WORK, HypothesisInvalidError, RecordingError
from hashidrill.core.judging import measure
from hashidrill.core.judging.checkable import spans_in_force
from hashidrill.core.judging.doubts import IDLE_SHARE, SHED, Doubt, MachineUse, machine_use
from hashidrill.core.judging.measure import SECOND
from hashidrill.core.judging.reads import Read
from hashidrill.core.judging.validity import Validity
from hashidrill.core.protocols.abc import Reason
from hashidrill.core.recording.columns import Bools, Floats, Int64s, Operations
from hashidrill.core.recording.reader import Recording

VARIES = 1.5
"""A run that is not starved uses at most this many times the median CPUs of the leaner side."""
OTHERS_APART = 0.15
"""If the shares of other work in two runs lie further apart, they were not disturbed alike. Chosen by judgement."""
FEWEST_S = 5
"""A run with fewer seconds without CPU starvation does not show how much CPU it needs."""
_UNSTEADY = "steady-state"


@dataclass(frozen=True)
class Use:
    """The share of the machine that the run used, and that other work used, during method and recovery (before them, if
    the run did not get that far).
    """

    own: float
    """Median CPUs that the run itself took while nothing starved it; NaN if unknown."""
    starved: bool
    """Whether other work left the run almost no CPU for too much of its time."""
    why: str = ""
    """Why other work disturbed it; "" if it did not."""
    others: float = 0.0
    """The share of the machine that other work took, on average."""

    def alike(self, other: Use) -> bool:
        """Whether other work was about as heavy in both runs."""
        neither = not self.why and not other.why
        return neither or abs(self.others - other.others) <= OTHERS_APART


def use_of(recording: Recording, others: Iterable[Use]) -> Use:
    """How much of the machine the run used. `others` are earlier runs of both sides."""
    lean = min((each.own for each in others if not math.isnan(each.own)), default=math.nan)
    use = _measured(recording)
    if use is None:
        return Use(math.nan, starved=False, why=_said(recording))
    mask = use.starved
    known = use.own[~mask & ~np.isnan(use.own)]
    own = float(np.median(known)) if len(known) >= FEWEST_S else math.nan
    starved = float(mask.mean()) > IN_DOUBT_AT_MOST
    share = float(np.nanmean(use.others)) / use.cpus
    if starved and not _fits(use.cpus, float(np.median(use.others[mask])), lean):
        return Use(own, starved, _starved(use), share)
    return Use(own, starved, _asked_for(recording, use, lean), share)


def never_ready(recording: Recording) -> bool:
    """Whether the agents started but never formed a datacenter, which a bad configuration can cause."""
    return recording.outcome == "crashed" and "ready" in recording.phases and "load" not in recording.phases


def sick_without_fault(recording: Recording) -> bool:
    """Whether the run never reached its method, and other work on the machine is not the reason."""
    unsteady = recording.outcome == _UNSTEADY
    return (unsteady or never_ready(recording)) and not use_of(recording, ()).why


def _measured(recording: Recording) -> MachineUse | None:
    """The machine's use during method and recovery, otherwise during the steady state; None without samples."""
    use, phases = machine_use(recording), recording.phases
    if use is None:
        return None
    span = phases.get("steady", (0, 0))
    if "method" in phases:
        span = measure.method(recording)[0], measure.loads_end_ns(recording)
    use = use.between(*span)
    return use if len(use.t_ns) else None


def _fits(cpus: float, others: float, lean: float) -> bool:
    """Whether the other work would have left enough CPU for the run if it had needed as little as the other side."""
    return others + VARIES * lean <= (1 - IDLE_SHARE) * cpus  # False for NaN


def _starved(use: MachineUse) -> str:
    mask = use.starved
    took = f"{OTHER_WORK} took {float(np.median(use.others[mask])):.1f} of its {use.cpus:g} CPUs"
    return f"{took} and left almost none idle in {float(mask.mean()):.0%} of the time"


def _asked_for(recording: Recording, use: MachineUse, lean: float) -> str:
    """Why a steady state that requires a quiet machine did not hold, if other work is the reason."""
    if recording.outcome != _UNSTEADY:
        return ""
    others = float(np.nanmedian(use.others))
    left = use.cpus - (float(np.nanmedian(use.own)) if math.isnan(lean) else lean)
    would_be, without = {"others": others, "idle": left - others}, {"others": 0.0, "idle": left}
    for condition in recording.experiment.steady_state.require:
        if condition.source != "machine" or condition.what not in would_be:
            continue
        there, alone = would_be[condition.what], without[condition.what]
        if condition.holds(alone, unknown=False) and not condition.holds(there, unknown=True):
            return f"{OTHER_WORK} took {others:.1f} of its {use.cpus:g} CPUs: {condition} did not hold"
    return ""


def _said(recording: Recording) -> str:
    ends = recording.events("end")
    said = str(ends[-1].data.get("error", "")) if ends else ""
    return said if OTHER_WORK in said else ""


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
