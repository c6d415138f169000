"""Who used the machine's CPUs during a run: the run itself, other work, or nobody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hashidrill.core.recording.reader import Bools, Floats, Int64s, Recording

OTHERS_SHARE = 0.25
IDLE_SHARE = 0.05
"""Shares of the machine's CPUs: other work above the first, with less than the second idle, starves the datacenter."""
SUSTAINED_S = 3
"""This many bad seconds in a row are more than a burst."""


@dataclass(frozen=True)
class MachineUse:
    """Samples of one second each, in CPUs: what processes outside of the run used, and what nobody used.

    `cpus` are those that the run may use, a fraction of one where a quota says so.
    """

    cpus: float
    t_ns: Int64s
    others: Floats
    idle: Floats

    @property
    def starved(self) -> Bools:
        """Where other work left almost nothing to the datacenter, for a while."""
        mask = (self.others > OTHERS_SHARE * self.cpus) & (self.idle < IDLE_SHARE * self.cpus)
        for first, last in runs_of(mask):
            mask[first : last + 1] = last - first + 1 >= SUSTAINED_S
        return np.asarray(mask, np.bool_)

    @property
    def own(self) -> Floats:
        """What the run itself used: its agents, clients and load generator."""
        return np.maximum(self.cpus - self.others - self.idle, 0.0)

    def between(self, start_ns: int, end_ns: int) -> MachineUse:
        """The samples in [start_ns, end_ns)."""
        inside = (self.t_ns >= start_ns) & (self.t_ns < end_ns)
        return MachineUse(self.cpus, self.t_ns[inside], self.others[inside], self.idle[inside])


def machine_use(recording: Recording) -> MachineUse | None:
    """None where it was not sampled: in a datacenter that is not ours, and in old recordings."""
    if not {"machine.others", "machine.idle"} <= set(recording.signals):
        return None
    machine = recording.run.get("machine", {})
    cpus = machine.get("usable_cpus") or machine.get("cpus") or 1
    others, idle = recording.series("machine.others"), recording.series("machine.idle")
    count = min(len(others), len(idle))  # both of each sample, in the same order
    return MachineUse(cpus, others.t_ns[:count], others.value[:count], idle.value[:count])


def runs_of(mask: Bools) -> Iterator[tuple[int, int]]:
    """First and last index of each run of True."""
    edges = np.diff(np.concatenate(([0], np.asarray(mask, np.int8), [0])))
    stops = np.flatnonzero(edges == -1) - 1
    yield from zip(np.flatnonzero(edges == 1).tolist(), stops.tolist(), strict=True)
