"""The history as lines for a terminal."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterator, Sequence

from hashidrill.core.judging.verdict import Finding, Verdict
from hashidrill.gamedays.history.changes import Changed, Moved
from hashidrill.gamedays.history.model import Day, Run, Series, Turn
from hashidrill.gamedays.history.noise import FEWEST, Trend
from hashidrill.gamedays.history.steadiness import Steadiness
from hashidrill.reports.text import (
    counted,
    human_bytes,
    human_duration,
    human_number,
    human_rate,
    human_share,
    one_line,
    sparkline,
)

_WIDTH = 30
_LONGEST = 300


def shown(value: float, unit: str) -> str:
    """A figure with its unit."""
    if math.isnan(value):
        return "not measured"
    if math.isinf(value):
        return "never"
    known: dict[str, Callable[[float], str]] = {
        "s": human_duration,
        "share": human_share,
        "bytes": human_bytes,
        "/s": human_rate,
        "ms": lambda ms: human_duration(ms / 1e3),
    }
    return known[unit](value) if unit in known else f"{human_number(value)} {unit}".rstrip()


def when(seconds: float) -> str:
    """The local time, to the minute."""
    return dt.datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M")


def list_lines(entries: Sequence[Run | Day]) -> Iterator[str]:
    """Newest last."""
    for each in entries:
        name = f"game day {each.gameday}" if isinstance(each, Day) else str(each.series)
        yield f"{when(each.ended_s)}  {each.verdict:<7}  {name}  {each.id}"


def run_lines(run: Run) -> Iterator[str]:
    yield f"{run.verdict.value}  {run.series}  {run.id}"
    yield f"  {when(run.began_s)}, {human_duration(run.ended_s - run.began_s)}, {run.outcome}"
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    yield f"  hashidrill {run.hashidrill}, {versions}"
    for reason in run.invalid:
        yield f"  ! {one_line(reason, _LONGEST)}"
    for expectation in run.expectations:
        yield f"  {expectation.finding:<8} {expectation.title}"
        if expectation.finding != Finding.HELD:
            yield f"           {one_line(expectation.text, _LONGEST)}"
    for figure in run.figures.values():
        yield f"  {figure.name}  {shown(figure.value, figure.unit)}"
    yield f"  recording  {run.path}"


def state_line(series: Series, found: Steadiness) -> str:
    return f"{series}: {found}"


def trend_lines(series: Series, found: Sequence[Trend], runs: int) -> Iterator[str]:
    yield f"{series}: {counted(runs, 'run')} that counted"
    for each in found:
        noise = "noise unknown" if math.isnan(each.noise) else f"noise {each.noise:.0%}"
        bars = sparkline(each.values, _WIDTH)
        said = [
            f"  {each.name}",
            bars,
            f"middle {shown(each.middle, each.unit)}",
            noise,
            f"last {shown(each.values[-1], each.unit)}",
        ]
        if each.outside is None:
            said.append(f"too few runs to tell ({FEWEST + 1} are needed)")
        elif each.outside:
            said.append("OUTSIDE of its noise")
        if each.drift:
            said.append(f"{'rises' if each.drift > 0 else 'falls'} by {abs(each.drift):.0%} over these runs")
        yield "  ".join(said)


def changed_lines(found: Changed) -> Iterator[str]:
    now = found.now
    yield f"{now.verdict.value}  {now.series}  {now.id}  {when(now.ended_s)}"
    for text in found.broken:
        yield f"  broken: {one_line(text, _LONGEST)}"
    if found.before is None:
        yield "  it never passed before, in this history"
        return
    before = found.before
    between = f", and {counted(found.between, 'run')} between" if found.between else ""
    last = "passed last" if now.verdict is not Verdict.PASS else "passed before"
    yield f"  {last}: {before.id}, {when(before.ended_s)}{between}"
    if not found.changes:
        yield "  nothing changed that a recording knows of: versions, machine, experiment and agents are the same"
    for change in found.changes:
        yield f"  changed: {change}"
    outside = found.outside
    for each in outside:
        yield f"  figure outside of its noise: {_moved(each)}"
    unknown = sum(each.outside is None for each in found.figures)
    inside = len(found.figures) - unknown - len(outside)
    under = "under the same conditions" if found.alike else "under other conditions too"
    of = f"noise from {counted(found.noise_of, 'run')} that passed, {under}"
    if inside:
        yield f"  {counted(inside, 'figure')} within the noise ({of})"
    if unknown:
        yield f"  {counted(unknown, 'figure')} without a known noise: {FEWEST} runs that passed are needed"


def _moved(each: Moved) -> str:
    times = "" if math.isnan(each.ratio) else f", {each.ratio:.2f} times what passing runs have"
    return f"{each.name}: {shown(each.before, each.unit)} -> {shown(each.now, each.unit)}{times}"


def turn_line(turn: Turn) -> str:
    """The line at the end of a run that failed after one that passed."""
    return (
        f"{turn.name} turned from {turn.before.verdict.value} to {turn.now.verdict.value}: it last passed"
        f" {when(turn.before.ended_s)} ({turn.before.id})"
    )
