"""The data of the report's timeline, as plain JSON for the page's script: lanes, marks and panels over one time axis.

Times are seconds of the run's clock, latencies are seconds. The result stays under `LIMIT_BYTES`: points share
buckets that grow until it fits.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from hashidrill.core.errors import HashidrillError, HypothesisInvalidError, RecordingError
from hashidrill.core.judging import measure
from hashidrill.core.judging.measure import at_in_method_ns
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.service import Drawn, Lane, Panel, asks, lanes
from hashidrill.core.recording.reader import FaultWindow, Floats, Operations, Recording, Series
from hashidrill.core.units import counted
from hashidrill.reports.figures import fault_span, mark_spans, operations_of, run_end_ns, served_by
from hashidrill.reports.followed import followed_steps, step_lane, step_marks
from hashidrill.reports.text import one_line, printable

LIMIT_BYTES = 1_000_000
MOST_POINTS = 600
MOST_MARKS = 200
MOST_FAULTS = 200
MOST_LANES = 5
MOST_CHOSEN = 4
"""Charts that are shown open; the others are folded."""
MOVED = 0.15
"""In powers of ten: a curve that moved by a factor of less than 1.4 looks flat."""
SHORTEST_BUCKET_S = 0.5
"""At 50 operations per second this is 25 per bucket: with fewer, a p99 would be noise."""
_NICE_S = (0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600)
_OF_HOSTS = (
    Panel("disk.fsync", "Canary fsync next to the data", "s"),
    Panel("process.cpu", "CPU of the agent", "cores", worst=False),
    Panel("process.write_rate", "Bytes that the agent writes", "B/s", worst=False),
    Panel("process.rss", "Memory of the agent", "B", worst=False),
    Panel("generator.lag", "The load generator's own lag", "s"),
    Panel("generator.cpu", "CPU of the load generator", "cores", worst=False),
)


def panels() -> list[Panel]:
    """The panels of signals: first those of the services, then those of hosts and of the generator."""
    return [*(panel for product in registry.services_with(Drawn) for panel in product.panels), *_OF_HOSTS]


def timeline(recording: Recording, *, reads: Collection[str] = ()) -> dict[str, Any]:
    """The timeline of a run, as JSON that is smaller than `LIMIT_BYTES`. `reads`: loads and signals to show first."""
    domain = _domain(recording)
    points = MOST_POINTS
    while True:
        payload = _timeline(recording, domain, points)
        if len(json.dumps(payload)) <= LIMIT_BYTES or points < 20:
            _choose(payload, reads)
            return payload
        points //= 2


def _choose(payload: dict[str, Any], reads: Collection[str]) -> None:
    """Marks the panels that are shown open: first those that `reads` names, then those that moved most under faults."""
    spans = [fault["applied"] for fault in payload["faults"] if fault["applied"]]
    spans = spans or [
        (each["start"], each["end"])
        for lane in payload["lanes"]
        if lane["title"] == "mark"
        for each in lane["segments"]
    ]

    def rank(panel: dict[str, Any]) -> tuple[int, float]:
        read, moved = panel["of"] in reads, _moved(panel, spans)
        failed = any(one["name"] == "errors" and any(one["v"]) for one in panel["series"])
        if read and panel["unit"] == "s":
            return 3, moved
        if (read and failed) or (panel["of"] in reads and panel.get("signal")):
            return 2, moved
        internal = panel["of"].startswith("generator.")
        return (0 if internal else 1), moved

    panels = sorted(payload["panels"], key=rank, reverse=True)
    moved = [panel for panel in panels if rank(panel)[0] > 1 or rank(panel)[1] > MOVED]
    for panel in (moved or panels)[:MOST_CHOSEN]:
        panel["chosen"] = True


def _moved(panel: dict[str, Any], spans: Sequence[Sequence[float]]) -> float:
    """How far the faults moved the panel's curves, in powers of ten beyond their noise before the faults."""
    begin = min((span[0] for span in spans), default=0.0)
    furthest = 0.0
    for one in panel["series"]:
        if one.get("style") == "faint":
            continue
        times = np.array(one.get("t", panel.get("t")), np.float64)
        values = np.array([np.nan if each is None else each for each in one["v"]], np.float64)
        known = np.isfinite(values)
        inside = np.logical_or.reduce([(times >= start) & (times <= end) for start, end in spans] or [times < 0])
        before, under = values[known & (times < begin)], values[known & inside]
        if len(before) < 2 or len(under) < 2:
            continue
        least = max(float(np.max(values[known])), 0.0) / 1000 + 1e-9  # a move from 0 to a little is small
        low, middle, high = np.log10(np.maximum(np.quantile(before, [0.1, 0.5, 0.9]), 0) + least)
        bottom, top = np.log10(np.maximum(np.quantile(under, [0.1, 0.9]), 0) + least)
        furthest = max(furthest, abs(top - middle) - (high - middle), abs(bottom - middle) - (middle - low))
    return float(furthest)


