"""How many acknowledged writes a durability check can verify, in total and where a fault could lose them.

A write is checkable if the check looked at its place, and found either its value or nothing. A write that a later one
replaced is not checkable: a store that had lost it would look the same. A check that saw none of the writes
acknowledged while the fault was in force proves nothing about the fault, however many other writes it saw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hashidrill.core.errors import HypothesisInvalidError
from hashidrill.core.judging import measure
from hashidrill.core.judging.measure import NO_FAULT, SECOND
from hashidrill.core.recording.reader import Bools, FaultWindow, MarkWindow, Operations, Recording

BEFORE_S = 5.0
"""Writes acknowledged this many seconds before a fault are at risk too: a majority may not have them on disk yet.

It is twice the longest time for which a leader without followers keeps leading: its lease is 500 ms times
`raft_multiplier`, 5 by default.
"""
ENOUGH = 500
"""This many checkable writes are enough for any number of writes: they show a loss of 1 % with 99.3 % certainty."""


@dataclass(frozen=True)
class Exposed:
    """The acknowledged writes that one step of the method could lose, as (checkable, of).

    `inside`: acknowledged while the step was in force. `before`: in the `BEFORE_S` seconds before that.
    """

    step: str
    inside: tuple[int, int]
    before: tuple[int, int]


@dataclass(frozen=True)
class Coverage:
    """Counts of acknowledged writes, as (checkable, of)."""

    whole: tuple[int, int]
    in_force: tuple[int, int]
    steps: Sequence[Exposed]
    excused: int = 0
    """Acknowledged writes that are rightly gone: neither checkable nor missing."""

    @property
    def figures(self) -> dict[str, Any]:
        return {
            "checkable": self.whole[0],
            "acknowledged_in_force": self.in_force[1],
            "checkable_in_force": self.in_force[0],
            "exposed": [
                f"{each.step}: {each.inside[0]} of {each.inside[1]} inside, {each.before[0]} of {each.before[1]} before"
                for each in self.steps
            ],
        }

    def __str__(self) -> str:
        names = self.steps[0].step if len(self.steps) == 1 else "a fault"
        text = f"{self.whole[0]} of {self.whole[1]} acknowledged writes checkable, "
        quiet = [each for each in self.steps if not each.inside[1]]
        if self.in_force[1]:
            text += f"{self.in_force[0]} of them acknowledged while {names} was in force (of {self.in_force[1]})"
        else:
            text += f"none was acknowledged while {names} was in force"
        # nothing was acknowledged inside, so only the writes just before it were at risk
        return text + "".join(f"; {self._before(each)}" for each in quiet)

    def _before(self, each: Exposed) -> str:
        """The text for a step in which no write was acknowledged, or only writes that were rolled back."""
        seen, of = each.before
        kept = " that was not rolled back" if self.excused else ""
        where = "" if len(self.steps) == 1 else f"none inside {each.step}{kept}, "
        return f"{where}{seen} of the {of} acknowledged in the {BEFORE_S:g}s before it checkable"

    def hold(self, load: str) -> None:
        """Raises HypothesisInvalidError when a fault could have lost writes that the check could not see."""
        for each in self.steps:
            for (seen, of), when in (
                (each.inside, f"while {each.step} was in force"),
                (each.before, f"in the {BEFORE_S:g}s before {each.step}"),
            ):
                needed = min(math.ceil(of / 2), ENOUGH)
                if seen < needed:
                    raise HypothesisInvalidError(
                        f"{of} writes of {load} were acknowledged {when}, but only {seen} of them can be checked"
                        f" (needed: {needed}): the others were overwritten, so whether they were lost is unknown. Give"
                        " more writes their own key (the load's `once`)"
                    )
        if not any(each.inside[1] or each.before[1] for each in self.steps) and not self.excused:
            raise HypothesisInvalidError(
                f"no write of {load} was acknowledged while a fault was in force, nor in the {BEFORE_S:g}s before one,"
                " so the fault had nothing to lose"
            )


def spans_in_force(recording: Recording) -> list[tuple[int, int]]:
    """When any fault was in force, in ns; a `noop` counts only if there is no other fault. Marks do not count.

    Empty if no fault was applied.
    """
    try:
        return [measure.in_force(recording, window) for windows in _steps(recording) for window in windows]
    except HypothesisInvalidError:
        return []


def coverage(
    recording: Recording, ops: Operations, checkable: Bools, excused: Bools | None = None, fault: str | None = None
) -> Coverage:
    """Counts the writes. `checkable` and `excused` are masks over the operations; only acknowledged ones count.

    Every step whose fault was applied counts, proven or not. A `noop` counts only if no other fault was applied, and a
    mark only if `fault` names it. With `fault`, only that step or kind of fault counts. Raises HypothesisInvalidError
    if no fault was applied at all.
    """
    away = np.zeros(len(ops), np.bool_) if excused is None else excused
    counted = ops.ok & ~away
    steps = _steps(recording) if fault is None else [measure.windows(recording, fault)]
    inside_any = np.zeros(len(ops), np.bool_)
    exposed = []
    for windows in steps:
        inside = np.zeros(len(ops), np.bool_)
        for window in windows:
            start_ns, end_ns = measure.in_force(recording, window)
            inside |= (ops.end_ns >= start_ns) & (ops.end_ns < end_ns)
        first_ns = min(measure.in_force(recording, window)[0] for window in windows)
        before = (ops.end_ns >= first_ns - BEFORE_S * SECOND) & (ops.end_ns < first_ns)
        inside_any |= inside
        exposed.append(
            Exposed(_name(recording, windows), _count(counted & inside, checkable), _count(counted & before, checkable))
        )
    return Coverage(
        _count(ops.ok, checkable), _count(counted & inside_any, checkable), exposed, int((ops.ok & away).sum())
    )


def _count(mask: Bools, checkable: Bools) -> tuple[int, int]:
    return int((mask & checkable).sum()), int(mask.sum())


def _steps(recording: Recording) -> list[Sequence[FaultWindow | MarkWindow]]:
    applied = [window for window in recording.faults if window.applied_ns is not None]
    if not applied:
        named = f"; to judge a mark, name it: `fault: {recording.marks[0].mark}`" if recording.marks else ""
        raise HypothesisInvalidError(f"no fault was applied in this run, so no fault can have lost a write{named}")
    real = [window for window in applied if window.kind != NO_FAULT] or applied
    numbers = dict.fromkeys(window.step for window in real)
    return [[window for window in real if window.step == number] for number in numbers]


def _name(recording: Recording, windows: Sequence[FaultWindow | MarkWindow]) -> str:
    first = measure.named(recording, windows[0])
    hosts = len({window.host if isinstance(window, FaultWindow) else "" for window in windows})
    return first if hosts == 1 else f"{first} and {hosts - 1} more"


_SAVE, _RESTORE = ".snapshot.save", ".snapshot.restore"
"""The ends of the kinds of faults that save and restore a snapshot: `consul.snapshot.save`."""


@dataclass(frozen=True)
class Reset:
    """The snapshot `name`: its save began at `saved_ns`, its restore was over by `restored_ns`."""

    name: str
    saved_ns: int
    restored_ns: int

    def may_have_undone(self, ops: Operations) -> Bools:
        """The acknowledged operations that the restore may have undone, with those in flight at save or restore."""
        undone = ops.ok & (ops.end_ns >= self.saved_ns) & (ops.start_ns < self.restored_ns)
        return np.asarray(undone, np.bool_)


def find_reset(recording: Recording, name: str) -> Reset:
    """The run's reset to the snapshot of that name. Raises HypothesisInvalidError unless there is exactly one."""
    restores = [window for window in measure.faults(recording) if window.kind.endswith(_RESTORE)]
    if len(restores) != 1:
        raise HypothesisInvalidError(f"this run restored {len(restores)} snapshots; only one restore can be judged")
    [restore] = restores
    if restore.params.get("snapshot") != name:
        raise HypothesisInvalidError(f"this run restored the snapshot {restore.params.get('snapshot')!r}, not {name!r}")
    kind = restore.kind.removesuffix(_RESTORE) + _SAVE
    saves = [
        window for window in measure.faults(recording) if window.kind == kind and window.params.get("name") == name
    ]
    if len(saves) != 1:
        raise HypothesisInvalidError(f"this run saved the snapshot {name!r} {len(saves)} times; save it once")
    return Reset(name, saves[0].intent_ns, _over(restore))


def _over(restore: FaultWindow) -> int:
    return restore.intent_ns if restore.applied_ns is None else restore.applied_ns
