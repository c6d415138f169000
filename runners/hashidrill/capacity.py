"""The search for a limit: the highest value of one parameter of an experiment at which its SLO still holds.

Each probe is a real run with that parameter changed. The search doubles the value until the SLO does not hold, and
bisects from there; runs that say nothing about the datacenter, because the generator was the bottleneck, bound it too.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from ruamel.yaml import YAML

from hashidrill import measure
from hashidrill._hypothesis_files import FOLDER
from hashidrill.conditions import LOAD_STATISTICS, Condition
from hashidrill.doubts import generator_doubts
from hashidrill.errors import HypothesisInvalidError, UsageError
from hashidrill.monitor import of_worst_host
from hashidrill.recording import Recording

_WRITTEN = re.compile(r"(?P<number>[0-9]{1,15}(\.[0-9]{1,9})?)\s?(?P<unit>[A-Za-z%/]*)")
_DIGITS = 3
"""Significant digits of the values that are tried."""
_STEADY, _GUARDRAIL = "steady-state", "guardrail"


class Outcome(StrEnum):
    """What a probe says: the SLO held, it did not, or the run says nothing about the datacenter."""

    HELD = "held"
    BROKEN = "broken"
    INVALID = "invalid"


@dataclass(frozen=True)
class Value:
    """A number with its unit, as YAML writes it: `50/s`, `250`, `64kB`."""

    number: float
    unit: str = ""
    whole: bool = False
    """Written without a point: a count, of which there are no halves."""

    @classmethod
    def parse(cls, text: object) -> Value:
        """Raises UsageError."""
        match = None if isinstance(text, bool) else _WRITTEN.fullmatch(str(text).strip())
        if match is None or not float(match["number"]):
            raise UsageError(f"{text!r} is not a value to search with: it is a number over 0 with its unit, like 50/s")
        return cls(float(match["number"]), match["unit"], isinstance(text, int) or not match["unit"])

    def at(self, number: float) -> Value:
        """Another number of the same unit, with no more digits than mean something."""
        rounded = round(number) if self.whole else float(f"{number:.{_DIGITS}g}")
        return Value(max(1.0, rounded) if self.whole else rounded, self.unit, self.whole)

    @property
    def written(self) -> int | str:
        """As it goes into the YAML."""
        return int(self.number) if self.whole else f"{self.number:.9f}".rstrip("0").rstrip(".") + self.unit

    def __str__(self) -> str:
        return str(self.written)


@dataclass(frozen=True)
class Probe:
    """One run of the search: what was tried, what came of it, and why."""

    value: Value
    outcome: Outcome
    text: str
    recording: str = ""


@dataclass
class Search:
    """What is known so far. `held` is the highest value that held, `not_held` the lowest one that did not."""

    probes: list[Probe] = field(default_factory=list)
    interrupted: bool = False

    @property
    def held(self) -> Value | None:
        limit = math.inf if self.not_held is None else self.not_held.number
        numbers = [p.value for p in self.probes if p.outcome is Outcome.HELD and p.value.number < limit]
        return max(numbers, key=lambda value: value.number, default=None)

    @property
    def not_held(self) -> Value | None:
        return self._lowest(Outcome.BROKEN, Outcome.INVALID)

    @property
    def bounded_by_generator(self) -> bool:
        """Whether the upper end of the bracket is a run that says nothing about the datacenter."""
        return any(p.value == self.not_held and p.outcome is Outcome.INVALID for p in self.probes)

    def _lowest(self, *outcomes: Outcome) -> Value | None:
        values = [p.value for p in self.probes if p.outcome in outcomes]
        return min(values, key=lambda value: value.number, default=None)


def search(
    start: Value,
    probe: Callable[[Value], Probe],
    *,
    highest: Value | None = None,
    precision: float = 0.1,
    tries: int = 12,
    into: Search | None = None,
) -> Search:
    """Double from `start` until a probe does not hold (or `highest` does), then bisect until within `precision`.

    KeyboardInterrupt from a probe ends the search; what is known by then is returned.
    """
    found = into if into is not None else Search()
    try:
        for _ in range(tries):
            value = _next(found, start, highest, precision)
            if value is None:
                break
            found.probes.append(probe(value))
    except KeyboardInterrupt:
        found.interrupted = True
    return found


def _next(found: Search, start: Value, highest: Value | None, precision: float) -> Value | None:
    """What to try next; None when enough is known."""
    if not found.probes:
        return start
    held, not_held = found.held, found.not_held
    if held is None:
        return None  # not even `start` did
    if not_held is None:
        if highest is not None and held.number >= highest.number:
            return None
        doubled = start.at(held.number * 2)
        return highest if highest is not None and doubled.number > highest.number else doubled
    if not_held.number <= held.number * (1 + precision):
        return None
    # between them by ratio, not by distance: a limit is known to so many per cent
    middle = start.at(math.sqrt(held.number * not_held.number))
    return None if middle.number in (held.number, not_held.number) else middle


# one experiment, with one parameter changed


@dataclass(frozen=True)
class Varied:
    """An experiment's file, and the place in it that is varied."""

    path: Path
    place: tuple[str, ...]

    @classmethod
    def of(cls, path: Path, place: str) -> Varied:
        """Raises UsageError for a place that is not there."""
        varied = cls(path, tuple(place.split(".")))
        _parent(varied._document(), varied.place, path)
        return varied

    def present(self) -> object:
        """What is written there; None when it is left to its default."""
        parent = _parent(self._document(), self.place, self.path)
        return parent[int(self.place[-1])] if isinstance(parent, list) else parent.get(self.place[-1])

    def write(self, value: Value, folder: Path) -> Path:
        """The experiment with that value, as a file in `folder`, from which its hypotheses are found as before."""
        document = self._document()
        parent = _parent(document, self.place, self.path)
        parent[int(self.place[-1]) if isinstance(parent, list) else self.place[-1]] = value.written
        file = folder / self.path.name
        with file.open("w") as out:
            _yaml().dump(document, out)
        own = next((above / FOLDER for above in self.path.resolve().parents if (above / FOLDER).is_dir()), None)
        if own is not None and not (folder / FOLDER).exists():
            (folder / FOLDER).symlink_to(own)
        return file

    def _document(self) -> Any:
        return _yaml().load(self.path.read_text())