def _timeline(recording: Recording, domain: tuple[float, float], points: int) -> dict[str, Any]:
    bucket_s = _bucket(domain, points)
    return {
        "start": _seconds(domain[0]),
        "end": _seconds(domain[1]),
        "bucket": bucket_s,
        "phases": [
            {"start": _of(start), "end": _of(end), "label": name}
            for name, (start, end) in recording.phases.items()
            if end > start
        ],
        "faults": _faults(recording),
        "lanes": _lanes(recording),
        "marks": _marks(recording),
        "panels": [*_load_panels(recording, domain, bucket_s), *_signal_panels(recording, domain, bucket_s, points)],
    }


def _domain(recording: Recording) -> tuple[float, float]:
    """The time from the start of the steady state to the end of the traffic or, if later, of the last fault."""
    start = recording.phases.get("steady", (0, 0))[0] / 1e9
    end_ns = run_end_ns(recording)
    stop_ns = recording.phases.get("quiesce", (end_ns, end_ns))[0]
    faults_ns = [span[1] for fault in recording.faults if (span := fault_span(fault, end_ns)) is not None]
    end = max([stop_ns, *faults_ns]) / 1e9
    return (start, end) if end > start else (start, start + 1.0)


def _bucket(domain: tuple[float, float], points: int) -> float:
    wanted = max((domain[1] - domain[0]) / points, SHORTEST_BUCKET_S)
    return next((nice for nice in _NICE_S if nice >= wanted), wanted)


def _of(t_ns: int) -> float:
    return _seconds(t_ns / 1e9)


def _seconds(value: float) -> float:
    return round(value, 3)


def _faults(recording: Recording) -> list[dict[str, Any]]:
    end_ns = run_end_ns(recording)
    requests = _requests(recording)
    return [_fault(fault, requests.get(fault.fault_id), end_ns) for fault in recording.faults[:MOST_FAULTS]]


def _fault(fault: FaultWindow, request: tuple[float, float] | None, end_ns: int) -> dict[str, Any]:
    span = fault_span(fault, end_ns)
    gone_ns = fault.gone_ns if fault.gone_ns is not None else (span[1] if span else fault.intent_ns)
    return {
        "label": printable(f"{fault.kind} on {fault.host}", 120),
        "asked": list(request) if request else None,
        "applied": [_of(span[0]), _of(max(gone_ns, span[1]))] if span else None,
        "proven": [_of(fault.proven_ns), _of(span[1])] if span and fault.proven_ns is not None else None,
        "at": _of(fault.intent_ns),
    }


def _requests(recording: Recording) -> dict[str, tuple[float, float]]:
    """The planned begin and end of each fault; empty if the experiment can no longer be read."""
    try:
        steps = recording.experiment.method
        return {
            intent.data["fault_id"]: (
                _of(at_in_method_ns(recording, step.at)),
                _of(at_in_method_ns(recording, step.at + step.for_)),
            )
            for intent in recording.events("fault.intent")
            for step in [steps[int(intent.data["step"])]]
        }
    except (RecordingError, HypothesisInvalidError, KeyError, IndexError):  # a step that the experiment does not have
        return {}


def _lanes(recording: Recording) -> list[dict[str, Any]]:
    """Lanes for states that are not numbers: the marks, the leader, and the products' own health."""
    drawn = _mark_lanes(recording)
    if spans := step_lane(followed_steps(recording)):
        drawn.append({"title": "runbook", "segments": spans[:MOST_MARKS]})
    for lane in lanes():
        series = _series(recording, lane.signal)
        if series is not None:
            drawn.append({"title": lane.title, "segments": _segments(recording, lane, series)})
    return [*drawn, *_asked_lanes(recording)]


