"""Checks the snapshots of a method: restored without being saved, or saved twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hashidrill.core.experiment.model import Name
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.protocols.registry import near
from hashidrill.core.units import Duration, shown

if TYPE_CHECKING:
    from hashidrill.core.experiment.draft import Draft, Note, Step


class SaveParams(Strict):
    """What the snapshot is called: a later restore names it."""

    name: Name


class RestoreParams(Strict):
    """Which snapshot: the `name` of an earlier save."""

    snapshot: Name


def check_snapshots(draft: Draft, note: Note, *, save: str, restore: str) -> None:
    """Note every restore without its save, and every snapshot that would be made twice. `save`, `restore`: kinds."""
    saves: dict[str, Step] = {}
    for index, step in enumerate(draft.steps):
        if (params := _params(step, save)) is not None and step is not None:
            name = params.name
            if name in saves:
                note(("method", index, "with", "name"), f"a snapshot {shown(name)} is saved already; give it another")
            saves.setdefault(name, step)
    for index, step in enumerate(draft.steps):
        if (params := _params(step, restore)) is None or step is None:
            continue
        if trouble := _without_save(step, params.snapshot, saves, draft, save):
            note(("method", index, "with", "snapshot"), trouble)


def _params(step: Step | None, kind: str) -> Any:
    return step.params if step is not None and step.kind == kind else None


def _without_save(restore: Step, name: str, saves: dict[str, Step], draft: Draft, kind: str) -> str:
    """What is wrong with the snapshot that is named; empty when nothing is, or when it cannot be said."""
    save = saves.get(name)
    if save is None:
        unread = any(
            (step is None and index not in draft.marks) or (step and step.kind == kind and step.params is None)
            for index, step in enumerate(draft.steps)
        )
        return "" if unread else f"no step saves a snapshot {shown(name)}: {near(name, saves)}"
    if save.at is None or save.for_ is None or restore.at is None or save.at + save.for_ <= restore.at:
        return ""
    until = Duration(save.at + save.for_)
    return f"the snapshot {shown(name)} is saved until {until}, after this begins; let that end first"
