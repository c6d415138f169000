"""Are users back? By what the experiment calls healthy, from the operations that were recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hashidrill.core.errors import HypothesisInvalidError
from hashidrill.core.experiment.conditions import LOAD_STATISTICS, Condition
from hashidrill.core.experiment.model import Experiment
from hashidrill.core.judging import measure
from hashidrill.core.judging.measure import SECOND
from hashidrill.core.recording.reader import Operations, Recording

WINDOW_S = 2.0
STEP_S = 0.5
FEWEST = 10
"""Operations that a window should hold: a slow load gets longer ones."""
WELL_FOR_S = 5.0
"""How long they must have been well, without a break, when the judged time ends."""
_STOPPED_BELOW = 0.5
"""Of the rate in the steady state: users who no longer come are not well."""


@dataclass(frozen=True)
class Look:
    """One window of the load: what did not hold in it, or nothing."""

    start_ns: int
    end_ns: int
    lacking: tuple[str, ...]


@dataclass(frozen=True)
class Users:
    """How users were over a span, window by window."""

    looks: Sequence[Look]

    @property
    def back_ns(self) -> int | None:
        """From when on they are well until the end; None where they are not, or not for long enough."""
        if not self.looks:
            return None
        last_bad = max((number for number, look in enumerate(self.looks) if look.lacking), default=-1)
        if last_bad + 1 >= len(self.looks):
            return None
        since_ns = self.looks[last_bad + 1].start_ns
        return since_ns if self.looks[-1].end_ns - since_ns >= WELL_FOR_S * SECOND else None


def conditions_of(experiment: Experiment) -> list[Condition]:
    """The conditions of the steady state that are about what users get."""
    loads = experiment.traffic
    return [one for one in experiment.steady_state.require if one.source in loads and one.what in LOAD_STATISTICS]


def users(recording: Recording, start_ns: int, end_ns: int) -> Users | None:
    """None where the experiment says nothing of its loads. Raises HypothesisInvalidError."""
    experiment = recording.experiment
    conditions = conditions_of(experiment)
    if not conditions:
        return None
    ops = {load: recording.operations(load) for load in dict.fromkeys(one.source for one in conditions)}
    usual = {load: _usual_rate(recording, each) for load, each in ops.items()}
    width_s = {load: max(WINDOW_S, FEWEST / rate if rate else WINDOW_S) for load, rate in usual.items()}
    widest_ns = round(max(width_s.values()) * SECOND)
    looks = []
    for begin_ns in range(start_ns, max(start_ns, end_ns - widest_ns) + 1, round(STEP_S * SECOND)):
        lacking = []
        for one in conditions:
            due = ops[one.source].between(begin_ns, begin_ns + widest_ns)
            steered = experiment.traffic[one.source].profile is not None
            lacking.append(_lacks(one, due, widest_ns, 0.0 if steered else usual[one.source]))
        looks.append(Look(begin_ns, begin_ns + widest_ns, tuple(dict.fromkeys(filter(None, lacking)))))
    return Users(looks)


def ever_sick(recording: Recording, start_ns: int, end_ns: int) -> bool:
    """Whether a condition about users failed in that span, or in the last window before its end where it is shorter.

    Each load is looked at in windows of its own: those of a slow load are longer than the time in which somebody acts.
    Raises HypothesisInvalidError.
    """
    experiment = recording.experiment
    for one in conditions_of(experiment):
        ops = recording.operations(one.source)
        usual = _usual_rate(recording, ops)
        width_ns = round(max(WINDOW_S, FEWEST / usual if usual else WINDOW_S) * SECOND)
        steered = experiment.traffic[one.source].profile is not None
        last_ns = end_ns - width_ns
        for begin_ns in range(min(start_ns, last_ns), last_ns + 1, round(STEP_S * SECOND)):
            due = ops.between(begin_ns, begin_ns + width_ns)
            if _lacks(one, due, width_ns, 0.0 if steered else usual):
                return True
    return False


def _usual_rate(recording: Recording, ops: Operations) -> float:
    """Operations per second that were due in the steady state. Raises HypothesisInvalidError."""
    if "steady" not in recording.phases:
        raise HypothesisInvalidError("the run never came to its steady state: nobody knows what is usual")
    start_ns, end_ns = recording.phases["steady"]
    length_s = (end_ns - start_ns) / SECOND
    return len(ops.between(start_ns, end_ns)) / length_s if length_s > 0 else 0.0


def _lacks(condition: Condition, due: Operations, width_ns: int, usual: float) -> str:
    """What does not hold in a window, for a person; nothing where it does. `usual` is 0 where the rate is steered."""
    width_s = width_ns / SECOND
    if len(due) < usual * width_s * _STOPPED_BELOW:
        return f"{condition.source} stopped: {len(due) / width_s:.1f}/s instead of {usual:.1f}/s"
    if not len(due):
        return ""
    value = _value(condition, due, width_s)
    return "" if condition.holds(value, unknown=False) else f"{condition} (measured {value:.3g})"


def _value(condition: Condition, due: Operations, width_s: float) -> float:
    served_s = measure.served_s(due)
    match condition.what:
        case "errors":
            return due.error_share()
        case "rate":
            return float(due.ok.sum()) / width_s
        case "latency.mean":
            return float(served_s.mean())
        case "latency.max":
            return float(np.max(served_s))
        case what:
            return measure.percentile(served_s, float(what.removeprefix("latency.p")))