def _asked_lanes(recording: Recording) -> list[dict[str, Any]]:
    """The server that each client agent uses; if there are many agents, those that changed servers most often."""
    every = [each for product in asks() for each in served_by(recording, product).items()]
    every.sort(key=lambda each: -len(each[1]))
    lanes: list[dict[str, Any]] = []
    for host, spans in every[:MOST_LANES]:
        segments: list[dict[str, Any]] = []
        for span in spans[:MOST_MARKS]:
            label = printable("no answer" if span.server is None else f"asks {span.server or 'no server'}", 60)
            if segments and segments[-1]["label"] == label:
                segments[-1]["end"] = _of(span.end_ns)
            else:
                ok = bool(span.server)
                segments.append({"start": _of(span.start_ns), "end": _of(span.end_ns), "label": label, "ok": ok})
        lanes.append({"title": printable(host, 60), "segments": segments})
    if more := every[MOST_LANES:]:
        label = f"{counted(len(more), 'more client agent')} not drawn"
        whole = {"start": 0.0, "end": _of(run_end_ns(recording)), "label": label, "style": "phase"}
        lanes.append({"title": "others", "segments": [whole]})
    return lanes


def _mark_lanes(recording: Recording) -> list[dict[str, Any]]:
    """The marks of the method, in as few lanes as possible without overlaps."""
    lanes: list[list[dict[str, Any]]] = []
    spans = zip(recording.marks[:MOST_MARKS], mark_spans(recording), strict=False)
    for mark, (start, end) in sorted(spans, key=lambda each: each[1]):
        segment = {"start": _of(start), "end": _of(end), "label": printable(mark.mark, 60), "ok": True}
        free = next((lane for lane in lanes if lane[-1]["end"] <= segment["start"]), None)
        if free is None:
            lanes.append([segment])
        else:
            free.append(segment)
    return [{"title": "mark", "segments": segments} for segments in lanes[:MOST_LANES]]


def _segments(recording: Recording, lane: Lane, series: Series) -> list[dict[str, Any]]:
    """Segments of the same state, each until the next one begins. A leader that is elected again begins a new one."""
    if lane.names:
        return _reigns(recording, lane)
    segments: list[dict[str, Any]] = []
    for t_ns, value, ok in zip(series.t_ns, series.value, series.ok, strict=True):
        state = (lane.good if value >= 1 else lane.bad) if ok else "no answer"
        if not segments or segments[-1]["label"] != state:
            at = _of(int(t_ns))
            if segments:
                segments[-1]["end"] = at
            segments.append({"start": at, "end": at, "label": state, "ok": state == lane.good})
    if segments:
        segments[-1]["end"] = _of(run_end_ns(recording))
    for segment in segments:
        segment["label"] = printable(segment["label"], 60)
    return segments[:MOST_MARKS]


def _reigns(recording: Recording, lane: Lane) -> list[dict[str, Any]]:
    segments: list[dict[str, Any]] = []
    led = measure.Reign("", 0, 0)
    for reign in measure.reigns(recording, 0, run_end_ns(recording), lane.signal)[:MOST_MARKS]:
        again = ", again" if measure.elected_again(led, reign) else ""
        span = {"start": _of(reign.start_ns), "end": _of(reign.end_ns)}
        label = f"{reign.host}{again}" if reign.host else lane.bad
        segments.append({**span, "label": printable(label, 60), "ok": bool(reign.host)})
        led = reign if reign.host else led
    return segments


def _marks(recording: Recording) -> list[dict[str, Any]]:
    """Moments: leader changes, guardrails."""
    named = {lane.title for lane in lanes() if lane.names}
    leaders = [lane["segments"] for lane in _lanes(recording) if lane["title"] in named]
    changes = [change for segments in leaders for change in segments[1:]]
    marks = [{"t": change["start"], "kind": "leader", "label": change["label"]} for change in changes]
    for entry in recording.events("guardrail"):
        label = one_line(f"guardrail: {entry.data.get('condition', '')}", 160)
        marks.append({"t": _of(entry.t_ns), "kind": "guardrail", "label": label})
    marks += step_marks(followed_steps(recording))
    return sorted(marks, key=lambda mark: float(mark["t"]))[:MOST_MARKS]


