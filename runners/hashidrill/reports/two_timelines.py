"""The timelines of two runs of one experiment as one: both from the begin of their methods, so that faults coincide."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hashidrill.core.errors import HashidrillError
from hashidrill.core.judging import measure
from hashidrill.reports.timeline import lanes, timeline

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hashidrill.core.recording.reader import Recording

_SERIES = {"p50", "p99", "acknowledged", "errors"}


def two_timelines(sides: Mapping[str, Recording]) -> dict[str, Any]:
    """As `timeline`; lanes and series have the names of their sides. Times are seconds of the method."""
    drawn = {name: _shifted(timeline(recording), -_begin_s(recording)) for name, recording in sides.items()}
    return {
        "start": min(each["start"] for each in drawn.values()),
        "end": max(each["end"] for each in drawn.values()),
        "bucket": max(each["bucket"] for each in drawn.values()),
        "phases": next(iter(drawn.values()))["phases"],
        "faults": [
            fault | {"label": f"{name}: {fault['label']}"} for name, each in drawn.items() for fault in each["faults"]
        ],
        "lanes": _lanes(drawn),
        "marks": [
            mark | {"label": f"{name}: {mark['label']}"}
            for name, each in drawn.items()
            for mark in each["marks"]
            if mark["kind"] == "guardrail"  # who leads when is in the lanes
        ],
        "panels": _panels(drawn),
    }


def _lanes(drawn: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The marks of the method once, and who leads on each side: there is room for a side's name before it, no more."""
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
    except HashidrillError:  # it never got there: its own clock must do
        return 0.0


def _panels(drawn: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Panels with the same title become one. What was due of a load is left out: it is the same on both sides."""
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
            known = merged.setdefault(panel["title"], {**panel, "series": [], "sides": True})
            known.pop("t", None)
            known["series"] += series
    return list(merged.values())


def _shifted(value: Any, by: float, key: str = "") -> Any:
    """The payload with every time moved; what is no time stays."""
    if isinstance(value, dict):
        return {name: _shifted(inner, by, name) for name, inner in value.items()}
    if isinstance(value, list):
        if key in {"asked", "applied", "proven", "t"}:
            return [round(one + by, 3) for one in value]
        return [_shifted(inner, by) for inner in value]
    if key in {"start", "end", "at", "t"} and isinstance(value, (int, float)):
        return round(value + by, 3)
    return value
