"""The SQLite file of the history: stores runs and days, finds them again, and says why it cannot be used.

Write-ahead logging lets a run be stored while another process reads or stores. A document that many runs share (an
experiment, the configuration of all agents) is kept once, by its digest. A recording that is stored twice is one row,
whichever path it has by then. `record_run` and `record_day` never fail: they report what went wrong in one line.
"""

from __future__ import annotations

import contextlib
import json
import math
import shlex
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hashidrill.core.errors import HashidrillError, RecordingError
from hashidrill.core.judging.verdict import RunVerdict, Verdict
from hashidrill.core.recording.reader import Recording
from hashidrill.core.util import safe_json
from hashidrill.core.util.files import private, private_folder
from hashidrill.core.util.redaction import Redactor
from hashidrill.gamedays.history.from_recording import day_document, digest, run_from, when
from hashidrill.gamedays.history.model import Day, Expected, Number, Run, Series, Stored, Turn, history_file

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
    """The problem with the file and a remedy, in one line."""
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


Tell = Callable[[str], None]


def _on_stderr(text: str) -> None:
    sys.stderr.write(f"hashidrill: warning: {text}\n")


def record_run(
    recording_dir: Path | Recording,
    *,
    verdict: RunVerdict | None = None,
    file: Path | None = None,
    tell: Tell = _on_stderr,
    waits_s: float = WAITS_S,
) -> Stored | None:
    """Stores a run at its end. None if that failed; `tell` then receives one line. Raises nothing."""
    with _never_fails(tell, "run"):
        recording = recording_dir if isinstance(recording_dir, Recording) else Recording(recording_dir)
        run = run_from(recording, verdict)
        with opened(file or history_file(), waits_s=waits_s) as database:
            return Store(database).add(run)
    return None


def record_day(
    day_dir: Path, *, file: Path | None = None, tell: Tell = _on_stderr, waits_s: float = WAITS_S
) -> Stored | None:
    """As `record_run`, for a game day: its folder has a report.json. A day that went on is replaced."""
    with _never_fails(tell, "game day"):
        day, runs = _day(day_dir)
        with opened(file or history_file(), waits_s=waits_s) as database:
            return Store(database).add_day(day, runs)
    return None


@contextlib.contextmanager
def _never_fails(tell: Tell, what: str) -> Iterator[None]:
    """A run is worth its recording; the history is a convenience."""
    try:
        yield
    except HashidrillError as error:
        tell(f"this {what} is not in the history: {error}")
    except Exception as error:  # noqa: BLE001 - nothing that goes wrong here may change how a run ends
        tell(f"this {what} is not in the history: {type(error).__name__}: {error}; its recording is whole")


def _day(folder: Path) -> tuple[Day, list[str]]:
    said = Redactor().clean(day_document(folder))
    began_s = when(said["started_at"])
    ended = said.get("ended_at")
    runs = said["runs"] if isinstance(said.get("runs"), list) else []
    recordings = [each["recording"] for each in runs if isinstance(each, dict) and each.get("recording")]
    name, where = str(said.get("name") or folder.name), str(said.get("attached") or "")
    day = Day(
        str(said.get("id") or folder.name),
        f"{name} at {where}" if where else name,
        str(said.get("title") or ""),
        began_s,
        when(ended) if ended else began_s,
        Verdict(said["verdict"]),
        str(said.get("outcome") or ""),
        str(folder.resolve()),
    )
    return day, [Path(str(each)).name for each in recordings]