def _load_panels(recording: Recording, domain: tuple[float, float], bucket_s: float) -> list[dict[str, Any]]:
    return [
        panel
        for load in recording.loads
        if (operations := operations_of(recording, load)) is not None
        for panel in load_panels(load, operations, domain, bucket_s)
    ]


def load_panels(
    load: str, operations: Operations, domain: tuple[float, float], bucket_s: float
) -> list[dict[str, Any]]:
    """Latency, and offered and answered operations, of one load. Latency is drawn where an operation was due."""
    edges = _edges(domain, bucket_s)
    widths = np.diff(edges)
    middles = [_seconds(float(middle)) for middle in edges[:-1] + widths / 2]
    due_s, end_s = operations.intended_ns / 1e9, operations.end_ns / 1e9
    p50, p99 = _percentiles(due_s, operations.latency_s, edges)
    offered, answered, errors = (
        _numbers(np.histogram(moments, edges)[0] / widths)
        for moments in (due_s, end_s[operations.ok], end_s[~operations.ok])
    )
    name = printable(load, 60)
    return [
        {
            "title": f"{name}: latency",
            "of": load,
            "unit": "s",
            "log": True,
            "labels": True,
            "t": middles,
            "series": [{"name": "p50", "v": p50}, {"name": "p99", "v": p99}],
        },
        {
            "title": f"{name}: operations per second",
            "of": load,
            "unit": "/s",
            "log": False,
            "t": middles,
            "series": [
                {"name": "errors", "v": errors, "style": "bars"},
                {"name": "due", "v": offered, "style": "faint"},
                {"name": "acknowledged", "v": answered},
            ],
        },
    ]


def _edges(domain: tuple[float, float], bucket_s: float) -> Floats:
    """Borders of the buckets. The last one ends with the domain: the rate over a shorter bucket stays true."""
    whole = int((domain[1] - domain[0]) / bucket_s + 1e-9)
    edges = domain[0] + bucket_s * np.arange(whole + 1, dtype=np.float64)
    return edges if domain[1] - edges[-1] < bucket_s / 10 and whole else np.append(edges, domain[1])


def _percentiles(at_s: Floats, latency_s: Floats, edges: Floats) -> tuple[list[float | None], list[float | None]]:
    """p50 and p99 of each bucket, None for an empty one."""
    order = np.argsort(at_s, kind="stable")
    latency_s = latency_s[order]
    borders = np.searchsorted(at_s[order], edges)
    pairs = [
        np.percentile(latency_s[start:end], [50, 99]) if end > start else (np.nan, np.nan)
        for start, end in itertools.pairwise(borders)
    ]
    return _numbers([pair[0] for pair in pairs]), _numbers([pair[1] for pair in pairs])


def _numbers(values: Sequence[float] | Floats) -> list[float | None]:
    """Rounded to four significant digits, which is more than a pixel shows and a third of the bytes."""
    return [None if not np.isfinite(value) else float(f"{value:.4g}") for value in values]


def _signal_panels(
    recording: Recording, domain: tuple[float, float], bucket_s: float, points: int
) -> list[dict[str, Any]]:
    known = panels()
    drawn = registry.services_with(Drawn)
    elsewhere = {name for product in drawn for name in product.undrawn} | {lane.signal for lane in lanes()}
    apart = {panel.signal for panel in known} | elsewhere
    others = [Panel(name, name) for name in recording.signals if name not in apart]
    shown = []
    for panel in (*known, *others):
        samples = _series(recording, panel.signal)
        if samples is None:
            continue
        series = [
            {"name": printable(host, 60) or "all", **points_of}
            for host in sorted(set(samples.host))
            if (points_of := _points(recording.series(panel.signal, host), domain, bucket_s, points, panel.worst))
        ]
        if series:
            shown.append(
                {
                    "title": printable(panel.title, 120),
                    "of": panel.signal,
                    "signal": printable(panel.signal, 120),
                    "unit": panel.unit,
                    "log": panel.unit == "s",
                    "series": series,
                }
            )
    return shown


