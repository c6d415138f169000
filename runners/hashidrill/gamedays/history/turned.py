"""What is done at the end of a run: store it, and tell of a verdict that turned from PASS to FAIL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hashidrill.core.errors import HashidrillError
from hashidrill.core.judging.verdict import RunVerdict
from hashidrill.core.recording.reader import Recording
from hashidrill.gamedays.history.changes import Changed, changed
from hashidrill.gamedays.history.database import opened
from hashidrill.gamedays.history.model import Run, Turn
from hashidrill.gamedays.history.notify import message, send
from hashidrill.gamedays.history.place import history_file
from hashidrill.gamedays.history.store import Store, record_day, record_run

Tell = Callable[[str], None]


def _nobody(_turn: Turn) -> None:
    """Says it to nobody."""


def keep(
    recording: Recording,
    verdict: RunVerdict,
    *,
    webhook: str | None,
    tell: Tell,
    turned: Callable[[Turn], None] = _nobody,
) -> Turn | None:
    """Of a run that ended. The turn is told once, however often the run is kept.

    `turned` gets it before the webhook, which may take long. Raises KeyboardInterrupt alone.
    """
    stored = record_run(recording, verdict=verdict, tell=tell)
    if stored is None or stored.turn is None:
        return None
    turned(stored.turn)
    _told(stored.turn, webhook, tell)
    return stored.turn


def keep_day(folder: Path, *, webhook: str | None, tell: Tell, turned: Callable[[Turn], None] = _nobody) -> Turn | None:
    """As `keep`, of a game day."""
    stored = record_day(folder, tell=tell)
    if stored is None or stored.turn is None:
        return None
    turned(stored.turn)
    _told(stored.turn, webhook, tell)
    return stored.turn


def _told(turn: Turn, webhook: str | None, tell: Tell) -> None:
    if webhook is not None:
        send(webhook, message(turn, _changed(turn)), tell=tell)


def _changed(turn: Turn) -> Changed | None:
    """What changed since it passed; None for a day, or where the history does not read."""
    if not isinstance(turn.now, Run):
        return None
    try:
        with opened(history_file()) as database:
            return changed(Store(database).runs(turn.now.series, last=200), turn.now)
    except HashidrillError:
        return None
