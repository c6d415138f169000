"""The recording of a game: sealed while the game runs, and opened by the keeper once the engine has ended.

The engine writes lines of the journal, the database and run.json encrypted (hashidrill.gamedays.training.seal). The
keeper holds the files that the runner writes, decrypts all files, and adds what only the keeper knows: its own
journal entries, and the checksums of the decrypted files.
"""

import base64
import contextlib
import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hashidrill.core.recording.journal import Entry, Journal, entry_of, to_line
from hashidrill.core.recording.provenance import HYPOTHESES_NAME
from hashidrill.core.recording.reader import EXPERIMENT_NAME
from hashidrill.core.recording.seal import seal
from hashidrill.core.recording.writer import DATABASE_NAME, RESOLVED_NAME, RUN_NAME, RecordingWriter
from hashidrill.core.util.files import JOURNAL_NAME, write_whole
from hashidrill.core.util.redaction import Redactor
from hashidrill.gamedays.training.seal import Key, Sealer

_HELD = (EXPERIMENT_NAME, RESOLVED_NAME, HYPOTHESES_NAME, RUN_NAME)


class SealedJournal(Journal):
    """A journal in which each line is an encrypted message."""

    def __init__(self, *arguments: Any, sealer: Sealer, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._sealer = sealer

    def _append(self, line: bytes) -> None:
        super()._append(base64.b64encode(self._sealer(line)) + b"\n")


class SealedWriter(RecordingWriter):
    """Keeps its database in memory, and encrypts it as one message on closing."""

    def __init__(self, path: Path, redactor: Redactor | None = None, *, sealer: Sealer) -> None:
        self._sealer = sealer
        super().__init__(path, redactor)

    def write_run(self, info: Mapping[str, Any]) -> None:
        text = json.dumps(self._redactor.clean(info), indent=2, default=str) + "\n"
        write_whole(self.path / RUN_NAME, self._sealer(text.encode()))

    def _drain(self) -> None:
        try:
            with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
                self._drain_into(database)
                write_whole(self.path / DATABASE_NAME, self._sealer(database.serialize()))
        except BaseException as failure:  # noqa: BLE001 - handed to the engine, which ends the run for it
            self.failure = self.failure or failure


@dataclass
class SealedRecording:
    """One recording that the keeper owns. `hold` it before the engine starts, `open` it once the engine has ended."""

    path: Path
    key: Key
    _held: dict[str, bytes] = field(default_factory=dict)

    def hold(self) -> None:
        """Keeps the runner's files only in memory. Raises OSError."""
        for name in _HELD:
            file = self.path / name
            if file.is_file():
                self._held[name] = file.read_bytes()
                file.unlink()

    def open(self, own: Iterable[Entry] = ()) -> None:
        """Decrypts everything in place, and adds the keeper's `own` entries. Files that cannot be opened stay
        unchanged, and count as damage. Raises OSError.
        """
        for name, content in self._held.items():
            if not (self.path / name).is_file():
                write_whole(self.path / name, content)
        for name in (RUN_NAME, DATABASE_NAME):
            file = self.path / name
            if file.is_file():
                with contextlib.suppress(ValueError):
                    write_whole(file, self.key.opened(file.read_bytes()))
        if (self.path / JOURNAL_NAME).is_file():
            self._open_journal(own)

    def _open_journal(self, own: Iterable[Entry]) -> None:
        file = self.path / JOURNAL_NAME
        lines = [self._line(line) for line in file.read_bytes().splitlines(keepends=True)]
        read = [(line, entry_of(line)) for line in lines]
        ends = [entry for _, entry in read if entry is not None and entry.event == "end"]
        body = [(line, entry) for line, entry in read if entry not in ends]
        for mine in own:
            later = (at for at, (_, each) in enumerate(body) if each is not None and each.t_ns > mine.t_ns)
            body.insert(next(later, len(body)), (to_line(mine).encode(), mine))
        text = b"".join(line for line, _ in body)
        write_whole(file, text)
        if ends:
            sealed = seal(self.path)
            ended = [Entry(each.t_ns, each.wall, each.event, {**each.data, "sealed": sealed}) for each in ends]
            write_whole(file, text + b"".join(to_line(each).encode() for each in ended))

    def _line(self, line: bytes) -> bytes:
        try:
            return self.key.opened(base64.b64decode(line, validate=False))
        except ValueError:
            return line
