"""The recording of a run: a directory with all its data, immutable once the run has ended.

    experiment.yaml    the experiment, for people to read
    resolved.json      the experiment as the run resolved it (hashidrill.core.experiment.resolved); judging uses it
    run.json           versions, configuration, machine, how the run ended
    journal.jsonl      what happened, in order (hashidrill.core.recording.journal)
    recording.sqlite   operations, samples and final reads
    artifacts/         evidence that faults left, like snapshot files
    logs/HOST/*.log    the agents' logs
    verdict.json       hashidrill.core.judging.verdict; with report.html and summary.md

The engine writes it (hashidrill.core.recording.writer); hypotheses and reports read it through `Recording`, which uses
only these files, and neither the clock nor the network.
"""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hashidrill import __version__
from hashidrill.core.errors import ExperimentError, HashidrillError, HypothesisInvalidError, RecordingError
from hashidrill.core.protocols.abc import Detail
from hashidrill.core.recording.columns import IMPLAUSIBLE, Bools, Floats, Int64s, Operations, Series, with_unreported
from hashidrill.core.recording.journal import LONGEST_NS, Entry, is_whole, read_journal
from hashidrill.core.recording.writer import DATABASE_NAME, FORMAT, KEY, PREFIX, RESOLVED_NAME, is_table, read_run
from hashidrill.core.util.files import JOURNAL_NAME
from hashidrill.core.util.safe_json import parse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from hashidrill.core.experiment.model import Experiment
    from hashidrill.core.experiment.resolved import ResolvedExperiment


@dataclass(frozen=True)
class MarkWindow:
    """A named part of the method. A mark breaks nothing, so it is not a fault."""

    mark: str
    step: int
    begin_ns: int
    end_ns: int | None = None
    """None if the run ended before the mark did."""


def marks_of(begins: Iterable[Entry], ends: Iterable[Entry]) -> list[MarkWindow]:
    """Each `mark.begin` with its `mark.end`, in the order in which they began."""
    ended = {entry.data.get("step"): entry.t_ns for entry in ends}
    return [
        MarkWindow(str(entry.data["mark"]), step, entry.t_ns, ended.get(step))
        for entry in begins
        for step in [entry.data.get("step", -1)]
    ]


__all__ = [
    "ARTIFACTS_NAME",
    "EXPERIMENT_NAME",
    "OUTCOMES",
    "Bools",
    "FaultWindow",
    "Floats",
    "Int64s",
    "Operations",
    "Recording",
    "Series",
]

EXPERIMENT_NAME = "experiment.yaml"
ARTIFACTS_NAME = "artifacts"
OUTCOMES = ("ok", "fail", "unknown")
_FEWEST_STEPS, _STEPS_PER_BYTE, _STEPS_AT_ONCE = 2_000_000, 2, 10_000
"""Limits on SQLite's steps for one query. hashidrill's own queries take at most 0.14 steps for a byte of the file."""


@dataclass(frozen=True)
class FaultWindow:
    """One fault on one target, from the journal. Times are None for events that never happened."""

    fault_id: str
    kind: str
    host: str
    agent: str
    params: Mapping[str, Any]
    intent_ns: int
    applied_ns: int | None = None
    proven_ns: int | None = None
    reverted_ns: int | None = None
    gone_ns: int | None = None
    still_ns: int | None = None
    """When the second proof, just before the revert, succeeded; `faded_ns` is set instead if it failed."""
    faded_ns: int | None = None
    moved_ns: int | None = None
    """The time at which the fault was given up because the role that it follows had moved."""
    proof: Mapping[str, Any] | None = None
    gone_proof: Mapping[str, Any] | None = None
    still_proof: Mapping[str, Any] | None = None
    faded_proof: Mapping[str, Any] | None = None
    error: str = ""
    step: int = -1
    """The number of the method's step that the fault belongs to, from 0."""

    @property
    def proven(self) -> bool:
        return self.proven_ns is not None


