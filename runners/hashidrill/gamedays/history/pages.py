"""The history as lines for a terminal, and as plain data for `--json`, with times as RFC 3339 in UTC."""

import datetime as dt
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hashidrill.core.judging.verdict import Finding, Verdict
from hashidrill.core.units import counted
from hashidrill.gamedays.history.changes import Changed
from hashidrill.gamedays.history.coverage import Coverage
from hashidrill.gamedays.history.noise import FEWEST, Trend
from hashidrill.gamedays.history.steadiness import Steadiness
from hashidrill.gamedays.history.store import Day, Run, Series, Turn, plain
from hashidrill.reports.document import code, row_table
from hashidrill.reports.text import (
    human_bytes,
    human_duration,
    human_number,
    human_rate,
    human_share,
    one_line,
    sparkline,
)

FORMAT = 1
"""Increases when a key of the data changes its meaning or is removed."""
_LONGEST = 300
_UNITS: dict[str, Callable[[float], str]] = {
    "s": human_duration,
    "share": human_share,
    "bytes": human_bytes,
    "/s": human_rate,
    "ms": lambda ms: human_duration(ms / 1e3),
}


def shown(value: float, unit: str) -> str:
    """A figure with its unit."""
    if math.isnan(value):
        return "not measured"
    if math.isinf(value):
        return "never"
    return _UNITS[unit](value) if unit in _UNITS else f"{human_number(value)} {unit}".rstrip()


def when(seconds: float) -> str:
    """The local time, to the minute."""
    return dt.datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M")


def list_rows(entries: Sequence[Run | Day], *, projects: bool = False) -> Iterator[Sequence[str]]:
    """One row for each entry, newest last. `projects` adds the folder of the entry's project."""
    for each in entries:
        name = f"game day {each.gameday}" if isinstance(each, Day) else str(each.series)
        of = each.project if isinstance(each, Day) else each.series.project
        yield (when(each.ended_s), each.word, each.id, name, *([of] if projects else []))


def run_lines(run: Run) -> Iterator[str]:
    yield f"{run.word}  {run.series}  {run.id}"
    yield f"  {when(run.began_s)}, {human_duration(run.ended_s - run.began_s)}, {run.outcome}"
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    yield f"  hashidrill {run.hashidrill}, {versions}"
    yield from (f"  ! {one_line(reason, _LONGEST)}" for reason in run.invalid)
    for expectation in run.expectations:
        yield f"  {expectation.finding:<8} {expectation.title}"
        if expectation.finding != Finding.HELD:
            yield f"           {one_line(expectation.text, _LONGEST)}"
    yield from (f"  {figure.name}  {shown(figure.value, figure.unit)}" for figure in run.figures.values())
    yield f"  recording  {run.path}"


DUE = ("drill next", "last proof", "how")
DRILLED = ("drilled", "last proof", "verdict", "run")


def due_rows(found: Coverage, most: int | None = None) -> Iterator[Sequence[str]]:
    """A row for each of the `most` most urgent failure modes that are due; `DUE` is the heading."""
    for row in [each for each in found.rows if not each.drilled and each.experiment][:most]:
        proof = "never" if row.last is None else when(row.last.ended_s)
        if row.tried is not None:
            proof += f", INVALID {when(row.tried.ended_s)}"
        yield str(row.mode), proof, f"hashidrill run {row.experiment}"


def drilled_rows(found: Coverage) -> Iterator[Sequence[str]]:
    """A row for each failure mode that was drilled; `DRILLED` is the heading."""
    for row in found.rows:
        if row.drilled and row.last is not None:
            yield str(row.mode), when(row.last.ended_s), row.last.word, row.last.id


def coverage_markdown(found: Coverage, now_s: float, within_days: float) -> Iterator[str]:
    """What was drilled, as a table for a wiki."""
    yield f"{found.text(within_days)}."
    yield ""
    rows = [
        (row.mode.product, code(str(row.mode)), code(row.last.id), row.last.word, f"{row.age_days(now_s):.0f}")
        for row in found.rows
        if row.last is not None
    ]
    yield row_table(("product", "failure mode", "last proof", "verdict", "age in days"), rows, numbers_from=4)


def coverage_data(found: Coverage, now_s: float) -> dict[str, Any]:
    rows = [
        {
            "kind": row.mode.kind,
            "on": row.mode.on,
            "drilled": row.drilled,
            "run": row.last and row.last.id,
            "verdict": row.last and row.last.verdict,
            "age_days": row.age_days(now_s),
            "experiment": row.experiment or None,
            "tried": row.tried and row.tried.id,
        }
        for row in found.rows
    ]
    return {"drilled": found.drilled, "failing": found.failing, "failure_modes": rows, "unread": list(found.unread)}


TREND = ("figure", "last", "middle", "noise", "", "")


def trend_rows(found: Sequence[Trend], width: int) -> Iterator[Sequence[str]]:
    """A row for each figure; `TREND` is the heading. `width`: the sparkline's width in characters."""
    for each in found:
        said = [f"too few runs to tell ({FEWEST + 1} are needed)"] if each.outside is None else []
        said += ["OUTSIDE of its noise"] if each.outside else []
        if each.drift:
            said.append(f"{'rises' if each.drift > 0 else 'falls'} by {abs(each.drift):.0%} over these runs")
        last, middle = (shown(value, each.unit) for value in (each.values[-1], each.middle))
        noise = "unknown" if math.isnan(each.noise) else f"{each.noise:.0%}"
        yield each.name, last, middle, noise, sparkline(each.values, width), ", ".join(said)


