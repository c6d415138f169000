"""Whether other work on the machine disturbed a run. A disturbed run is only compared with a run that was disturbed in
the same way.

Other work means processes outside of the run. A side whose own agents use up the CPU is not disturbed: the machine had
enough CPU for the need of the leaner side.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hashidrill.core.compare.measured import IN_DOUBT_AT_MOST
from hashidrill.core.errors import OTHER_WORK
from hashidrill.core.judging import measure
from hashidrill.core.judging.doubts import IDLE_SHARE, MachineUse, machine_use
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
    """Whether the other work would have left enough CPU for the run if the run had needed as little as the
    other side.
    """
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