@dataclass(frozen=True)
class Store:
    """An opened history."""

    database: sqlite3.Connection

    def add(self, run: Run) -> Stored:
        """Raises RecordingError for another run of the same id; sqlite3.Error."""
        asked, config = (json.dumps(each, sort_keys=True, default=str) for each in (run.experiment, run.config))
        row = (
            *(run.id, run.series.experiment, run.series.variant, run.series.datacenter, run.began_s, run.ended_s),
            *(run.verdict.value, run.outcome, run.path, run.hashidrill, run.title, run.conditions),
            *(json.dumps(list(run.invalid)), json.dumps([vars(each) for each in run.expectations])),
            *(json.dumps(run.versions, default=str), json.dumps(run.machine, default=str)),
            *(digest(asked), digest(config)),
        )
        with transaction(self.database):
            known = self.database.execute(
                "SELECT experiment, began_s, path FROM runs WHERE id = ?", (run.id,)
            ).fetchone()
            if known is not None and (known[0] != run.series.experiment or abs(known[1] - run.began_s) > 1):
                raise RecordingError(
                    f"{run.path}: another run with the id {run.id} is in the history ({known[2]}): give this recording"
                    " another name"
                )
            for document in (asked, config):
                self.database.execute("INSERT OR IGNORE INTO documents VALUES (?, ?)", (digest(document), document))
            self.database.execute(f"INSERT OR REPLACE INTO runs VALUES ({', '.join('?' * len(row))})", row)  # noqa: S608 - question marks
            self.database.execute("DELETE FROM figures WHERE run = ?", (run.id,))
            self.database.executemany(
                "INSERT INTO figures VALUES (?, ?, ?, ?, ?, ?)",
                [
                    (run.id, place, each.name, each.unit, each.value if each.measured else None, each.floor)
                    for place, each in enumerate(run.figures.values())
                ],
            )
            turn = self._turn(run) if known is None else None
        return Stored(run.id, known is None, turn)

    def add_day(self, day: Day, runs: Sequence[str]) -> Stored:
        """Raises sqlite3.Error."""
        with transaction(self.database):
            known = self.database.execute("SELECT verdict FROM days WHERE id = ?", (day.id,)).fetchone()
            row = (day.id, day.gameday, day.title, day.began_s, day.ended_s, day.verdict.value, day.outcome, day.path)
            self.database.execute("INSERT OR REPLACE INTO days VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
            self.database.executemany("INSERT OR IGNORE INTO day_runs VALUES (?, ?)", [(day.id, run) for run in runs])
            turn = None
            if day.verdict is Verdict.FAIL and (known is None or known[0] != Verdict.FAIL):
                found = self._days(
                    "WHERE gameday = ? AND id != ? AND verdict != 'INVALID' AND ended_s <= ?"
                    " ORDER BY ended_s DESC LIMIT 1",
                    day.gameday,
                    day.id,
                    day.ended_s,
                )
                if found and found[0].verdict is Verdict.PASS:
                    turn = Turn(day.gameday, day, found[0])
        return Stored(day.id, known is None, turn)

    def _turn(self, run: Run) -> Turn | None:
        if run.verdict is not Verdict.FAIL:
            return None
        found = self.runs(run.series, before=run, counting=True, last=1)
        return Turn(str(run.series), run, found[0]) if found and found[0].verdict is Verdict.PASS else None

    def series(self, experiment: str | None = None) -> list[Series]:
        """All series ever run, or those of one experiment, by name."""
        rows = self.database.execute(
            "SELECT DISTINCT experiment, variant, datacenter FROM runs WHERE ? IS NULL OR experiment = ?"
            " ORDER BY experiment, variant, datacenter",
            (experiment, experiment),
        )
        return [Series(*row) for row in rows]

    def runs(
        self, series: Series | None = None, *, before: Run | None = None, counting: bool = False, last: int = 10_000
    ) -> list[Run]:
        """The last runs, of one series or of all, oldest first; `counting`: without those that are INVALID."""
        where: list[str] = ["1"]
        values: list[Any] = []
        if series is not None:
            where.append("experiment = ? AND variant = ? AND datacenter = ?")
            values += [series.experiment, series.variant, series.datacenter]
        if before is not None:
            where.append("id != ? AND ended_s <= ?")
            values += [before.id, before.ended_s]
        if counting:
            where.append("verdict != 'INVALID'")
        return self._runs(f"WHERE {' AND '.join(where)} ORDER BY ended_s DESC, id DESC LIMIT ?", *values, last)[::-1]

    def run(self, name: str) -> Run:
        """The run with this id, or this beginning of one, or `last`. Raises HistoryError."""
        if name == "last":
            found = self.runs(last=1)
        else:
            start = name.rstrip("/").rpartition("/")[2]
            found = self._runs("WHERE id = ?", start) or self._runs(
                "WHERE substr(id, 1, ?) = ? ORDER BY id LIMIT 3", len(start), start
            )
        if len(found) == 1:
            return found[0]
        several = f": it is the beginning of {', '.join(each.id for each in found)}, ..." if found else ""
        raise HistoryError(f"no one run {name!r} in the history{several}; `hashidrill history list` shows all")

    def days(self, last: int = 10_000) -> list[Day]:
        """The last game days, oldest first."""
        return self._days("ORDER BY ended_s DESC LIMIT ?", last)[::-1]

    def _days(self, where: str, *values: Any) -> list[Day]:
        rows = self.database.execute(f"SELECT * FROM days {where}", values)  # noqa: S608 - our own text
        return [
            Day(id_, gameday, title, began_s, ended_s, Verdict(verdict), outcome, path)
            for id_, gameday, title, began_s, ended_s, verdict, outcome, path in rows
        ]

    def _runs(self, where: str, *values: Any) -> list[Run]:
        rows = self.database.execute(
            f"SELECT runs.*, (SELECT day FROM day_runs WHERE run = runs.id) FROM runs {where}",  # noqa: S608 - our own text
            values,
        ).fetchall()
        return [self._run(row) for row in rows]

    def _run(self, row: Sequence[Any]) -> Run:
        id_, experiment, variant, datacenter, began_s, ended_s, verdict, outcome, path, hashidrill, *rest = row
        title, conditions, invalid, expectations, versions, machine, asked, config, day = rest
        numbers = self.database.execute(
            "SELECT name, unit, value, floor FROM figures WHERE run = ? ORDER BY place", (id_,)
        )
        return Run(
            *(id_, Series(experiment, variant, datacenter), began_s, ended_s, Verdict(verdict), outcome, path),
            hashidrill=hashidrill,
            title=title,
            conditions=conditions,
            invalid=tuple(safe_json.parse(invalid)),
            expectations=tuple(Expected(**each) for each in safe_json.parse(expectations)),
            versions=safe_json.parse(versions),
            machine=safe_json.parse(machine),
            experiment=self._document(asked),
            config=self._document(config),
            figures={
                name: Number(name, unit, math.nan if value is None else value, floor)
                for name, unit, value, floor in numbers
            },
            day=day or "",
        )

    def _document(self, at: str) -> Any:
        found = self.database.execute("SELECT text FROM documents WHERE digest = ?", (at,)).fetchone()
        return safe_json.parse(found[0]) if found else {}
