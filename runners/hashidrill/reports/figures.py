"""The key figures of a run, as reports and summaries show them: each load in each part of the run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hashidrill.core.errors import NOT_READY, HypothesisInvalidError
from hashidrill.core.protocols.service import asks
from hashidrill.core.recording.reader import FaultWindow, Operations, Recording
from hashidrill.reports.text import human_duration, human_number, human_rate, human_share

PARTS = {"steady": "steady state", "fault": "faults in force", "mark": "marked", "recovery": "recovery"}
Span = tuple[int, int]
"""Start and end, in nanoseconds of the run's clock."""


@dataclass(frozen=True)
class LoadFigures:
    """One load's figures in one part of the run. Times are seconds, and `errors` is a share; NaN if there were
    no operations.

    An operation counts in the part in which it was due (intended start), and so does a stall.
    """

    load: str
    part: str
    operations: int
    rate_per_s: float
    p50_s: float
    p99_s: float
    max_s: float
    errors: float


def run_end_ns(recording: Recording) -> int:
    """The time of the journal's last event; 0 for an empty journal."""
    return recording.journal[-1].t_ns if recording.journal else 0


def fault_span(fault: FaultWindow, end_ns: int) -> Span | None:
    """When the fault was in force: from apply's return until revert's, or the run's end; None if never applied."""
    if fault.applied_ns is None:
        return None
    ends = [moment for moment in (fault.reverted_ns, fault.gone_ns) if moment is not None]
    return fault.applied_ns, min(ends, default=end_ns)


def parts(recording: Recording) -> dict[str, list[Span]]:
    """The spans of `steady`, `fault` and `recovery`; a part that never began is left out.

    A run with marks but no fault has the part `mark` instead of `fault`.
    """
    end_ns = run_end_ns(recording)
    found: dict[str, list[Span]] = {}
    if "steady" in recording.phases:
        found["steady"] = [recording.phases["steady"]]
    spans = [span for fault in recording.faults if (span := fault_span(fault, end_ns)) is not None]
    part = "fault" if spans else "mark"
    spans = spans or mark_spans(recording)
    if not spans:
        return found
    found[part] = merged(spans)
    last = found[part][-1][1]
    stop = recording.phases.get("recovery", (last, end_ns))[1]
    if stop > last:
        found["recovery"] = [(last, stop)]
    return found


def mark_spans(recording: Recording) -> list[Span]:
    end_ns = run_end_ns(recording)
    return [(mark.begin_ns, end_ns if mark.end_ns is None else mark.end_ns) for mark in recording.marks]


def marked(recording: Recording) -> list[str]:
    """The names and times of the marks, in a sentence each."""
    return [
        f"{mark.mark}, from {human_duration(start / 1e9)} to {human_duration(end / 1e9)} into the run"
        for mark, (start, end) in zip(recording.marks, mark_spans(recording), strict=True)
    ]


def merged(spans: Sequence[Span]) -> list[Span]:
    """Overlapping spans as one: an operation under two faults counts once."""
    result: list[Span] = []
    for start, end in sorted(spans):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], end))
        else:
            result.append((start, end))
    return result


class Served(NamedTuple):
    """The time during which a client agent used one server. `connected`: all servers that the agent was
    connected to meanwhile.

    Without a connection both are empty; while connections could not be seen, `server` is None.
    """

    start_ns: int
    end_ns: int
    server: str | None
    connected: frozenset[str]


def served_by(recording: Recording, product: str) -> dict[str, list[Served]]:
    """The servers that each client agent of a product used, by its host; empty if no probe recorded them."""
    try:
        series = recording.series(asks()[product])
    except (HypothesisInvalidError, KeyError):
        return {}
    end_ns = run_end_ns(recording)
    found: dict[str, list[Served]] = {}
    for t_ns, text, host, ok in zip(series.t_ns, series.text, series.host, series.ok, strict=True):
        names = text.split(", ") if ok else []
        now = Served(int(t_ns), max(int(t_ns), end_ns), names[0] if ok else None, frozenset(filter(None, names)))
        spans = found.setdefault(host, [])
        if spans and spans[-1][2:] == now[2:]:
            continue
        if spans:
            spans[-1] = spans[-1]._replace(end_ns=int(t_ns))
        spans.append(now)
    return found