def _points(
    samples: Series, domain: tuple[float, float], bucket_s: float, points: int, worst: bool
) -> dict[str, list[Any]] | None:
    """All samples if they are few, otherwise one for each bucket; None for a bucket without a value."""
    inside = samples.between(int(domain[0] * 1e9), int(domain[1] * 1e9) + 1)
    if not np.isfinite(inside.value).any():
        return None
    at_s = inside.t_ns / 1e9
    if len(inside) <= points:
        return {"t": [_seconds(float(moment)) for moment in at_s], "v": _numbers(inside.value)}
    cells = np.floor((at_s - domain[0]) / bucket_s).astype(np.int64)
    moments, values = [], []
    for cell in np.unique(cells):
        found = inside.value[cells == cell]
        found = found[np.isfinite(found)]
        moments.append(_seconds(domain[0] + (float(cell) + 0.5) * bucket_s))
        values.append(float("nan") if not len(found) else float(found.max() if worst else found.mean()))
    return {"t": moments, "v": _numbers(values)}


def _series(recording: Recording, signal: str) -> Series | None:
    try:
        return recording.series(signal)
    except HypothesisInvalidError:
        return None


_SERIES = {"p50", "p99", "acknowledged", "errors"}


def two_timelines(sides: Mapping[str, Recording]) -> dict[str, Any]:
    """Like `timeline`; the names of lanes and series include their side. Times are seconds of the method."""
    drawn = {name: _shifted(timeline(recording), -_begin_s(recording)) for name, recording in sides.items()}
    payload = {
        "clock": "Seconds into the method.",
        "start": min(each["start"] for each in drawn.values()),
        "end": max(each["end"] for each in drawn.values()),
        "bucket": max(each["bucket"] for each in drawn.values()),
        "phases": next(iter(drawn.values()))["phases"],
        "faults": [
            fault | {"label": f"{name}: {fault['label']}"} for name, each in drawn.items() for fault in each["faults"]
        ],
        "lanes": _lanes_of_both(drawn),
        "marks": [
            mark | {"label": f"{name}: {mark['label']}"}
            for name, each in drawn.items()
            for mark in each["marks"]
            if mark["kind"] == "guardrail"  # who leads when is in the lanes
        ],
        "panels": _panels(drawn),
    }
    _choose(payload, {panel["of"] for panel in payload["panels"] if "signal" not in panel})
    return payload


def _lanes_of_both(drawn: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The marks of the method once, and who leads on each side: a lane has room for a side's name, and no more."""
    named = {lane.title for lane in lanes() if lane.names}
    first = next(iter(drawn.values()))
    found = [lane for lane in first["lanes"] if lane["title"] == "mark"]
    for name, each in drawn.items():
        for lane in each["lanes"]:
            if lane["title"] in named:
                segments = [one | {"label": f"{lane['title']}: {one['label']}"} for one in lane["segments"]]
                found.append({"title": name, "segments": segments})
    return found


def _begin_s(recording: Recording) -> float:
    try:
        return measure.method(recording)[0] / measure.SECOND
    except HashidrillError:  # the run never reached its method: use the run's clock
        return 0.0


def _panels(drawn: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Panels with the same title become one. The rate that was due is left out: both runs have the same."""
    merged: dict[str, dict[str, Any]] = {}
    for name, each in drawn.items():
        for panel in each["panels"]:
            of_a_load = "t" in panel
            series = [
                {**one, "name": f"{name} {one['name']}", "t": one.get("t", panel.get("t"))}
                for one in panel["series"]
                if not of_a_load or one["name"] in _SERIES
            ]
            for one in series:
                if of_a_load:
                    one.pop("style", None)  # bars of two sides would hide each other
            known = merged.setdefault(panel["title"], {**panel, "series": [], "sides": True, "chosen": False})
            known.pop("t", None)
            known["series"] += series
    return list(merged.values())


def _shifted(value: Any, by: float, key: str = "") -> Any:
    """The payload with every time moved; other values stay."""
    if isinstance(value, dict):
        return {name: _shifted(inner, by, name) for name, inner in value.items()}
    if isinstance(value, list):
        if key in {"asked", "applied", "proven", "t"}:
            return [round(one + by, 3) for one in value]
        return [_shifted(inner, by) for inner in value]
    if key in {"start", "end", "at", "t"} and isinstance(value, (int, float)):
        return round(value + by, 3)
    return value
