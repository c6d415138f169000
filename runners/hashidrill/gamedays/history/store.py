"""The SQLite file of the history: stores runs and days, finds them again, and explains why the file cannot be used.

Write-ahead logging lets a run be stored while another process reads or stores. A document that many runs share (an
experiment, the configuration of all agents) is kept once, by its digest. A recording that is stored twice is one row,
even if its path has changed.
"""

import contextlib
import hashlib
import json
import math
import os
import shlex
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

from hashidrill.core.errors import HashidrillError, RecordingError
from hashidrill.core.judging.verdict import Finding, Verdict
from hashidrill.core.util import safe_json
from hashidrill.core.util.files import private, private_folder
from hashidrill.core.util.folders import state_folder

NEVER = "never"
OURS = "local"
"""The datacenter of a run that was not attached to an existing one."""


@dataclass(frozen=True)
class Series:
    """An experiment's repeated runs, which can be compared with each other."""

    experiment: str
    variant: str = ""
    datacenter: str = OURS
    project: str = ""
    """The folder of the project that ran it (hashidrill.core.util.folders.project)."""

    def __str__(self) -> str:
        variant = f" ({self.variant})" if self.variant else ""
        where = f" at {self.datacenter}" if self.datacenter != OURS else ""
        return f"{self.experiment}{variant}{where}"


@dataclass(frozen=True)
class Number:
    """One figure of one run: NaN if it was not measured, infinity for an event that never came.

    `floor` is the size below which a difference means nothing, in the figure's unit; 0 if unknown.
    """

    name: str
    unit: str
    value: float
    floor: float = 0.0

    @property
    def measured(self) -> bool:
        return not math.isnan(self.value)


@dataclass(frozen=True)
class Expected:
    """One expectation of a run, with its verdict."""

    title: str
    finding: str
    text: str


@dataclass(frozen=True, order=True)
class Drilled:
    """A failure mode: a kind of fault and the target that its step names, such as `consul:leader`."""

    kind: str
    on: str

    def __str__(self) -> str:
        return f"{self.kind} on {self.on}"

    @property
    def product(self) -> str:
        """The product; `host` or `client` if the target names one of these."""
        return self.on.partition(":")[0]


@dataclass(frozen=True)
class Run:
    """One run."""

    id: str
    series: Series
    began_s: float
    """Seconds since 1970, like all times here."""
    ended_s: float
    verdict: Verdict
    outcome: str
    path: str
    hashidrill: str = ""
    title: str = ""
    invalid: Sequence[str] = ()
    expectations: Sequence[Expected] = ()
    drilled: Sequence[Drilled] = ()
    """The failure modes that an observer saw in force until their revert."""
    figures: Mapping[str, Number] = field(default_factory=dict)
    versions: Mapping[str, Any] = field(default_factory=dict)
    """The versions of products, tools, Python and the kernel."""
    experiment: Mapping[str, Any] = field(default_factory=dict)
    """The experiment as in its file, without the parts that are only for readers."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The configuration of each agent, by host, as the run started it."""
    machine: Mapping[str, Any] = field(default_factory=dict)
    conditions: str = ""
    """A digest of versions, experiment, configuration and machine: runs with equal digests have no known difference."""
    day: str = ""
    """The game day that it belongs to, if any."""

    @property
    def broken(self) -> list[str]:
        """The broken expectations' titles, and why."""
        found = [each for each in self.expectations if each.finding in {Finding.BROKEN, Finding.FIXED}]
        return [f"{each.title}: {each.text}" for each in found]

    @property
    def word(self) -> str:
        return ended_as(self.verdict, self.outcome)

    @property
    def counts(self) -> bool:
        """Whether the run says anything about the tested product; an INVALID one does not."""
        return self.verdict is not Verdict.INVALID


@dataclass(frozen=True)
class Day:
    """One game day."""

    id: str
    gameday: str
    title: str
    began_s: float
    ended_s: float
    verdict: Verdict
    outcome: str
    path: str
    project: str = ""

    @property
    def word(self) -> str:
        return ended_as(self.verdict, self.outcome)


