"""Figures over time in bounded memory: as a run grows longer, its buckets grow wider.

A value is a number, None without a measurement, and NEVER for a latency of operations that are never served.
"""

import itertools
import math
from functools import cache
from typing import Any, Literal

from hashidrill.core.protocols.events import Figures, Tick
from hashidrill.core.protocols.service import Panel
from hashidrill.gamedays.warroom.document import Document
from hashidrill.reports.text import one_line

MOST = 900
"""Buckets of one series: as many as a wide screen can show."""
NARROWEST_S = 1.0
NEVER = "never"
Value = float | str | None
Kind = Literal["mean", "worst"]


def plain(value: float | None) -> Value:
    """The value as JSON can hold it, rounded to four significant digits: a chart's pixels show fewer."""
    if value is None or math.isnan(value):
        return None
    return NEVER if math.isinf(value) else float(f"{value:.4g}")


def worst(first: Value, second: Value) -> Value:
    """The higher value; None is the lowest, NEVER the highest."""
    return max(first, second, key=_rank)


def _rank(value: Value) -> float:
    return -math.inf if value is None else math.inf if isinstance(value, str) else value


class Series:
    """One value per bucket: the mean or the worst of its samples. `values` is shared with the document."""

    def __init__(self, kind: Kind) -> None:
        self.values: list[Value] = []
        self._kind = kind
        self._at = -1
        self._count = 0
        """The number of values in the mean of bucket `_at`."""

    def add(self, index: int, value: Value) -> Value:
        """Adds the value to its bucket and returns the bucket's value; the caller stores it."""
        before = self.values[index] if index < len(self.values) else None
        if index != self._at:
            self._at, self._count = index, 0 if before is None else 1
        if value is None:
            return before
        self._count += 1
        if self._kind == "mean" and isinstance(before, float) and isinstance(value, float):
            return plain(before + (value - before) / self._count)
        return worst(before, value)

    def halve(self) -> None:
        """Merges the buckets in pairs."""
        pairs = itertools.zip_longest(self.values[::2], self.values[1::2])
        self.values[:] = [_together(self._kind, *pair) for pair in pairs]
        self._count *= 1 + self._at % 2
        self._at //= 2


def _together(kind: Kind, first: Value, second: Value) -> Value:
    if kind == "mean" and isinstance(first, float) and isinstance(second, float):
        return plain((first + second) / 2)
    return worst(first, second)


class Axis:
    """The time axis that all series of a run share."""

    def __init__(self, *, most: int = MOST) -> None:
        self.width_s = NARROWEST_S
        self._most = most

    def index(self, t_s: float) -> int:
        """The bucket of a moment; if it is beyond the last bucket, call `double` first."""
        return max(int(t_s / self.width_s), 0)

    def is_full(self, t_s: float) -> bool:
        """Whether that moment is beyond the last bucket."""
        return self.index(t_s) >= self._most

    def double(self) -> None:
        """Makes every bucket twice as wide. The holders of series then merge their buckets in pairs."""
        self.width_s *= 2


MOST_LOADS = 24
MOST_PROBES = 24
MOST_STATES = 200
_OF_A_LOAD: dict[str, Kind] = {"rate": "mean", "p50": "worst", "p99": "worst", "errors": "worst"}