FIGURES = ("load", "part", "operations", "rate", "p50", "p99", "longest", "errors")


def figure_rows(recording: Recording) -> list[tuple[str, ...]]:
    """The rows below the headings FIGURES, for people."""
    return [
        (
            row.load,
            PARTS[row.part],
            human_number(row.operations),
            human_rate(row.rate_per_s),
            *map(human_duration, (row.p50_s, row.p99_s, row.max_s)),
            human_share(row.errors),
        )
        for row in load_figures(recording)
    ]


def load_figures(recording: Recording) -> list[LoadFigures]:
    return [
        _figures(load, part, operations, spans)
        for load in recording.loads
        if (operations := operations_of(recording, load)) is not None
        for part, spans in parts(recording).items()
    ]


def operations_of(recording: Recording, load: str) -> Operations | None:
    """The operations of a load; None if it has none: every run gets a report, however it ended."""
    try:
        return recording.operations(load)
    except HypothesisInvalidError:
        return None


def _figures(load: str, part: str, operations: Operations, spans: Sequence[Span]) -> LoadFigures:
    inside = np.zeros(len(operations), np.bool_)
    for start, end in spans:
        inside |= (operations.intended_ns >= start) & (operations.intended_ns < end)
    seconds = sum(end - start for start, end in spans) / 1e9
    count = int(inside.sum())
    if count == 0:
        nan = float("nan")
        return LoadFigures(load, part, 0, 0.0, nan, nan, nan, nan)
    latency = operations.latency_s[inside]
    p50, p99 = (float(value) for value in np.percentile(latency, [50, 99]))
    rate = count / seconds if seconds > 0 else float("nan")
    return LoadFigures(load, part, count, rate, p50, p99, float(latency.max()), float(1 - operations.ok[inside].mean()))


def experiment_name(recording: Recording) -> str:
    """Name of the experiment, from run.json; the directory's name if run.json has none."""
    return str(recording.run.get("experiment") or recording.path.name)


def experiment_title(recording: Recording) -> str:
    """Title of the experiment, from run.json; its name if there is none."""
    return str(recording.run.get("title") or experiment_name(recording))


def how_it_ended(recording: Recording) -> str:
    """One sentence on how the run ended; empty for a complete run."""
    if recording.outcome == "complete":
        return ""
    sentence = _OUTCOMES.get(recording.outcome, f"The run ended early: {recording.outcome}.")
    error = str(recording.run.get("error") or next((e.data.get("error") for e in recording.events("end")), None) or "")
    if recording.outcome == "crashed" and NOT_READY in error:
        sentence = "The datacenter never got ready."
    return f"{sentence} {error}".strip()


def found_on_the_way(recording: Recording) -> list[str]:
    """Findings during the run, in a sentence each: levels of loads, and steps that others waited for."""
    searched = [f"Search: {entry.data.get('text', '')}" for entry in recording.events("search")]
    return [*searched, *(f"Wait: {entry.data.get('text', '')}" for entry in recording.events("clock.goes"))]


_OUTCOMES = {
    "steady-state": "The steady state never held, so no fault was applied.",
    "unfit": "This machine is too small for the experiment; the run ended early.",
    "fault": "A fault could not be applied, or was not proven in force.",
    "revert": "A fault could not be reverted, or its effect was still there afterwards.",
    "guardrail": "A guardrail tripped: every fault was reverted and the method ended early.",
    "interrupted": "The run was interrupted; its faults were reverted.",
    "crashed": "The run crashed.",
    "died": "The runner died: its journal has no end. Clean up with `hashidrill heal`.",
}


def asked(fault: FaultWindow) -> str:
    """The parameters of a fault on one line: `op=fsync, delay=500ms`."""
    return ", ".join(f"{key}={value}" for key, value in fault.params.items() if value is not None)


def state_of(fault: FaultWindow) -> str:
    """The state of a fault, in words; all but "proven, and proven gone" need a closer look."""
    if fault.applied_ns is None:
        return "not applied"
    if not fault.proven:
        return "not proven" if fault.moved_ns is None else "given up: the role moved"
    if fault.reverted_ns is None:
        return "not reverted"
    if fault.gone_ns is None:
        return "still there"
    return "proven, and proven gone" if fault.faded_ns is None else "gone before its revert"