def changed_lines(found: Changed) -> Iterator[str]:
    now, before = found.now, found.before
    yield f"{now.verdict.value}  {now.series}  {now.id}  {when(now.ended_s)}"
    yield from (f"  broken: {one_line(text, _LONGEST)}" for text in found.broken)
    if before is None:
        yield "  it never passed before, in this history"
        return
    between = f", and {counted(found.between, 'run')} between" if found.between else ""
    last = "passed last" if now.verdict is not Verdict.PASS else "passed before"
    yield f"  {last}: {before.id}, {when(before.ended_s)}{between}"
    if not found.changes:
        yield "  no change is known from the recordings: versions, machine, experiment and agents are the same"
    yield from (f"  changed: {change}" for change in found.changes)
    for each in found.outside:
        times = "" if math.isnan(each.ratio) else f", {each.ratio:.2f} times the value of passing runs"
        moved = f"{shown(each.before, each.unit)} -> {shown(each.now, each.unit)}{times}"
        yield f"  figure outside of its noise: {each.name}: {moved}"
    unknown = sum(each.outside is None for each in found.figures)
    if inside := len(found.figures) - unknown - len(found.outside):
        under = "under the same conditions" if found.alike else "under other conditions too"
        of = f"noise from {counted(found.noise_of, 'run')} that passed, {under}"
        yield f"  {counted(inside, 'figure')} within the noise ({of})"
    if unknown:
        yield f"  {counted(unknown, 'figure')} without a known noise: {FEWEST} runs that passed are needed"


def turn_line(turn: Turn) -> str:
    """The line at the end of a run that failed after one that passed."""
    return (
        f"{turn.name} turned from {turn.before.verdict.value} to {turn.now.verdict.value}: it last passed"
        f" {when(turn.before.ended_s)} ({turn.before.id})"
    )


def document(**content: Any) -> dict[str, Any]:
    """What a command prints."""
    return {"format": FORMAT, **content}


def moment(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def run_data(run: Run) -> dict[str, Any]:
    """A run in a list."""
    return {
        "kind": "run",
        "id": run.id,
        **vars(run.series),
        "verdict": run.verdict,
        "outcome": run.outcome,
        "began_at": moment(run.began_s),
        "ended_at": moment(run.ended_s),
        "hashidrill": run.hashidrill,
        "conditions": run.conditions,
        "day": run.day,
        "recording": run.path,
    }


def whole_run(run: Run) -> dict[str, Any]:
    """All stored data of a run."""
    return {
        **run_data(run),
        "title": run.title,
        "invalid": list(run.invalid),
        "expectations": [vars(each) for each in run.expectations],
        "figures": [
            {"name": each.name, "unit": each.unit, "value": plain(each.value)} for each in run.figures.values()
        ],
        "versions": run.versions,
        "machine": run.machine,
        "experiment_asked": run.experiment,
        "agents": run.config,
    }


def day_data(day: Day) -> dict[str, Any]:
    return {
        "kind": "day",
        "id": day.id,
        "gameday": day.gameday,
        "title": day.title,
        "verdict": day.verdict,
        "outcome": day.outcome,
        "began_at": moment(day.began_s),
        "ended_at": moment(day.ended_s),
        "folder": day.path,
        "project": day.project,
    }


def state_data(series: Series, found: Steadiness) -> dict[str, Any]:
    return {
        **vars(series),
        "state": found.state,
        "text": str(found),
        "runs": found.runs,
        "failures": found.failures,
        "failure_chance": {"low": found.low, "high": found.high},
        "left_out": found.fixed,
        "more_runs_would_tell": found.more or None,
    }


def trends_data(series: Series, found: Sequence[Trend], runs: Sequence[Run]) -> dict[str, Any]:
    figures = [
        {
            "name": each.name,
            "unit": each.unit,
            "values": [plain(value) for value in each.values],
            "middle": plain(each.middle),
            "noise": plain(each.noise),
            "last_is_outside": each.outside,
            "drift": each.drift,
        }
        for each in found
    ]
    return {**vars(series), "runs": [{"id": run.id, "verdict": run.verdict} for run in runs], "figures": figures}


def changed_data(found: Changed) -> dict[str, Any]:
    return {
        **vars(found.now.series),
        "now": run_data(found.now),
        "last_passed": None if found.before is None else run_data(found.before),
        "runs_between": found.between,
        "broken": found.broken,
        "changes": [vars(each) for each in found.changes],
        "figures": [
            {
                "name": each.name,
                "unit": each.unit,
                **{key: plain(getattr(each, key)) for key in ("before", "now", "ratio")},
                "outside_of_noise": each.outside,
            }
            for each in found.figures
        ],
        "noise_from_runs": found.noise_of,
        "noise_under_the_same_conditions": found.alike,
    }


def turn_data(turn: Turn | None) -> Mapping[str, Any] | None:
    """In the JSON of a run: the earlier verdict and run."""
    if turn is None:
        return None
    return {
        "from": turn.before.verdict,
        "to": turn.now.verdict,
        "last_passed": turn.before.id,
        "last_passed_at": moment(turn.before.ended_s),
    }