@dataclass(frozen=True)
class Turn:
    """A verdict that turned from PASS to FAIL: the run or day, and the last earlier one that counted."""

    name: str
    now: Run | Day
    before: Run | Day

    @property
    def experiment(self) -> str:
        """The experiment or game day."""
        return self.now.series.experiment if isinstance(self.now, Run) else self.now.gameday


@dataclass(frozen=True)
class Stored:
    """The result of storing a run or day."""

    id: str
    new: bool
    """Whether the run is new in the history."""
    turn: Turn | None = None


CUT_SHORT = {"interrupted", "crashed", "unfinished"}
"""The outcomes of runs that prove nothing because they did not finish."""


def ended_as(verdict: Verdict, outcome: str) -> str:
    """The verdict in one word: `PASS`, `FAIL`, `INVALID`; or its outcome in `CUT_SHORT`."""
    return outcome if verdict is Verdict.INVALID and outcome in CUT_SHORT else verdict.value


def digest(value: Any) -> str:
    """A digest of plain data: equal data have equal digests."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:24]


def plain(value: float) -> float | str | None:
    """A figure as JSON has it: `never` for infinity, null for NaN."""
    return None if math.isnan(value) else NEVER if math.isinf(value) else value


def from_plain(value: float | str | None) -> float:
    return math.nan if value is None else math.inf if value == NEVER else float(value)


VARIABLE = "HASHIDRILL_HISTORY"
"""The environment variable that names another file."""
DEFAULT = ".local/state/hashidrill/history.sqlite"
"""The default place, below the user's home."""


def history_file() -> Path:
    """`$HASHIDRILL_HISTORY`, or `$XDG_STATE_HOME/hashidrill/history.sqlite`, by default below ~/.local/state."""
    if said := os.environ.get(VARIABLE):
        return Path(said)
    return state_folder() / "history.sqlite"


VERSION = 2
"""`PRAGMA user_version` of the tables below."""
WAITS_S = 5.0
"""How long a process waits for another one that writes."""
_GAP_S = 0.05

_TABLES = """
CREATE TABLE documents (digest TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE runs (
    id TEXT PRIMARY KEY, experiment TEXT NOT NULL, variant TEXT NOT NULL, datacenter TEXT NOT NULL,
    project TEXT NOT NULL, began_s REAL NOT NULL, ended_s REAL NOT NULL,
    verdict TEXT NOT NULL CHECK (verdict IN ('PASS', 'FAIL', 'INVALID')), outcome TEXT NOT NULL,
    path TEXT NOT NULL, hashidrill TEXT NOT NULL, title TEXT NOT NULL, conditions TEXT NOT NULL,
    details TEXT NOT NULL, asked TEXT NOT NULL REFERENCES documents, config TEXT NOT NULL REFERENCES documents);
CREATE INDEX runs_by_series ON runs (experiment, variant, datacenter, project, ended_s);
CREATE INDEX runs_by_end ON runs (ended_s);
CREATE TABLE days (
    id TEXT PRIMARY KEY, gameday TEXT NOT NULL, title TEXT NOT NULL, began_s REAL NOT NULL, ended_s REAL NOT NULL,
    verdict TEXT NOT NULL CHECK (verdict IN ('PASS', 'FAIL', 'INVALID')), outcome TEXT NOT NULL, path TEXT NOT NULL,
    project TEXT NOT NULL);
CREATE INDEX days_by_name ON days (gameday, project, ended_s);
CREATE TABLE day_runs (run TEXT NOT NULL, day TEXT NOT NULL REFERENCES days, PRIMARY KEY (run, day)) WITHOUT ROWID;
"""
_BRIEF = (
    "id, experiment, variant, datacenter, project, began_s, ended_s, verdict, outcome, path, hashidrill, title,"
    " conditions, (SELECT day FROM day_runs WHERE run = runs.id)"
)
"""The columns for a list, which reads no documents."""


