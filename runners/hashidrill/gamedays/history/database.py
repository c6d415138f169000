"""The SQLite file: its tables, and what is said when it cannot be used.

Write-ahead logging lets a run be stored while another process reads or stores. A document (an experiment, the
configuration of all agents) that many runs share is kept once, by its digest.
"""

from __future__ import annotations

import contextlib
import shlex
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from hashidrill.core.errors import HashidrillError
from hashidrill.core.util.files import private, private_folder

VERSION = 1
"""`PRAGMA user_version` of the tables below."""
WAITS_S = 5.0
"""How long a process waits for another one that writes."""
_GAP_S = 0.05

_TABLES = """
CREATE TABLE documents (digest TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE runs (
    id TEXT PRIMARY KEY, experiment TEXT NOT NULL, variant TEXT NOT NULL, datacenter TEXT NOT NULL,
    began_s REAL NOT NULL, ended_s REAL NOT NULL,
    verdict TEXT NOT NULL CHECK (verdict IN ('PASS', 'FAIL', 'INVALID')), outcome TEXT NOT NULL,
    path TEXT NOT NULL, hashidrill TEXT NOT NULL, title TEXT NOT NULL, conditions TEXT NOT NULL,
    invalid TEXT NOT NULL, expectations TEXT NOT NULL, versions TEXT NOT NULL, machine TEXT NOT NULL,
    asked TEXT NOT NULL REFERENCES documents, config TEXT NOT NULL REFERENCES documents);
CREATE INDEX runs_by_series ON runs (experiment, variant, datacenter, ended_s);
CREATE TABLE figures (
    run TEXT NOT NULL REFERENCES runs, place INTEGER NOT NULL, name TEXT NOT NULL, unit TEXT NOT NULL, value REAL,
    floor REAL NOT NULL, PRIMARY KEY (run, name)) WITHOUT ROWID;
CREATE TABLE days (
    id TEXT PRIMARY KEY, gameday TEXT NOT NULL, title TEXT NOT NULL, began_s REAL NOT NULL, ended_s REAL NOT NULL,
    verdict TEXT NOT NULL CHECK (verdict IN ('PASS', 'FAIL', 'INVALID')), outcome TEXT NOT NULL, path TEXT NOT NULL);
CREATE INDEX days_by_name ON days (gameday, ended_s);
CREATE TABLE day_runs (day TEXT NOT NULL REFERENCES days, run TEXT NOT NULL, PRIMARY KEY (day, run)) WITHOUT ROWID;
"""


class HistoryError(HashidrillError):
    """The history cannot be read or written; the message says what to do."""


@contextlib.contextmanager
def opened(file: Path, *, waits_s: float = WAITS_S) -> Iterator[sqlite3.Connection]:
    """The database, made if it is missing. Raises HistoryError, in the block as well."""
    try:
        private_folder(file.parent)
        private(file, "ab").close()  # SQLite gives its other files the permissions of this one
        with contextlib.closing(sqlite3.connect(file, timeout=waits_s, isolation_level=None)) as database:
            _prepare(database, file, waits_s)
            yield database
    except (OSError, sqlite3.Error) as error:
        raise HistoryError(why(file, error)) from None


def _prepare(database: sqlite3.Connection, file: Path, waits_s: float) -> None:
    version = _version(database)
    if version not in {0, VERSION}:
        raise HistoryError(
            f"{file}: another hashidrill wrote this history (version {version}; this one knows {VERSION});"
            " use that hashidrill, or another file with --db"
        )
    if database.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        # SQLite does not wait for others when it changes the mode
        _patiently(lambda: database.execute("PRAGMA journal_mode=WAL").fetchone(), waits_s)
    database.execute("PRAGMA synchronous=NORMAL")
    if version == 0:
        _make_tables(database)


def _make_tables(database: sqlite3.Connection) -> None:
    """In one transaction, and once: another process may have been quicker."""
    with transaction(database):
        if _version(database) == 0:
            for statement in _TABLES.split(";\n"):
                if statement.strip():
                    database.execute(statement)
            database.execute(f"PRAGMA user_version={VERSION}")


@contextlib.contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """All of the block is stored, or nothing of it."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


def _version(database: sqlite3.Connection) -> int:
    return int(database.execute("PRAGMA user_version").fetchone()[0])


def _patiently(
    do: Callable[[], object],
    waits_s: float,
    *,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    deadline = now() + waits_s
    while True:
        try:
            do()
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or now() >= deadline:
                raise
            sleep(_GAP_S)
        else:
            return


def why(file: Path, error: Exception) -> str:
    """What is wrong with the file, and what to do about it, in one line."""
    text = (getattr(error, "strerror", None) or str(error)).lower()
    quoted = shlex.quote(str(file))
    if "locked" in text or "busy" in text:
        done = "another process writes to it: try again, or see who does with `fuser " + quoted + "`"
    elif "full" in text or "no space" in text:
        done = "the disk is full: make room"
    elif "malformed" in text or "not a database" in text or "no such table" in text or "no such column" in text:
        done = f"it is damaged: move it away (`mv {quoted} {quoted}.damaged`); the next run begins a new one"
    elif "readonly" in text or "read-only" in text or "permission" in text or "unable to open" in text:
        done = "it cannot be written by this user: name another file with --db or HASHIDRILL_HISTORY"
    else:
        done = "name another file with --db or HASHIDRILL_HISTORY"
    return f"the history {file} cannot be used ({text}): {done}"
