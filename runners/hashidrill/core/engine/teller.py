"""What carriers and interlocks tell an operator: also in the journal, while a run has one.

They are there before the run begins and after it ended. What they say meanwhile, like that a revert waits for a host
that restarts, belongs to the recording.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hashidrill.core.protocols.events import Bus, Note
from hashidrill.core.recording.journal import Journal
from hashidrill.core.util.redaction import Redactor


class Teller:
    """Call it with a line of text. The journal publishes what it keeps, so nothing is told twice."""

    def __init__(self, events: Bus, redactor: Redactor) -> None:
        self._events, self._redactor = events, redactor
        self._keep: Callable[[str], object] | None = None

    def __call__(self, text: str) -> None:
        if self._keep is not None:
            try:
                self._keep(text)
            except OSError:  # a disk that is full must not end the revert that says so
                pass
            else:
                return
        self._events.publish(Note(text=self._redactor.text(text)))

    @contextmanager
    def kept_in(self, journal: Journal) -> Iterator[None]:
        """Inside the block, whatever is told is a note in that journal."""
        self._keep = lambda text: journal.write("note", sync=True, text=text)
        try:
            yield
        finally:
            self._keep = None
