"""The journal of a game day: one JSON object per line, on disk before and after each step. A day whose process died
resumes from its journal.

    day          what is played: the file, its experiments, the folder that relative paths start from
    session      the day begins, or is resumed
    begin        a step begins
    done         a step ended, with its result; it is never done again
    interrupted  a run that ended without a result, and its recording

Only `done` lines count: a step that began but did not finish is repeated.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from hashidrill.core.errors import UsageError
from hashidrill.core.experiment.loader import resolve
from hashidrill.core.util.files import COMPARISON_NAME, JOURNAL_NAME, append_line, held_by_us, whole_lines
from hashidrill.core.util.safe_json import parse
from hashidrill.gamedays.gameday.plan import Plan, Resolve, read_plan

VERSION = 1
DAY_JOURNAL = "day.jsonl"
"""The file that makes its folder a game day."""
Result = dict[str, Any]
Now = Callable[[], dt.datetime]


def utc_now() -> dt.datetime:
    """The time, in UTC."""
    return dt.datetime.now(dt.UTC)


class DayJournal:
    """An open journal, from `create` or `resume`. Any thread may write it; no other process may do so meanwhile."""

    def __init__(self, path: Path, descriptor: int, now: Now) -> None:
        self.path = path
        self.head: Mapping[str, Any] = {}
        """The first line."""
        self.done: dict[str, Result] = {}
        """Result of each step that ended, in the order in which they ended."""
        self.at: dict[str, str] = {}
        """When each step ended, ISO 8601."""
        self.begins: Counter[str] = Counter()
        """The number of times that each step began."""
        self.interrupted: list[Mapping[str, Any]] = []
        self.sessions: list[Mapping[str, Any]] = []
        self._spans: list[tuple[dt.datetime, dt.datetime]] = []
        self._descriptor = descriptor
        self._now = now
        self._lock = threading.Lock()

    @classmethod
    def create(cls, folder: Path, head: Mapping[str, Any], *, now: Now = utc_now) -> DayJournal:
        """Creates the journal with its first line, or nothing. Raises UsageError if it cannot be written."""
        path = folder / DAY_JOURNAL
        unnamed = path.with_name(f"{path.name}.new")
        try:
            descriptor = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
            journal = cls(path, descriptor, now)
            _lock(path, descriptor)
            journal._write("day", {"version": VERSION, **head})
            unnamed.rename(path)
        except OSError as error:
            raise UsageError(f"{path}: cannot write the day's journal here: {error.strerror}") from None
        return journal

    @classmethod
    def resume(cls, folder: Path, *, now: Now = utc_now) -> DayJournal:
        """Reads the journal; cuts off a torn last line. Raises UsageError without a journal, or for a running day."""
        return cls._open(folder, os.O_RDWR | os.O_APPEND, now)

    @classmethod
    def read(cls, folder: Path) -> DayJournal:
        """Opens it read-only, even while the day goes on."""
        journal = cls._open(folder, os.O_RDONLY, utc_now)
        journal.close()
        return journal

    @classmethod
    def _open(cls, folder: Path, flags: int, now: Now) -> DayJournal:
        path = folder / DAY_JOURNAL
        try:
            descriptor = os.open(path, flags | os.O_CLOEXEC)
        except OSError as error:
            raise UsageError(f"{path}: this day cannot be read: {error.strerror}") from None
        writes = flags != os.O_RDONLY
        try:
            if writes:
                _lock(path, descriptor)
            whole = whole_lines(path.read_bytes())
            journal = cls(path, descriptor, now)
            for number, line in enumerate(whole.splitlines(), 1):
                journal._take(number, line)
            journal._check_head()
            if writes:
                os.ftruncate(descriptor, len(whole))
        except BaseException:
            os.close(descriptor)
            raise
        return journal

    def _check_head(self) -> None:
        if not self.head:
            raise UsageError(f"{self.path}: the day stopped before it recorded its plan; begin it again")

    def session(self, **data: Any) -> None:
        """A person begins the day, or continues it."""
        self._write("session", data)

    def begin(self, step: str) -> None:
        """Called before the step does anything."""
        self._write("begin", {"step": step})

    def finish(self, step: str, result: Result) -> None:
        """Called after the step; the next step begins when this returns."""
        self._write("done", {"step": step, "result": result})

    def interrupt(self, step: str, recording: str) -> None:
        """Notes that a run of that step ended without a result; `recording` is the recording that it left, if any."""
        self._write("interrupted", {"step": step, "recording": recording})

    def worked_s(self) -> float:
        """The working time of the day so far in seconds, without interruptions."""
        before = sum((end - start).total_seconds() for start, end in self._spans[:-1])
        return before + ((self._now() - self._spans[-1][0]).total_seconds() if self._spans else 0.0)

    def close(self) -> None:
        """Closes the file: another process may write it now."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, event: str, data: Mapping[str, Any]) -> None:
        with self._lock:
            said = {"event": event, "wall": self._now().isoformat(timespec="seconds"), **data}
            line = json.dumps(said, allow_nan=False).encode() + b"\n"
            try:
                append_line(self._descriptor, line)
            except OSError as error:
                raise UsageError(
                    f"{self.path}: the day's journal cannot be written: {error.strerror}; make room, then go on with"
                    f" `hashidrill gameday resume {self.path.parent}`"
                ) from None
            self._take(0, line)

    def _take(self, number: int, line: bytes) -> None:
        try:
            said = parse(line)
            event, wall = said["event"], dt.datetime.fromisoformat(said["wall"])
            self._understand(event, said)
            if event == "session":
                self._spans.append((wall, wall))
            elif self._spans:
                self._spans[-1] = (self._spans[-1][0], max(wall, self._spans[-1][1]))
        except (ValueError, TypeError, KeyError):
            raise UsageError(
                f"{self.path}: line {number} is damaged: this day cannot be resumed; begin it again (its recordings "
                f"are in"
                f" {self.path.parent / 'runs'})"
            ) from None

    def _understand(self, event: str, said: Mapping[str, Any]) -> None:
        """Raises ValueError, TypeError or KeyError for a line of another program, UsageError for another version's."""
        if (event == "day") is bool(self.head):
            raise ValueError(event)
        if event == "day":
            if said["version"] != VERSION:
                raise UsageError(f"{self.path}: another version of hashidrill began this day; resume with that version")
            self.head = said
        elif event == "session":
            self.sessions.append(said)
        elif event == "begin":
            self.begins[str(said["step"])] += 1
        elif event == "interrupted":
            self.interrupted.append({"step": str(said["step"]), "recording": str(said["recording"])})
        elif event == "done":
            if not isinstance(said["result"], dict):
                raise ValueError(event)
            if (step := str(said["step"])) not in self.done:
                # new dicts: another thread may read the old ones
                self.done = {**self.done, step: said["result"]}
                self.at = {**self.at, step: str(said["wall"])}
        else:
            raise ValueError(event)

    @property
    def dangling(self) -> str:
        """The run that began but has neither ended nor been noted as interrupted; "" without one."""
        noted = Counter(entry["step"] for entry in self.interrupted)
        open_ = [step for step, times in self.begins.items() if step not in self.done and times > noted[step]]
        return next((step for step in open_ if step.startswith("run:")), "")


