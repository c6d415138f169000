"""A rehearsal's recording as a run in which the fault ended with the last act, and the loads before the real revert.

So the experiment's own hypotheses say whether users are back, and nothing that came after the runbook helps it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from hashidrill.core.errors import RecordingError
from hashidrill.core.recording.journal import Entry
from hashidrill.core.recording.reader import Recording

_ENDS = ("fault.reverted", "fault.gone", "fault.ended", "fault.still", "fault.faded", "fault.undone")


class AsHeld(Recording):
    """Without what observers said just before the act: a fault that faded is judged by itself, and one whose observer
    never answered spoils nothing.
    """

    @cached_property
    def journal(self) -> list[Entry]:
        return [entry for entry in super().journal if entry.event != "fault.faded"]


class AfterTheAct(AsHeld):
    """`acted_ns`: when the last act was done; `until_ns`: when whoever followed the runbook left."""

    def __init__(self, recording: Recording, acted_ns: int, until_ns: int) -> None:
        """Raises RecordingError."""
        super().__init__(recording.path)
        self._acted_ns, self._until_ns = acted_ns, until_ns

    @cached_property
    def journal(self) -> list[Entry]:
        """With the end of each fault that lasted, and of the method, moved to the act."""
        entries = super().journal
        begun = {e.data["fault_id"] for e in entries if e.event == "fault.intent" and e.t_ns < self._acted_ns}
        moved = [self._moved(entry, begun) for entry in entries]
        return sorted((entry for entry in moved if entry is not None), key=lambda entry: entry.t_ns)

    def _moved(self, entry: Entry, begun: set[str]) -> Entry | None:
        late = entry.t_ns > self._acted_ns
        if entry.event in _ENDS and late and entry.data["fault_id"] in begun:
            kept = entry.event in {"fault.reverted", "fault.gone", "fault.ended"}
            return replace(entry, t_ns=self._acted_ns) if kept else None
        if entry.event in {"mark.end", "clock.goes"} and late:
            return replace(entry, t_ns=self._acted_ns)
        if entry.event == "phase" and entry.data["phase"] == "recovery":
            return replace(entry, t_ns=self._acted_ns)
        if entry.event == "phase" and entry.data["phase"] == "quiesce":
            return replace(entry, t_ns=self._until_ns)
        return entry


def after_the_act(recording: Recording, acted_ns: int, until_ns: int) -> AfterTheAct:
    """Raises RecordingError for a recording whose times make no sense."""
    if until_ns < acted_ns:
        raise RecordingError(f"{recording.path}: whoever followed the runbook left before the act was done")
    return AfterTheAct(recording, acted_ns, until_ns)