def _yaml() -> YAML:
    yaml = YAML(typ="rt")
    yaml.width = 4096
    return yaml


def _parent(document: Any, place: Sequence[str], path: Path) -> Any:
    at = document
    for index, key in enumerate(place):
        last = index + 1 == len(place)
        if isinstance(at, list) and key.isdecimal() and int(key) < len(at):
            if last:
                return at
            at = at[int(key)]
        elif isinstance(at, dict) and (key in at or last):
            if last:
                return at
            at = at[key]
        else:
            there = (
                ", ".join(map(str, at))
                if isinstance(at, dict)
                else f"0 to {len(at) - 1}"
                if isinstance(at, list)
                else ""
            )
            where = ".".join(place[:index]) or "the experiment"
            raise UsageError(f"{path}: there is no {'.'.join(place)}: {where} has {there or 'no parts'}")
    raise UsageError(f"{path}: --vary names nothing; write it like load.kv-writes.rate")


def probe_of(varied: Varied, until: Sequence[Condition], run: Callable[[Path], Path]) -> Callable[[Value], Probe]:
    """What runs the experiment with a value and judges it. `run` gives the recording of the file that it is given."""

    def probe(value: Value) -> Probe:
        with tempfile.TemporaryDirectory(prefix="hashidrill-capacity-") as folder:
            recording = Recording(run(varied.write(value, Path(folder))))
        outcome, text = judged(recording, until)
        return Probe(value, outcome, text, str(recording.path))

    return probe


def judged(recording: Recording, until: Sequence[Condition]) -> tuple[Outcome, str]:
    """Whether all conditions held from the steady state to the end of the method, and what was measured."""
    overloaded = next(generator_doubts(recording, recording.experiment), None)
    if overloaded is not None:
        return Outcome.INVALID, overloaded.reason
    if recording.outcome == _STEADY:
        return Outcome.BROKEN, "the steady state never held"
    if recording.outcome == _GUARDRAIL:
        return Outcome.BROKEN, f"a guardrail tripped: {recording.events('guardrail')[-1].data.get('condition')}"
    if recording.outcome != "complete" or "method" not in recording.phases:
        ends = recording.events("end")
        why = ends[-1].data.get("error") if ends else "it was killed"
        return Outcome.INVALID, f"the run ended as {recording.outcome}: {why}"
    values = {condition: worst_value(recording, condition) for condition in until}
    text = "; ".join(f"{condition} (measured {value:.4g})" for condition, value in values.items())
    return Outcome.HELD if all(c.holds(value) for c, value in values.items()) else Outcome.BROKEN, text


def worst_value(recording: Recording, condition: Condition) -> float:
    """The condition's signal over the steady state and the method; with a `for`, over its worst window of that."""
    steady = recording.phases["steady"]
    begin_ns = max(steady[0], steady[1] - int(recording.experiment.steady_state.for_ * measure.SECOND))
    end_ns = recording.phases["method"][1]
    width_ns = end_ns - begin_ns if condition.window_s is None else int(condition.window_s * measure.SECOND)
    starts = range(begin_ns, max(begin_ns + 1, end_ns - width_ns + 1), max(1, width_ns // 4))
    values = [_value(recording, condition, start, min(end_ns, start + width_ns)) for start in starts]
    return next((value for value in values if not condition.holds(value)), values[0])


def _value(recording: Recording, condition: Condition, start_ns: int, end_ns: int) -> float:
    """NaN for what was not measured. What was not acknowledged counts as infinitely slow."""
    if condition.source in recording.loads and condition.what in LOAD_STATISTICS:
        ops = recording.operations(condition.source).between(start_ns, end_ns)
        if condition.what == "rate":
            return float(ops.ok.sum()) * measure.SECOND / (end_ns - start_ns)
        if condition.what == "errors":
            return ops.error_share()
        served = measure.served_s(ops)
        percent = {"latency.p50": 50, "latency.p90": 90, "latency.p99": 99, "latency.max": 100}.get(condition.what)
        if percent is not None:
            return measure.percentile(served, percent)
        return float(np.mean(served)) if len(served) else float("nan")
    by_host: dict[str, list[float]] = defaultdict(list)
    try:
        series = recording.series(f"{condition.source}.{condition.what}").between(start_ns, end_ns)
    except HypothesisInvalidError:
        return float("nan")
    for host, value in zip(series.host, series.value, strict=True):
        by_host[host].append(float(value))
    return of_worst_host(condition, by_host)
