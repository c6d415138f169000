"""Closes the recording of a run in the only safe order: files, seal, then `end`."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import anyio

from hashidrill.core.errors import RecordingError
from hashidrill.core.recording.seal import seal
from hashidrill.core.util.wait import pause

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hashidrill.core.recording.journal import Journal
    from hashidrill.core.recording.writer import Writes

EXIT_CODES = {
    "complete": 0,
    "guardrail": 0,
    "steady-state": 3,
    "unfit": 3,
    "fault": 3,
    "revert": 4,
    "crashed": 1,
    "interrupted": 130,
}
"""Exit codes of the engine's process, by the outcome in `end`. 0 means that the recording is complete and counts."""
_LOOK_EVERY_S = 0.25


async def watch(writer: Writes) -> None:
    """Raises RecordingError as soon as a write fails: there is no point in breaking what is not recorded."""
    while True:
        writer.raise_failure()
        await pause(_LOOK_EVERY_S)


async def close(writer: Writes, journal: Journal, info: Mapping[str, Any], outcome: str, error: str) -> tuple[str, str]:
    """Flush what was recorded, write run.json, seal both, and only then write `end`. Returns its (outcome, error).

    A run whose recording could not be written has crashed, however it went; only a fault that stays in force is worse.
    Raises RecordingError when `end` itself could not be written: the recording then looks like that of a run that died.
    """
    try:
        await anyio.to_thread.run_sync(writer.close)
        ended_at = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        writer.write_run({**info, "outcome": outcome, "error": error, "ended_at": ended_at})
    except (RecordingError, OSError) as failure:
        outcome, error = _unrecorded(outcome, error, str(failure))
    try:
        sealed = await anyio.to_thread.run_sync(seal, writer.path)
        journal.write("end", sync=True, outcome=outcome, error=error, written=dict(writer.written), sealed=sealed)
    except OSError as failure:
        raise RecordingError(f"{writer.path}: the journal could not be closed: {failure}") from None
    return outcome, error


def _unrecorded(outcome: str, error: str, failure: str) -> tuple[str, str]:
    if outcome in {"revert", "crashed"}:
        return outcome, f"{error}; {failure}" if failure not in error else error
    return "crashed", failure