class Recording:
    """The data of a run, for hypotheses and reports. All parts are read lazily and cached."""

    def __init__(self, path: Path | str) -> None:
        """Raises RecordingError if `path` is not a recording."""
        self.path = Path(path)
        if not (self.path / JOURNAL_NAME).is_file():
            raise RecordingError(
                f"{self.path}: no recording there ({JOURNAL_NAME} is missing); `hashidrill list runs` shows all runs"
            )
        self._operations: dict[str, Operations] = {}
        self._series: dict[tuple[str, str | None], Series] = {}

    @cached_property
    def run(self) -> dict[str, Any]:
        """run.json: `id`, `experiment`, `versions`, `config`, `hosts`, `machine`, `started_at`, `outcome`, ..."""
        return self._run_or_none or {}

    @property
    def run_reads(self) -> bool:
        """Whether run.json is readable; if not, `run` is empty, because the recording still gets a report."""
        return self._run_or_none is not None

    @cached_property
    def _run_or_none(self) -> dict[str, Any] | None:
        return read_run(self.path)

    @property
    def experiment(self) -> Experiment:
        """The experiment. Raises RecordingError if it is not readable.

        Its kinds were checked before the run. They are not looked up again, so that a recording can be judged on a
        machine that lacks the package of a fault.
        """
        return self.resolved.experiment

    @property
    def variant(self) -> str:
        """The variant of the experiment that was run; "" for an experiment without variants."""
        return self.resolved.variant

    @cached_property
    def resolved(self) -> ResolvedExperiment:
        """The experiment as its run resolved it. Raises RecordingError if it is not readable."""
        from hashidrill.core.experiment.resolved import ResolvedExperiment  # noqa: PLC0415 - no need for a journal

        path = self.path / RESOLVED_NAME
        try:
            return ResolvedExperiment.from_data(parse(path.read_bytes()))
        except OSError as error:
            raise RecordingError(f"{path}: not readable: {error.strerror or error}") from None
        except (ExperimentError, ValueError) as error:
            raise RecordingError(f"{path}: not readable: {error}") from None

    @cached_property
    def journal(self) -> list[Entry]:
        """All complete entries (hashidrill.core.recording.seal reports incomplete ones)."""
        return [entry for entry in read_journal(self.path / JOURNAL_NAME) if is_whole(entry)]

    def events(self, event: str) -> list[Entry]:
        return [entry for entry in self.journal if entry.event == event]

    @cached_property
    def phases(self) -> dict[str, tuple[int, int]]:
        """Start and end of each phase, by name: start, ready, steady, method, recovery, quiesce."""
        marks = self.events("phase")
        ends = [mark.t_ns for mark in [*marks[1:], self.journal[-1]]] if marks else []
        return {mark.data["phase"]: (mark.t_ns, end) for mark, end in zip(marks, ends, strict=True)}

    @cached_property
    def standstills(self) -> list[tuple[float, int]]:
        """The pauses of the method's clock: the second of the method, by that clock, and the pause's length in ns."""
        return [(float(entry.data["at_s"]), int(entry.data["stood_ns"])) for entry in self.events("clock.goes")]

    @property
    def outcome(self) -> str:
        """How the run ended (journal `end`): complete, steady-state, fault, ... or `died` without an `end`."""
        ends = self.events("end")
        return str(ends[-1].data["outcome"]) if ends else "died"

    @cached_property
    def faults(self) -> list[FaultWindow]:
        """All fault windows, in order of their intents."""
        windows: dict[str, dict[str, Any]] = {}
        for entry in self.journal:
            kind, _, what = entry.event.partition(".")
            if kind != "fault":
                continue
            data = entry.data
            if what == "intent":
                windows[data["fault_id"]] = {
                    "fault_id": data["fault_id"],
                    "kind": data["kind"],
                    "host": data["target"]["host"],
                    "agent": data["target"]["agent"],
                    "params": data.get("params", {}),
                    "intent_ns": entry.t_ns,
                    "step": data.get("step", -1),
                }
            elif (window := windows.get(data["fault_id"])) is not None:
                _note(window, what, entry)
        return [FaultWindow(**window) for window in windows.values()]

    @cached_property
    def marks(self) -> list[MarkWindow]:
        """All marks, in the order in which they began."""
        return marks_of(self.events("mark.begin"), self.events("mark.end"))

    @cached_property
    def format(self) -> int:
        """The format that the recording was written in; by default hashidrill.core.recording.writer.FORMAT.

        The journal is read first: without it there is no recording. The other files help if the journal lost the line
        with the format.
        """
        began = self.events("run")
        for said in (began[0].data.get("format") if began else None, self.run.get("format"), self._user_version()):
            if isinstance(said, int) and said > 0:
                return said
        return FORMAT

    def _user_version(self) -> int:
        try:
            return int(self._query("PRAGMA user_version")[0][0])
        except (RecordingError, IndexError):
            return 0

    def check_format(self) -> None:
        """Raises RecordingError if the recording's format is not the one that this hashidrill writes."""
        if self.format < FORMAT:
            raise RecordingError(
                f"{self.path}: hashidrill wrote this recording before 0.1.0 (format {self.format}); this version reads"
                f" format {FORMAT}: run the experiment again"
            )
        if self.format > FORMAT:
            raise RecordingError(
                f"{self.path}: a newer hashidrill wrote this recording (format {self.format}; hashidrill {__version__}"
                f" reads up to {FORMAT}); judge it with that version, or a later one: `uv tool upgrade hashidrill`"
            )

    def count(self, table: str) -> int:
        """How many rows a table of the database holds."""
        counted = self._query(f"SELECT count(*) FROM {table}")  # noqa: S608 - a name in TABLES or detail_tables
        return int(counted[0][0]) if counted else 0

    @cached_property
    def detail_tables(self) -> list[str]:
        """Tables with additional columns of some operations."""
        names = [row[0] for row in self._query("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        return [name for name in names if is_table(name)]

    @cached_property
    def loads(self) -> list[str]:
        return [row[0] for row in self._query("SELECT DISTINCT load FROM operations ORDER BY load")]

    def operations(self, load: str, *, unknown: str = "") -> Operations:  # noqa: ARG002 - the judge reads it
        """All operations of a load. Raises HypothesisInvalidError when there are none.

        `unknown`: for a load that watches, what a failed look means here (see `series`). Includes operations that a
        service should have reported but did not (hashidrill.core.recording.columns).
        """
        if load not in self._operations:
            self._operations[load] = self._with_unreported(load, self._read_operations(load))
        return self._operations[load]

    def _read_operations(self, load: str) -> Operations:
        rows = self._query(
            "SELECT intended_ns, start_ns, end_ns, outcome, status, key, value, error, reason, detail, id"
            " FROM operations WHERE load = ? ORDER BY intended_ns",
            load,
        )
        if not rows:
            raise HypothesisInvalidError(
                f"load {load!r} has no operations in this recording; there are: {', '.join(self.loads) or 'none'}"
            )
        intended, start, end, outcome, status, keys, values, errors, reasons, tables, ids = zip(*rows, strict=True)
        with self._as_columns("operations", (intended, start, end), outcome, keys, values, errors, reasons, tables):
            found = Operations(
                np.array(intended, np.int64),
                np.array(start, np.int64),
                np.array(end, np.int64),
                np.array(outcome),
                np.array(status, np.int64),
                list(keys),
                list(values),
                list(errors),
                list(reasons),
                self._details(load, ids, tables),
            )
        if len({row[:8] for row in rows}) < len(rows):
            found = _once(found, [row[:9] for row in rows])
        return found

    def _with_unreported(self, load: str, ops: Operations) -> Operations:
        try:
            client = self.experiment.clients.get(load)
        except (HashidrillError, OSError):  # the recording is not judged then
            return ops
        if client is None or not client.service:
            return ops
        return with_unreported(ops, self.phases, client.reports_every)

    def _details(self, load: str, ids: Sequence[int], tables: Sequence[str]) -> list[Detail | None]:
        found: dict[int, Detail] = {}
        for table in {*tables} & {*self.detail_tables}:
            columns = [row[1] for row in self._query(f'PRAGMA table_info("{table}")')]
            rows = self._query(
                f'SELECT d.* FROM "{table}" d JOIN operations o ON o.id = d.operation_id WHERE o.load = ?',  # noqa: S608
                load,
            )
            for row in rows:
                fields = dict(zip(columns, row, strict=True))
                found[fields.pop(KEY)] = Detail(table.removeprefix(PREFIX), fields)
        return [found.get(each) for each in ids]

    @property
    def aside(self) -> Recording:
        """The recording for a hint: reads from it decide nothing, so doubts about them do not affect a verdict."""
        return self

    @cached_property
    def signals(self) -> list[str]:
        return [row[0] for row in self._query("SELECT DISTINCT signal FROM samples ORDER BY signal")]

    def series(self, signal: str, host: str | None = None, *, unknown: str = "") -> Series:  # noqa: ARG002 - as above
        """All samples of a signal, of one host or of all. Raises HypothesisInvalidError when there are none.

        A look that failed has no value (NaN). If too many looks failed, a hypothesis that held is INVALID
        (hashidrill.core.judging.reads). If your hypothesis handles failed looks, say in `unknown` what a failed look
        means, like "the process is gone".
        """
        if (signal, host) not in self._series:
            self._series[signal, host] = self._read_series(signal, host)
        return self._series[signal, host]

    def _read_series(self, signal: str, host: str | None) -> Series:
        rows = self._query(
            "SELECT t_ns, value, text, host, ok FROM samples"
            " WHERE signal = ? AND (? IS NULL OR host = ?) ORDER BY t_ns",
            signal,
            host,
            host,
        )
        if not rows:
            raise HypothesisInvalidError(f"signal {signal!r} has no samples in this recording")
        t_ns, value, text, hosts, ok = zip(*rows, strict=True)
        with self._as_columns("samples", (t_ns,), text, hosts):
            figures = np.array([np.nan if v is None else v for v in value], np.float64)
            values = np.where(np.abs(figures) < IMPLAUSIBLE, figures, np.nan)
            return Series(np.array(t_ns, np.int64), values, list(text), list(hosts), np.array(ok, np.bool_))

    def final_reads(self, load: str) -> dict[str, str | None]:
        """The value of each key at the end of the run (None: absent). Empty when the final reads never happened."""
        rows = self._query("SELECT key, value FROM final_reads WHERE load = ?", load)
        with self._as_columns("final_reads", (), [key for key, _ in rows], [value or "" for _, value in rows]):
            return dict(rows)

    def artifact(self, name: str) -> Path:
        """A file that a fault left as evidence. Raises HypothesisInvalidError if there is no file of that name."""
        path = self.path / ARTIFACTS_NAME / name
        if not path.is_file():
            raise HypothesisInvalidError(f"{path}: this run left no such file")
        return path

    @contextlib.contextmanager
    def _as_columns(self, table: str, times: Sequence[Sequence[Any]], *texts: Sequence[Any]) -> Iterator[None]:
        """Raises RecordingError for values that hashidrill never writes: SQLite's columns may hold any type."""
        where = self.path / DATABASE_NAME
        if odd := [each for column in texts for each in column if not isinstance(each, str)]:
            raise RecordingError(f"{where}: {table} are not readable: expected text, got {odd[0]!r}")
        if odd := [each for column in times for each in column if type(each) is not int or abs(each) >= LONGEST_NS]:
            raise RecordingError(
                f"{where}: {table} are not readable: {odd[0]!r} is not a time of a run in nanoseconds (at most a week)"
            )
        try:
            yield
        except (TypeError, ValueError, OverflowError) as error:
            raise RecordingError(f"{where}: {table} are not readable: {error}") from None

    def _query(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        path = self.path / DATABASE_NAME
        if not path.is_file():
            return []
        # not read-only: a run that died left a write-ahead log, and SQLite needs write access to read that
        try:
            with contextlib.closing(sqlite3.connect(path)) as connection:
                connection.execute("PRAGMA trusted_schema=OFF")  # the recording may be a stranger's
                connection.set_progress_handler(_limit(path), _STEPS_AT_ONCE)
                if odd := _not_tables(connection):
                    raise RecordingError(f"{path}: {odd[0]!r} in it is not a table of a run, so it is not read")
                return connection.execute(statement, parameters).fetchall()
        except sqlite3.Error as error:
            if "no such table" in str(error):
                return []
            why = "a query takes too many steps for a file of this size" if "interrupted" in str(error) else error
            raise RecordingError(f"{path}: {why}") from None


def _limit(path: Path) -> Callable[[], int]:
    """Ends a query that takes more steps than to read the whole file, including its write-ahead log."""
    sizes = [file.stat().st_size for file in (path, path.with_name(path.name + "-wal")) if file.is_file()]
    left = iter(range((_FEWEST_STEPS + _STEPS_PER_BYTE * sum(sizes)) // _STEPS_AT_ONCE))
    return lambda: next(left, None) is None


def _not_tables(connection: sqlite3.Connection) -> list[str]:
    """Views, triggers and virtual tables: to read them would run unlimited computations by the file's author."""
    plain = "type = 'index' OR (type = 'table' AND sql NOT LIKE '%VIRTUAL%' AND sql NOT LIKE '%GENERATED%')"
    return [row[0] for row in connection.execute(f"SELECT name FROM sqlite_master WHERE NOT ({plain})")]  # noqa: S608


def _once(ops: Operations, rows: Sequence[tuple[Any, ...]]) -> Operations:
    """Drops operations that were reported twice, with the same columns and details."""
    details = [repr(detail) for detail in ops.details] or [""] * len(rows)
    first = {(row, detail): at for at, (row, detail) in reversed([*enumerate(zip(rows, details, strict=True))])}
    mask = np.zeros(len(rows), np.bool_)
    mask[list(first.values())] = True
    return ops.picked(mask)


def _note(window: dict[str, Any], what: str, entry: Entry) -> None:
    if what in {"applied", "proven", "still", "faded", "moved", "reverted", "gone"}:
        window[f"{what}_ns"] = entry.t_ns
    if what == "proven":
        window["proof"] = entry.data["evidence"]
    elif what in {"still", "faded", "gone"}:
        window[f"{what}_proof"] = entry.data["evidence"]
    elif what == "unproven":
        window["proof"] = entry.data["evidence"]
        window["error"] = f"not proven in force: {entry.data['evidence']['measured']}"
    elif what in {"failed", "stuck"}:
        evidence = entry.data.get("evidence") or {"measured": "nothing was recorded"}
        window["error"] = str(entry.data.get("error") or f"still seen: {evidence['measured']}")
