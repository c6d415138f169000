"""The journal of a run: append-only JSON lines, synced to disk around every fault.

A line that was torn by a crash is the last one, and is dropped on reading. `t_ns` is the run's clock; `wall` is
seconds since the epoch, so that a journal can be laid beside other logs.
"""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import TracebackType

JOURNAL_NAME = "journal.jsonl"


@dataclass(frozen=True)
class Entry:
    """One line: what happened when. `event` is one of the words in `EVENTS`; `data` holds the rest."""

    t_ns: int
    wall: float
    event: str
    data: dict[str, Any] = field(default_factory=dict)


EVENTS = {
    "run": "the run began: id, experiment, version, pid",
    "phase": "a phase began: load, start, ready, steady, method, recovery, quiesce, closed",
    "fault.intent": "fault_id, kind, target, undo, step: written and synced before apply",
    "fault.applied": "fault_id: apply returned",
    "fault.proven": "fault_id, evidence: the observer saw the effect",
    "fault.unproven": "fault_id, evidence: the observer did not see it",
    "fault.failed": "fault_id, error: apply raised",
    "fault.reverted": "fault_id: revert returned",
    "fault.gone": "fault_id, evidence: the observer saw that the effect is gone",
    "fault.stuck": "fault_id, error or evidence: it could not be reverted, or is still seen",
    "guardrail": "condition, evidence: a guardrail tripped",
    "steady": "held (bool), evidence: the steady state held, or did not",
    "note": "anything else worth keeping: text",
    "end": "outcome: complete, steady-state, fault, revert, guardrail, interrupted, crashed; error",
}


class Clock:
    """Nanoseconds since the run began, of CLOCK_MONOTONIC (shared by all processes of one machine)."""

    def __init__(self, origin_ns: int | None = None) -> None:
        self.origin_ns = time.monotonic_ns() if origin_ns is None else origin_ns

    def now_ns(self) -> int:
        return time.monotonic_ns() - self.origin_ns


class Journal:
    """Appends entries. `write` returns once the line is in the file, and, with `sync`, on the disk."""

    def __init__(self, path: Path, clock: Clock, on_entry: Callable[[Entry], None] | None = None) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._clock = clock
        self._lock = threading.Lock()
        self._on_entry = on_entry
        self._torn = _ends_torn(path)

    def write(self, event: str, *, sync: bool = False, **data: Any) -> Entry:
        """Append one entry. `sync=True` also waits for the disk: use it for everything a heal depends on."""
        with self._lock:  # the clock is read inside, so that lines are in order of their times
            entry = Entry(self._clock.now_ns(), time.time(), event, data)
            self._append(to_line(entry).encode())
            if sync:
                os.fsync(self._fd)
        if self._on_entry is not None:
            self._on_entry(entry)
        return entry

    def _append(self, line: bytes) -> None:
        """All of `line`, or an OSError. What a full disk tore earlier is ended first: it spoils no other line."""
        rest = b"\n" + line if self._torn else line
        self._torn = True
        while rest:
            rest = rest[os.write(self._fd, rest) :]
        self._torn = False

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _ends_torn(path: Path) -> bool:
    """Whether whoever wrote here before was killed in the middle of a line."""
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def to_line(entry: Entry) -> str:
    """The entry as it stands in the file, with its newline."""
    return json.dumps({"t_ns": entry.t_ns, "wall": entry.wall, "event": entry.event, **entry.data}, default=str) + "\n"


def read_journal(path: Path) -> list[Entry]:
    """All whole entries of a journal, in order; a torn last line is left out."""
    return list(_entries(path))


def _entries(path: Path) -> Iterator[Entry]:
    with path.open("rb") as lines:
        for line in lines:
            if not line.endswith(b"\n"):
                return
            try:
                data = json.loads(line)
                yield Entry(data.pop("t_ns"), data.pop("wall"), data.pop("event"), data)
            except (ValueError, KeyError, AttributeError, TypeError):
                continue  # torn by a full disk, or not ours; the lines around it still count
