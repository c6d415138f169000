"""Checks the snapshots of a method: restored without being saved, or saved twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hashidrill.core.experiment.model import Name, Step
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.protocols.registry import near
from hashidrill.core.units import Duration, shown

if TYPE_CHECKING:
    from hashidrill.core.experiment.checks import Note
    from hashidrill.core.experiment.model import Experiment


class SaveParams(Strict):
    """The name of the snapshot; a later restore refers to it."""

    name: Name
    """The name for a later restore."""


class RestoreParams(Strict):
    """Which snapshot: the `name` of an earlier save."""

    snapshot: Name
    """The `name` of the save."""


def check_snapshots(experiment: Experiment, note: Note, *, save: str, restore: str) -> None:
    """Notes every restore without its save, and every snapshot that would be made twice. `save`, `restore`: kinds."""
    steps = [(index, step) for index, step in enumerate(experiment.method) if isinstance(step, Step)]
    saves: dict[str, Step] = {}
    for index, step in steps:
        if step.fault == save:
            name = step.with_["name"]
            if name in saves:
                note(("method", index, "with", "name"), f"a snapshot {shown(name)} is saved already; give it another")
            saves.setdefault(name, step)
    for index, step in steps:
        if step.fault == restore and (trouble := _without_save(step, step.with_["snapshot"], saves)):
            note(("method", index, "with", "snapshot"), trouble)


def _without_save(restore: Step, name: str, saves: dict[str, Step]) -> str:
    """What is wrong with the named snapshot; "" if nothing is."""
    save = saves.get(name)
    if save is None:
        return f"no step saves a snapshot {shown(name)}: {near(name, saves)}"
    until = Duration(save.at + save.for_)
    if until <= restore.at:
        return ""
    return f"the snapshot {shown(name)} is saved until {until}, after this begins; let that end first"
