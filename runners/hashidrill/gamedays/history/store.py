"""Stores runs and days, and finds them again.

`record_run` and `record_day` are for the end of a run: whatever goes wrong, they say it in one line and go on. A
recording that is stored twice is one row, whichever path it has by then.
"""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hashidrill.core.errors import HashidrillError, RecordingError
from hashidrill.core.judging.verdict import RunVerdict, Verdict
from hashidrill.core.recording.reader import Recording
from hashidrill.core.util import foreign
from hashidrill.core.util.redaction import Redactor
from hashidrill.gamedays.history.database import WAITS_S, HistoryError, opened, transaction
from hashidrill.gamedays.history.model import Day, Expected, Number, Run, Series, Stored, Turn
from hashidrill.gamedays.history.place import history_file
from hashidrill.gamedays.history.taken import day_document, digest, taken, when

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
    """Store a run at its end. None where that failed, which `tell` was told in one line. Raises nothing."""
    with _never_fails(tell, "run"):
        recording = recording_dir if isinstance(recording_dir, Recording) else Recording(recording_dir)
        run = taken(recording, verdict)
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
    """(the day, the ids of its runs)."""
    said = Redactor().clean(day_document(folder))
    began_s = when(said["started_at"])
    ended = said.get("ended_at")
    runs = said.get("runs")
    paths = (
        [Path(str(each["recording"])) for each in runs if isinstance(each, dict) and each.get("recording")]
        if (isinstance(runs, list))
        else []
    )
    day = Day(
        str(said.get("id") or folder.name),
        _series_of_day(said, folder),
        str(said.get("title") or ""),
        began_s,
        when(ended) if ended else began_s,
        Verdict(said["verdict"]),
        str(said.get("outcome") or ""),
        str(folder.resolve()),
    )
    return day, [path.name for path in paths]


def _series_of_day(said: dict[str, Any], folder: Path) -> str:
    """The day's name, and the datacenter that it was played against unless that was one of ours."""
    name, where = str(said.get("name") or folder.name), str(said.get("attached") or "")
    return f"{name} at {where}" if where else name


@dataclass(frozen=True)
class Store:
    """An opened history."""

    database: sqlite3.Connection

    def add(self, run: Run) -> Stored:
        """Raises RecordingError for another run of the same id; sqlite3.Error."""
        asked, config = (json.dumps(each, sort_keys=True, default=str) for each in (run.experiment, run.config))
        row = (
            run.id,
            run.series.experiment,
            run.series.variant,
            run.series.datacenter,
            run.began_s,
            run.ended_s,
            run.verdict.value,
            run.outcome,
            run.path,
            run.hashidrill,
            run.title,
            run.conditions,
            json.dumps(list(run.invalid)),
            json.dumps([vars(each) for each in run.expectations]),
            json.dumps(run.versions, default=str),
            json.dumps(run.machine, default=str),
            digest(asked),
            digest(config),
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
        """Whether the last run before it that counted passed, and it fails. An INVALID run hides nothing."""
        if run.verdict is not Verdict.FAIL:
            return None
        found = self.runs(run.series, before=run, counting=True, last=1)
        return Turn(str(run.series), run, found[0]) if found and found[0].verdict is Verdict.PASS else None

    def series(self, experiment: str | None = None) -> list[Series]:
        """All that were ever run, or those of one experiment, by name."""
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
        """By its id, the beginning of that, or `last`. Raises HistoryError."""
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
        columns = "id, gameday, title, began_s, ended_s, verdict, outcome, path"
        rows = self.database.execute(f"SELECT {columns} FROM days {where}", values)  # noqa: S608 - our own text
        return [Day(row[0], row[1], row[2], row[3], row[4], Verdict(row[5]), row[6], row[7]) for row in rows]

    def _runs(self, where: str, *values: Any) -> list[Run]:
        rows = self.database.execute(
            "SELECT id, experiment, variant, datacenter, began_s, ended_s, verdict, outcome, path, hashidrill, title,"  # noqa: S608 - our own text
            " conditions, invalid, expectations, versions, machine, asked, config,"
            f" (SELECT day FROM day_runs WHERE run = runs.id) FROM runs {where}",
            values,
        ).fetchall()
        return [self._run(row) for row in rows]

    def _run(self, row: Sequence[Any]) -> Run:
        numbers = self.database.execute(
            "SELECT name, unit, value, floor FROM figures WHERE run = ? ORDER BY place", (row[0],)
        )
        asked, config = (self._document(each) for each in row[16:18])
        return Run(
            id=row[0],
            series=Series(*row[1:4]),
            began_s=row[4],
            ended_s=row[5],
            verdict=Verdict(row[6]),
            outcome=row[7],
            path=row[8],
            hashidrill=row[9],
            title=row[10],
            conditions=row[11],
            invalid=tuple(foreign.parse(row[12])),
            expectations=tuple(Expected(**each) for each in foreign.parse(row[13])),
            versions=foreign.parse(row[14]),
            machine=foreign.parse(row[15]),
            experiment=asked,
            config=config,
            figures={
                name: Number(name, unit, math.nan if value is None else value, floor)
                for name, unit, value, floor in numbers
            },
            day=row[18] or "",
        )

    def _document(self, at: str) -> Any:
        found = self.database.execute("SELECT text FROM documents WHERE digest = ?", (at,)).fetchone()
        return foreign.parse(found[0]) if found else {}
