"""What a restored snapshot may have undone: one of the product's own, or of the one that keeps its data.

All that was acknowledged between the save and the restore may be gone, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hashidrill.core.errors import HypothesisInvalidError
from hashidrill.core.judging import measure

if TYPE_CHECKING:
    from hashidrill.core.recording.reader import Bools, FaultWindow, Operations, Recording

_SAVE, _RESTORE = ".snapshot.save", ".snapshot.restore"
"""How kinds of faults end that save a snapshot, and that restore it: `consul.snapshot.save`."""


@dataclass(frozen=True)
class Reset:
    """The snapshot of this name was saved from `saved_ns` on; its restore was over by `restored_ns`."""

    name: str
    saved_ns: int
    restored_ns: int

    def may_have_undone(self, ops: Operations) -> Bools:
        """Which acknowledged operations it may have undone. One that was under way at either moment counts too."""
        undone = ops.ok & (ops.end_ns >= self.saved_ns) & (ops.start_ns < self.restored_ns)
        return np.asarray(undone, np.bool_)


def find_reset(recording: Recording, name: str) -> Reset:
    """The reset of this run to the snapshot of that name. Raises HypothesisInvalidError unless there is exactly one."""
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
