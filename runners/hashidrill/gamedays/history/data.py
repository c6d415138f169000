"""The history as plain data, for `--json`. `format` counts up when a key changes its meaning or goes."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from typing import Any

from hashidrill.gamedays.history.changes import Changed
from hashidrill.gamedays.history.model import Day, Run, Series, Turn
from hashidrill.gamedays.history.noise import Trend
from hashidrill.gamedays.history.steadiness import Steadiness

FORMAT = 1


def document(**content: Any) -> dict[str, Any]:
    """What a command prints."""
    return {"format": FORMAT, **content}


def number(value: float) -> float | str | None:
    """JSON has neither infinity nor NaN."""
    return None if math.isnan(value) else "never" if math.isinf(value) else value


def moment(seconds: float) -> str:
    """RFC 3339, UTC."""
    return dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def series_data(series: Series) -> dict[str, Any]:
    return {"experiment": series.experiment, "variant": series.variant, "datacenter": series.datacenter}


def run_data(run: Run) -> dict[str, Any]:
    """A run in a list."""
    return {
        "kind": "run",
        "id": run.id,
        **series_data(run.series),
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
    """All that is known of a run."""
    return {
        **run_data(run),
        "title": run.title,
        "invalid": list(run.invalid),
        "expectations": [vars(each) for each in run.expectations],
        "figures": [
            {"name": each.name, "unit": each.unit, "value": number(each.value)} for each in run.figures.values()
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
    }


def state_data(series: Series, found: Steadiness) -> dict[str, Any]:
    return {
        **series_data(series),
        "state": found.state,
        "text": str(found),
        "runs": found.runs,
        "failures": found.failures,
        "failure_chance": {"low": found.low, "high": found.high},
        "left_out": found.fixed,
        "more_runs_would_tell": found.more or None,
    }


def trends_data(series: Series, found: Sequence[Trend], runs: Sequence[Run]) -> dict[str, Any]:
    return {
        **series_data(series),
        "runs": [{"id": run.id, "verdict": run.verdict} for run in runs],
        "figures": [
            {
                "name": each.name,
                "unit": each.unit,
                "values": [number(value) for value in each.values],
                "middle": number(each.middle),
                "noise": number(each.noise),
                "last_is_outside": each.outside,
                "drift": each.drift,
            }
            for each in found
        ],
    }


def changed_data(found: Changed) -> dict[str, Any]:
    return {
        **series_data(found.now.series),
        "now": run_data(found.now),
        "last_passed": None if found.before is None else run_data(found.before),
        "runs_between": found.between,
        "broken": found.broken,
        "changes": [vars(each) for each in found.changes],
        "figures": [
            {
                "name": each.name,
                "unit": each.unit,
                "before": number(each.before),
                "now": number(each.now),
                "ratio": number(each.ratio),
                "outside_of_noise": each.outside,
            }
            for each in found.figures
        ],
        "noise_from_runs": found.noise_of,
        "noise_under_the_same_conditions": found.alike,
    }


def turn_data(turn: Turn | None) -> Mapping[str, Any] | None:
    """In the JSON of a run: what it turned from."""
    if turn is None:
        return None
    return {
        "from": turn.before.verdict,
        "to": turn.now.verdict,
        "last_passed": turn.before.id,
        "last_passed_at": moment(turn.before.ended_s),
    }
