"""A second revert, without load, for faults that could not be reverted while the loads ran.

A datacenter that its load has made sick may refuse what a revert needs, like a new voter. The run has ended by then and
proves nothing; this is about leaving nothing in force.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hashidrill.core.engine.settling import open_faults, settle
from hashidrill.core.errors import HashidrillError
from hashidrill.core.recording.journal import read_journal

if TYPE_CHECKING:
    from pathlib import Path

    from hashidrill.core.engine.run_state import Run


async def revert_again(running: Run, journal: Path, error: str) -> tuple[str, str]:
    """(outcome, error) of a run that ended because a fault could not be reverted: `fault` if nothing is left in force.

    The loads have stopped. Every fault of the journal that was not proven gone is reverted, the latest first. Whatever
    fails here, the run has yet to be closed: what the journal does not call gone counts as in force.
    """
    try:
        left = open_faults(read_journal(journal))
    except (OSError, HashidrillError):
        return "revert", error
    if not left:
        return "revert", error
    with suppress(OSError):
        running.journal.write("note", text="the loads have stopped; what could not be reverted is reverted again")
    settled = [await _settled(undo, running) for undo in left]
    if not all(settled):
        return "revert", error
    return "fault", f"{error}; without load it was reverted, and proven gone"


async def _settled(undo: dict[str, Any], running: Run) -> bool:
    try:
        return await settle(undo, running.datacenter, running.journal) != "stuck"
    except OSError:  # the journal cannot be written
        return False
