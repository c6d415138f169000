"""Writes a recording during its run: operations, samples, final reads and run.json.

The engine sees a failed write at once, as `failure`, and again when it closes the recording: a recording that lacks
its end must never look like one of a run that ended well but early.
"""

from __future__ import annotations  # sqlite3 is loaded on first use

import contextlib
import json
import os
import queue
import re
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, cast

from hashidrill.core.errors import RecordingError
from hashidrill.core.protocols.abc import Detail, Operation, Sample
from hashidrill.core.recording.journal import storable
from hashidrill.core.util.files import private, private_folder, write_whole
from hashidrill.core.util.redaction import Redactor

PREFIX = "detail_"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,59}")
_TYPES = {str: "TEXT", bool: "INTEGER", int: "INTEGER", float: "REAL"}
KEY = "operation_id"


def table_of(detail: Detail) -> str:
    """The name of the detail's table. Raises ValueError if the name or a field is not a plain name."""
    names = [detail.table, *detail.fields]
    if odd := [name for name in names if not is_name(name) or name == KEY]:
        raise ValueError(f"the names of a detail and its fields must be like lock_index, not {odd[0]!r}")
    return PREFIX + detail.table


def is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def is_table(name: object) -> bool:
    """Whether the name belongs to a table of details: only such names may go into an SQL statement."""
    return isinstance(name, str) and name.startswith(PREFIX) and is_name(name)