def _lock(path: Path, descriptor: int) -> None:
    if not held_by_us(descriptor):
        raise UsageError(
            f"{path.parent}: this day is in progress in another terminal; wait for its end, or stop it there"
        )


DAY_FILE = "day.yaml"


def find_day(name: str | None, days: Path, *, open_only: bool = False) -> Path:
    """The folder of a day. Raises UsageError if there is no such day."""
    there = sorted(path.parent for path in days.glob(f"*/{DAY_JOURNAL}"))
    if name is None or name == "last":
        for path in reversed(there):
            if not open_only or "end" not in DayJournal.read(path).done:
                return path.absolute()
        what = "no unfinished day" if open_only else "no days yet"
        raise UsageError(f"{days}: {what}; begin one with `hashidrill gameday run FILE`")
    for path in (Path(name), days / name):
        if (path / DAY_JOURNAL).is_file():
            return path.absolute()
    raise UsageError(f"there is no day {name!r}; those in {days}: {', '.join(path.name for path in there) or 'none'}")


def recordings_of(left: Path) -> list[Path]:
    """The recordings in `left`: a run's own recording, or all recordings of a comparison."""
    if (left / JOURNAL_NAME).is_file():
        return [left]
    around = left.parent if (left / COMPARISON_NAME).is_file() else left
    return sorted(path.parent for path in around.glob(f"*/{JOURNAL_NAME}"))


def plan_of_day(folder: Path, journal: DayJournal, *, over: Resolve = resolve) -> Plan:
    """The day's original plan. Raises ExperimentError for a file that can no longer be read."""
    return read_plan(folder / DAY_FILE, folder=Path(str(journal.head["folder"])), over=over)


def changed(plan: Plan, journal: DayJournal) -> list[str]:
    """The files that changed since the day began: the day's own file, and experiments by their names.

    A day's file is not checked if the day's journal has no checksum, as in earlier versions.
    """
    own = [DAY_FILE] if journal.head.get("sha256", plan.sha256) != plan.sha256 else []
    return own + [name for name, source in plan.sources.items() if journal.head["sources"].get(name) != source]
