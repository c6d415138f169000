"""The common base of faults that save or restore a product's state during the run, and the check of their order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeVar

import anyio

from hashidrill.core.errors import FaultError
from hashidrill.core.experiment.model import Name, Step
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.faults.base import BaseFault
from hashidrill.core.protocols.abc import Evidence
from hashidrill.core.protocols.registry import near
from hashidrill.core.units import Duration, shown
from hashidrill.core.util.raft_archive import SnapshotError, restored_name, saved_name

if TYPE_CHECKING:
    from hashidrill.core.experiment.checks import Note
    from hashidrill.core.experiment.model import Experiment

S = TypeVar("S")


class SaveParams(Strict):
    """The name of the snapshot; a later restore refers to it."""

    name: Name
    """The name for a later restore."""


class RestoreParams(Strict):
    """Which snapshot: the `name` of an earlier save."""

    snapshot: Name
    """The `name` of the save."""


class SavesSnapshot(BaseFault[SaveParams]):
    """Writes a marker, saves the state (with the marker) in the recording at once, and removes the marker."""

    once: ClassVar[bool] = True
    Params: ClassVar[type[Strict]] = SaveParams
    files: ClassVar[str] = ""
    """The first part of its files' names."""

    @property
    def file(self) -> Path:
        return self.hosts.artifacts / f"{self.files}{saved_name(self.params.name)}"

    async def proof(
        self, read: Callable[[Path], S], judge: Callable[[S], tuple[bool, str, Mapping[str, float | str]]]
    ) -> Evidence:
        """`judge` returns whether the fault's own marker is in the snapshot, what else it holds, and its figures."""
        asked = "a whole snapshot file with the marker that was there while it was taken"
        try:
            snapshot = await anyio.to_thread.run_sync(read, self.file)
        except SnapshotError as error:
            return Evidence(False, asked, str(error))
        ours, found, figures = judge(snapshot)
        return Evidence(ours, asked, f"{found}, {'with the marker' if ours else 'another marker, or none'}", figures)


class RestoresSnapshot(BaseFault[RestoreParams]):
    """Sets the state back to an earlier save at once, and then saves the state again for the verdicts."""

    once: ClassVar[bool] = True
    sets_back: ClassVar[bool] = True
    Params: ClassVar[type[Strict]] = RestoreParams
    files: ClassVar[str] = ""

    @property
    def file(self) -> Path:
        return self.hosts.artifacts / f"{self.files}{saved_name(self.params.snapshot)}"

    @property
    def restored_file(self) -> Path:
        return self.hosts.artifacts / f"{self.files}{restored_name(self.params.snapshot)}"

    async def saved(self, read: Callable[[Path], S], marker_in: Callable[[S], object]) -> S:
        """The snapshot to restore. Raises FaultError if it cannot be read, or holds no marker of a save."""
        try:
            snapshot = await anyio.to_thread.run_sync(read, self.file)
        except SnapshotError as error:
            raise FaultError(f"there is no snapshot {self.params.snapshot!r} to restore: {error}") from None
        if not marker_in(snapshot):
            raise FaultError(f"{self.file} holds no marker, so {self.kind.replace('restore', 'save')} did not write it")
        return snapshot


def check_snapshots(experiment: Experiment, note: Note, *, save: str, restore: str) -> None:
    """Notes every restore without its save, and every snapshot that would be made twice. `save`, `restore`: kinds."""
    steps = [(index, step) for index, step in enumerate(experiment.method) if isinstance(step, Step)]
    saves: dict[str, Step] = {}
    for index, step in steps:
        if step.fault == save:
            name = step.with_["name"]
            if name in saves:
                note(("method", index, "with", "name"), f"a snapshot {shown(name)} is saved already; rename this one")
            saves.setdefault(name, step)
    for index, step in steps:
        if step.fault == restore and (trouble := _without_save(step, step.with_["snapshot"], saves)):
            note(("method", index, "with", "snapshot"), trouble)


def _without_save(restore: Step, name: str, saves: dict[str, Step]) -> str:
    """The problem with the named snapshot; "" if there is none."""
    save = saves.get(name)
    if save is None:
        return f"no step saves a snapshot {shown(name)}: {near(name, saves)}"
    until = Duration(save.at + save.for_)
    if until <= restore.at:
        return ""
    return f"the snapshot {shown(name)} is saved until {until}, after this begins; let the save end first"