class HistoryError(HashidrillError):
    """The history cannot be read or written; the message says what to do."""


@contextlib.contextmanager
def opened(file: Path, *, waits_s: float = WAITS_S) -> Iterator[sqlite3.Connection]:
    """The database, created if it is missing. Raises HistoryError, also for errors inside the block."""
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
    """Creates the tables in one transaction, unless another process has created them already."""
    with transaction(database):
        if _version(database) == 0:
            for statement in _TABLES.split(";\n"):
                if statement.strip():
                    database.execute(statement)
            database.execute(f"PRAGMA user_version={VERSION}")


@contextlib.contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Stores either all changes of the block or none."""
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


def _patiently(do: Callable[[], object], waits_s: float) -> None:
    deadline = time.monotonic() + waits_s
    while True:
        try:
            do()
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() >= deadline:
                raise
            time.sleep(_GAP_S)
        else:
            return


def why(file: Path, error: Exception) -> str:
    """The problem with the file and a remedy, in one line."""
    text = (getattr(error, "strerror", None) or str(error)).lower()
    quoted = shlex.quote(str(file))
    if "locked" in text or "busy" in text:
        done = "another process writes to it: try again, or find that process with `fuser " + quoted + "`"
    elif "full" in text or "no space" in text:
        done = "the disk is full: make room"
    elif "malformed" in text or "not a database" in text or "no such table" in text or "no such column" in text:
        done = f"it is damaged: move it away (`mv {quoted} {quoted}.damaged`); the next run begins a new one"
    elif "readonly" in text or "read-only" in text or "permission" in text or "unable to open" in text:
        done = "it cannot be written by this user: name another file with --db or HASHIDRILL_HISTORY"
    else:
        done = "name another file with --db or HASHIDRILL_HISTORY"
    return f"the history {file} cannot be used ({text}): {done}"


@dataclass(frozen=True)
class Store:
    """An opened history. `project`: the folder whose runs and days it lists; None for all projects."""

    database: sqlite3.Connection
    project: str | None = None

    def add(self, run: Run) -> Stored:
        """Adds a run. Raises RecordingError for another run with the same id, and sqlite3.Error."""
        asked, config = (json.dumps(each, sort_keys=True, default=str) for each in (run.experiment, run.config))
        details = {
            "invalid": list(run.invalid),
            "expectations": [vars(each) for each in run.expectations],
            "drilled": [(each.kind, each.on) for each in run.drilled],
            "versions": run.versions,
            "machine": run.machine,
            "figures": [(each.name, each.unit, plain(each.value), each.floor) for each in run.figures.values()],
        }
        row = (
            *(run.id, *astuple(run.series), run.began_s, run.ended_s, run.verdict.value, run.outcome, run.path),
            *(run.hashidrill, run.title, run.conditions, json.dumps(details, default=str)),
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
            turn = self._turn(run) if known is None else None
        return Stored(run.id, known is None, turn)

    def add_day(self, day: Day, runs: Sequence[str]) -> Stored:
        """Adds a game day and its runs. Raises sqlite3.Error."""
        with transaction(self.database):
            known = self.database.execute("SELECT verdict FROM days WHERE id = ?", (day.id,)).fetchone()
            self.database.execute("INSERT OR REPLACE INTO days VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", astuple(day))
            self.database.executemany("INSERT OR IGNORE INTO day_runs VALUES (?, ?)", [(run, day.id) for run in runs])
            turn = None
            if day.verdict is Verdict.FAIL and (known is None or known[0] != Verdict.FAIL):
                found = self._days(
                    "WHERE gameday = ? AND project = ? AND id != ? AND verdict != 'INVALID' AND ended_s <= ?"
                    " ORDER BY ended_s DESC LIMIT 1",
                    day.gameday,
                    day.project,
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
        """All series, or the series of one experiment, sorted by name."""
        rows = self.database.execute(
            "SELECT DISTINCT experiment, variant, datacenter, project FROM runs WHERE (? IS NULL OR experiment = ?)"
            " AND (? IS NULL OR project = ?) ORDER BY experiment, variant, datacenter, project",
            (experiment, experiment, self.project, self.project),
        )
        return [Series(*row) for row in rows]

    def runs(
        self,
        series: Series | None = None,
        *,
        before: Run | None = None,
        counting: bool = False,
        last: int = 10_000,
        brief: bool = False,
    ) -> list[Run]:
        """The last runs, of one series or of all, oldest first; `counting`: without INVALID runs.

        `brief` skips the parts that are only in documents (figures, versions, configuration, expectations), which take
        long to read.
        """
        where: list[str] = ["1"]
        values: list[Any] = []
        if series is not None:
            where.append("experiment = ? AND variant = ? AND datacenter = ? AND project = ?")
            values += astuple(series)
        elif self.project is not None:
            where.append("project = ?")
            values.append(self.project)
        if before is not None:
            where.append("id != ? AND ended_s <= ?")
            values += [before.id, before.ended_s]
        if counting:
            where.append("verdict != 'INVALID'")
        order = f"WHERE {' AND '.join(where)} ORDER BY ended_s DESC, id DESC LIMIT ?"
        return self._runs(order, *values, last, brief=brief)[::-1]

    def run(self, name: str) -> Run:
        """The run whose id is, or alone begins with, `name`; or the `last` run. Raises HistoryError."""
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
        raise HistoryError(f"no single run {name!r} in the history{several}; `hashidrill history list` shows all")

    def days(self, last: int = 10_000) -> list[Day]:
        """The last game days, oldest first."""
        ours = "WHERE ? IS NULL OR project = ? ORDER BY ended_s DESC LIMIT ?"
        return self._days(ours, self.project, self.project, last)[::-1]

    def _days(self, where: str, *values: Any) -> list[Day]:
        rows = self.database.execute(f"SELECT * FROM days {where}", values)  # noqa: S608 - our own text
        return [
            Day(id_, gameday, title, began_s, ended_s, Verdict(verdict), outcome, path, of)
            for id_, gameday, title, began_s, ended_s, verdict, outcome, path, of in rows
        ]

    def _runs(self, where: str, *values: Any, brief: bool = False) -> list[Run]:
        details = "" if brief else ", details, asked, config"
        rows = self.database.execute(f"SELECT {_BRIEF}{details} FROM runs {where}", values).fetchall()  # noqa: S608 - our own text
        return [self._run(row) for row in rows]

    def _run(self, row: Sequence[Any]) -> Run:
        id_, experiment, variant, datacenter, project, began_s, ended_s, verdict, outcome, path, *rest = row
        hashidrill, title, conditions, day, *documents = rest
        return Run(
            *(id_, Series(experiment, variant, datacenter, project), began_s, ended_s, Verdict(verdict), outcome, path),
            hashidrill=hashidrill,
            title=title,
            conditions=conditions,
            day=day or "",
            **(self._documents(*documents) if documents else {}),
        )

    def _documents(self, details: str, asked: str, config: str) -> dict[str, Any]:
        said = safe_json.parse(details)
        return {
            "invalid": tuple(said["invalid"]),
            "expectations": tuple(Expected(**each) for each in said["expectations"]),
            "drilled": tuple(Drilled(*each) for each in said.get("drilled", ())),
            "versions": said["versions"],
            "machine": said["machine"],
            "figures": {
                name: Number(name, unit, from_plain(value), floor) for name, unit, value, floor in said["figures"]
            },
            "experiment": self._document(asked),
            "config": self._document(config),
        }

    def _document(self, at: str) -> Any:
        found = self.database.execute("SELECT text FROM documents WHERE digest = ?", (at,)).fetchone()
        return safe_json.parse(found[0]) if found else {}