class Tables:
    """The tables of details in the database of a running run."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._columns: dict[str, dict[str, None]] = {}

    def insert(self, operation: int | None, detail: Detail, clean: Callable[[str], Any]) -> None:
        """Inserts the row of one operation; `clean` redacts each text."""
        table = table_of(detail)
        values = {name: clean(value) if isinstance(value, str) else value for name, value in detail.fields.items()}
        self._make(table, values)
        columns = ", ".join(f'"{name}"' for name in (KEY, *values))
        marks = ", ".join("?" * (1 + len(values)))
        statement = f'INSERT INTO "{table}" ({columns}) VALUES ({marks})'  # noqa: S608 - plain names, see table_of
        self._database.execute(statement, (operation, *values.values()))

    def _make(self, table: str, values: dict[str, Any]) -> None:
        if table not in self._columns:
            self._database.execute(f'CREATE TABLE IF NOT EXISTS "{table}" ("{KEY}" INTEGER PRIMARY KEY)')
            there = self._database.execute(f'PRAGMA table_info("{table}")').fetchall()
            self._columns[table] = dict.fromkeys(row[1] for row in there)
        for name in [name for name in values if name not in self._columns[table]]:
            kind = _TYPES.get(type(values[name]), "")
            self._database.execute(f'ALTER TABLE "{table}" ADD COLUMN "{name}" {kind}')
            self._columns[table][name] = None


DATABASE_NAME = "recording.sqlite"
RUN_NAME = "run.json"
RESOLVED_NAME = "resolved.json"
FORMAT = 4
"""The format of recordings. It is in `PRAGMA user_version`, in run.json and in the journal's `run` line."""
TABLES = ("operations", "samples", "final_reads")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS operations (
    id INTEGER PRIMARY KEY, load TEXT NOT NULL,
    intended_ns INTEGER NOT NULL, start_ns INTEGER NOT NULL, end_ns INTEGER NOT NULL,
    outcome TEXT NOT NULL CHECK (outcome IN ('ok', 'fail', 'unknown')),
    key TEXT NOT NULL, value TEXT NOT NULL, status INTEGER NOT NULL, error TEXT NOT NULL,
    reason TEXT NOT NULL, detail TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS samples (
    signal TEXT NOT NULL, t_ns INTEGER NOT NULL, value REAL, text TEXT NOT NULL, host TEXT NOT NULL,
    ok INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS final_reads (load TEXT NOT NULL, key TEXT NOT NULL, value TEXT);
CREATE INDEX IF NOT EXISTS operations_by_load ON operations (load, intended_ns);
CREATE INDEX IF NOT EXISTS samples_by_signal ON samples (signal, t_ns);
"""
_INSERT = {
    "operations": "INSERT INTO operations VALUES (NULL,?,?,?,?,?,?,?,?,?,?,?)",
    "samples": "INSERT INTO samples VALUES (?,?,?,?,?,?)",
    "final_reads": "INSERT INTO final_reads VALUES (?,?,?)",
}
_FOREIGN = {"operations": (5, 6), "samples": (3,), "final_reads": (1, 2)}
"""The columns that hold text from outside: key and value, text, key and value."""
_ERROR = 8
_BATCH = 5000
RESERVE_NAME = "reserve"
RESERVE_BYTES = 256 * 1024
"""Disk space that is released when the disk is full, for the entries about faults in force, run.json and `end`."""

Row = tuple[Any, ...]
Item = tuple[str, Row, "Detail | None"]


def write_run(path: Path, info: Mapping[str, Any]) -> None:
    """Replaces run.json at once: a reader sees either the old or the new content. Raises OSError."""
    write_whole(path / RUN_NAME, json.dumps(info, indent=2, default=str) + "\n")


def read_run(path: Path) -> dict[str, Any] | None:
    """The content of run.json; empty if it is missing, None if it is not readable."""
    try:
        loaded = storable(json.loads((path / RUN_NAME).read_bytes()))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError):
        return None
    return loaded if isinstance(loaded, dict) else None


class RecordingWriter:
    """Writes operations, samples and final reads in batches, in a thread of its own.

    `written` counts the rows received, by table; `failure` is the error that stopped the writer, if any.
    """

    def __init__(self, path: Path, redactor: Redactor | None = None) -> None:
        self.path = path
        self._redactor = redactor or Redactor()
        self.written: Counter[str] = Counter(dict.fromkeys(TABLES, 0))
        self.failure: BaseException | None = None
        private_folder(path)
        self._queue: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        try:
            private(path / DATABASE_NAME, "ab").close()  # SQLite gives its other files the permissions of this one
            with private(path / RESERVE_NAME, "wb") as reserve:
                os.posix_fallocate(reserve.fileno(), 0, RESERVE_BYTES)
        except OSError as failure:
            self.failure = failure
        self._thread = threading.Thread(target=self._drain, name="recording", daemon=True)
        self._thread.start()

    def operation(self, op: Operation) -> None:
        table = "" if op.detail is None else table_of(op.detail)
        *row, reason = op.plain
        self._put("operations", (*row, str(reason), table), op.detail)
        if table:
            self.written[table] += 1

    def sample(self, t_ns: int, sample: Sample) -> None:
        self._put("samples", (sample.signal, t_ns, sample.value, sample.text, sample.host, int(sample.ok)))

    def final_reads(self, load: str, values: Mapping[str, str | None]) -> None:
        for key, value in values.items():
            self._put("final_reads", (load, key, value))

    def write_run(self, info: Mapping[str, Any]) -> None:
        write_run(self.path, self._redactor.clean(info))

    def raise_failure(self) -> None:
        if self.failure is not None:
            raise RecordingError(f"{self.path}: the recording could not be written: {self.failure}")

    def close(self) -> None:
        """Writes what is left. Raises RecordingError if something could not be written."""
        self._queue.put(None)
        self._thread.join()
        self._give_up_reserve()
        self.raise_failure()

    def _put(self, table: str, row: Row, detail: Detail | None = None) -> None:
        self.written[table] += 1
        self._queue.put((table, row, detail))

    def _drain(self) -> None:
        try:
            with contextlib.closing(sqlite3.connect(self.path / DATABASE_NAME, isolation_level=None)) as database:
                self._drain_into(database)
        except BaseException as failure:  # noqa: BLE001 - handed to the engine, which ends the run for it
            self.failure = self.failure or failure
            self._give_up_reserve()

    def _give_up_reserve(self) -> None:
        (self.path / RESERVE_NAME).unlink(missing_ok=True)

    def _drain_into(self, database: sqlite3.Connection) -> None:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=OFF")  # only the journal must survive a crash of the machine
        database.executescript(_SCHEMA)
        database.execute(f"PRAGMA user_version={FORMAT}")
        tables = Tables(database)
        for batch in self._batches():
            database.execute("BEGIN")
            for (table, detailed), items in groupby(batch, key=_alike):
                if not detailed:  # most rows: one call for all of them takes a third of the CPU
                    database.executemany(_INSERT[table], [self._stored(table, row) for _, row, _ in items])
                    continue
                for _, row, detail in items:
                    done = database.execute(_INSERT[table], self._stored(table, row))
                    tables.insert(done.lastrowid, cast("Detail", detail), self._known)
            database.execute("COMMIT")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        database.execute("PRAGMA journal_mode=DELETE")

    def _known(self, value: Any) -> Any:
        return storable(self._redactor.known(value) if self._redactor.secrets else value)

    def _stored(self, table: str, row: Row) -> Row:
        row = self._clean(table, row)
        return tuple([each if not isinstance(each, str) or each.isascii() else storable(each) for each in row])

    def _clean(self, table: str, row: Row) -> Row:
        if not self._redactor.secrets and (table != "operations" or not row[_ERROR]):
            return row
        columns = list(row)
        for column in _FOREIGN[table]:
            if columns[column]:
                columns[column] = self._redactor.known(columns[column])
        if table == "operations" and columns[_ERROR]:
            columns[_ERROR] = self._redactor.text(columns[_ERROR])
        return tuple(columns)

    def _batches(self) -> Iterator[list[Item]]:
        item: Item | None = self._queue.get()
        while item is not None:
            batch = [item]
            with contextlib.suppress(queue.Empty):
                while len(batch) < _BATCH and (item := self._queue.get_nowait()) is not None:
                    batch.append(item)
            yield batch
            if item is not None:
                item = self._queue.get()


def _alike(item: Item) -> tuple[str, bool]:
    table, _, detail = item
    return table, detail is not None