class RunFigures:
    """Writes a run's figures into `run` of the document, which begins with `fresh`."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._axis = Axis()
        self._series: dict[tuple[str, ...], Series] = {}

    def fresh(self) -> dict[str, Any]:
        """The initial figures of a new run."""
        self._axis = Axis()
        self._series = {}
        return {
            "now": 0.0,
            "width": self._axis.width_s,
            "phase": "",
            "phase_ends": None,
            "loads": {},
            "more_loads": 0,
            "probes": {},
            "leaders": {},
            "in_force": [],
            "lasting": [],
        }

    def tick(self, tick: Tick) -> None:
        """Adds the state at one moment."""
        run = self._document.tree["run"]
        if run is None or run["ended"]:
            return
        t_s = tick.t_ns / 1e9
        while self._axis.is_full(t_s):
            self._double()
        self._scalars(run, tick, t_s)
        index = self._axis.index(t_s)
        more = max(len(tick.loads) - MOST_LOADS, 0)
        if run["more_loads"] != more:
            self._document.set("run", "more_loads", more)
        for name, load in tick.loads.items():
            self._load(run, one_line(name, 80), load, index)
        for signal, value in tick.probes:
            self._probe(run, signal, value, index)
        for title, name in tick.leaders:
            self._leader(run, one_line(title, 60), one_line(name, 60), round(t_s, 1))

    def end(self, t_s: float) -> None:
        """The run ended: the last known leader led to the end."""
        self._document.set("run", "now", t_s)
        self._document.set("run", "in_force", [])
        self._document.set("run", "lasting", [])

    def _double(self) -> None:
        self._axis.double()
        for series in self._series.values():
            series.halve()
        self._document.tree["run"]["width"] = self._axis.width_s
        self._document.renew()

    def _scalars(self, run: dict[str, Any], tick: Tick, t_s: float) -> None:
        in_force = [
            {"label": one_line(f"{each.kind} on {each.host or '?'}", 120), "ends": _seconds(each.ends_ns)}
            for each in tick.faults[:20]
        ]
        lasting = [{"label": one_line(each.mark, 60), "ends": _seconds(each.ends_ns)} for each in tick.marks[:20]]
        values = {
            "now": round(t_s, 1),
            "phase": one_line(tick.phase, 60),
            "phase_ends": _seconds(tick.phase_ends_ns),
            "in_force": in_force,
            "lasting": lasting,
        }
        for key, value in values.items():
            if run[key] != value:
                self._document.set("run", key, value)

    def _load(self, run: dict[str, Any], name: str, load: Figures, index: int) -> None:
        if name not in run["loads"]:
            if len(run["loads"]) >= MOST_LOADS:
                return
            self._begin(("loads", name), _OF_A_LOAD, {"last": {}})
        figures = {"rate": load.rate, "p50": load.p50_s, "p99": load.p99_s, "errors": load.errors}
        last = {key: plain(value) for key, value in figures.items()}
        for key, value in last.items():
            self._put(("loads", name, key), index, value)
        self._document.set(
            "run", "loads", name, "last", {**last, "waiting": load.waiting, "waited": plain(load.waited_s)}
        )

    def _probe(self, run: dict[str, Any], signal: str, value: float | None, index: int) -> None:
        panel = _panels().get(signal)
        if signal not in run["probes"]:
            if panel is None or len(run["probes"]) >= MOST_PROBES:
                return
            about = {"title": panel.title, "unit": panel.unit, "last": None}
            self._begin(("probes", signal), {"values": "worst" if panel.worst else "mean"}, about)
        self._put(("probes", signal, "values"), index, plain(value))
        self._document.set("run", "probes", signal, "last", plain(value))

    def _begin(self, path: tuple[str, str], keys: dict[str, Kind], about: dict[str, Any]) -> None:
        made = {key: Series(kind) for key, kind in keys.items()}
        self._series.update({(*path, key): series for key, series in made.items()})
        self._document.set("run", *path, {**about, **{key: [] for key in keys}})
        for key, series in made.items():
            self._document.tree["run"][path[0]][path[1]][key] = series.values

    def _put(self, path: tuple[str, ...], index: int, value: float | str | None) -> None:
        self._document.set("run", *path, index, self._series[path].add(index, value))

    def _leader(self, run: dict[str, Any], title: str, name: str, t_s: float) -> None:
        spans = run["leaders"].get(title)
        if spans is None:
            self._document.set("run", "leaders", title, [{"name": name, "start": t_s}])
        elif spans[-1]["name"] != name:
            if len(spans) >= MOST_STATES:
                del spans[: MOST_STATES // 4]
                spans.append({"name": name, "start": t_s})
                self._document.renew()
            else:
                self._document.set("run", "leaders", title, len(spans), {"name": name, "start": t_s})


def _seconds(t_ns: int | None) -> float | None:
    return None if t_ns is None else round(t_ns / 1e9, 1)


@cache
def _panels() -> dict[str, Panel]:
    from hashidrill.reports.timeline import panels  # noqa: PLC0415 - imports the services, for runs with probes alone

    return {panel.signal: panel for panel in panels()}
