"""The marks of a run: parts of its method that the experiment gives a name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hashidrill.core.recording.journal import Entry


@dataclass(frozen=True)
class MarkWindow:
    """A part of the method that the experiment gives a name. Nothing was broken for it, so it is no fault."""

    mark: str
    step: int
    begin_ns: int
    end_ns: int | None = None
    """None where the run was over before it."""


def marks_of(begins: Iterable[Entry], ends: Iterable[Entry]) -> list[MarkWindow]:
    """Each `mark.begin` with its `mark.end`, in the order in which they began."""
    ended = {entry.data.get("step"): entry.t_ns for entry in ends}
    return [
        MarkWindow(str(entry.data["mark"]), step, entry.t_ns, ended.get(step))
        for entry in begins
        for step in [entry.data.get("step", -1)]
    ]
