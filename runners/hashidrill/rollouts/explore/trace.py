"""The abstract trace of a recording: a few states instead of thousands of samples, the same for trials that went alike.

A state is what holds in a slice of half a second: whether a leader is known, how many servers think that they lead, how
many are silent, how far the last one is behind, whether health flags are good, and which classes of errors the loads
had. An effect is what happened at all, like an election.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

import numpy as np

from hashidrill.core.errors import HypothesisInvalidError
from hashidrill.core.experiment.model import services_of
from hashidrill.core.probes.agents import SnapshotLogProbe
from hashidrill.core.protocols.service import (
    BEHIND,
    LEADER_ELECTED,
    LEADS,
    SNAPSHOT_BEGINS,
    SNAPSHOT_INSTALLED,
    Drawn,
    ShowsMoments,
)
from hashidrill.core.recording.columns import Series
from hashidrill.core.recording.reader import Recording
from hashidrill.rollouts.explore import space

_SLICE_NS = 500_000_000
_FRESH_NS = 3_000_000_000
_SECOND = 1_000_000_000
_HEALTHY, _FAILED = "_healthy", "_failed"
_BLIP_S = 1.0
"""A shorter time without a known leader is a late answer of the probe, as when a follower is killed."""
_LAGS = (10, 100, 1000)
_MOST_TERMS = 3


@dataclass(frozen=True)
class Trace:
    """`states` in the order in which they were first seen; `effects` as `space.EVENTS` names them, with `space.LATER`
    if they came only after the last fault; `gap_s`: the longest time without a leader, 0 without any.
    """

    states: Sequence[str]
    effects: Sequence[str]
    gap_s: float
    caused: Sequence[Sequence[str]] = ()
    """For each fault, what happened after it began and before the next one did; with `space.LATER` what came once it
    was gone.
    """


def trace_of(recording: Recording) -> Trace:
    """The trace from the first fault until the loads stop; empty for a recording without a method."""
    phases = recording.phases
    if "method" not in phases:
        return Trace((), (), 0.0)
    begin, end = phases["method"][0], phases.get("recovery", phases["method"])[1]
    view = _View(recording, begin, end)
    slices = np.arange(begin, max(end, begin + 1), _SLICE_NS)
    states = dict.fromkeys(view.state(int(at), int(at) + _SLICE_NS) for at in slices)
    gone = [window.gone_ns for window in recording.faults if window.gone_ns is not None]
    last = max(gone, default=begin)
    events = list(view.events())
    during = {what for what, at in events if at <= last}
    later = {space.LATER + what for what, at in events if at > last and what not in during}
    errors = {f"errors: {word}" for state in states for word in state.partition(" errors ")[2].split()}
    lost = {"a leader was lost"} if view.gap_s() else set()
    caused = tuple(_caused(events, recording))
    return Trace(tuple(states), tuple(sorted(during | later | errors | lost)), view.gap_s(), caused)


def _caused(events: Sequence[tuple[str, int]], recording: Recording) -> Iterator[Sequence[str]]:
    """For each step of the method, in its order."""
    windows: dict[int, list[tuple[int, int]]] = {}
    for window in recording.faults:
        if window.applied_ns is not None:
            gone_ns = window.gone_ns or window.applied_ns
            windows.setdefault(window.step, []).append((window.applied_ns, gone_ns))
    began = {step: min(at for at, _ in each) for step, each in windows.items()}
    for step in range(len(recording.experiment.method)):
        if step not in began:
            yield ()
            continue
        until = min((at for at in began.values() if at > began[step]), default=math.inf)
        gone = max(at for _, at in windows[step])
        own = [(what, at) for what, at in events if began[step] <= at < until]
        during = {what for what, at in own if at <= gone}
        yield tuple(sorted(during | {space.LATER + what for what, at in own if at > gone and what not in during}))


class _View:
    def __init__(self, recording: Recording, begin: int, end: int) -> None:
        self._recording, self._begin, self._end = recording, begin, end
        self._services = [
            each for each in services_of(recording.experiment.datacenter) if isinstance(each, ShowsMoments)
        ]
        self._terms = {each.name: self._by_host(each.moments.get(LEADER_ELECTED, "")) for each in self._services}
        self._indices = {each.name: self._by_host(each.moments.get(BEHIND, "")) for each in self._services}
        self._flags = [
            (name, series)
            for name in recording.signals
            if name.endswith((_HEALTHY, _FAILED)) and (series := self._series(name)) is not None
        ]
        self._leaders = [
            series
            for each in self._services
            if isinstance(each, Drawn)
            for lane in each.lanes
            if lane.names and (series := self._series(lane.signal)) is not None
        ]
        self._operations = [recording.operations(load) for load in recording.loads]

    def _series(self, signal: str, host: str | None = None) -> Series | None:
        try:
            return self._recording.series(signal, host)
        except HypothesisInvalidError:
            return None

    def _by_host(self, signal: str) -> dict[str, Series]:
        found = self._series(signal) if signal in self._recording.signals else None
        if found is None:
            return {}
        each = {host: self._series(signal, host) for host in dict.fromkeys(found.host)}
        return {host: series for host, series in each.items() if series is not None}

    def state(self, start: int, end: int) -> str:
        parts = [f"leader {int(_last(series, end)[0] >= 1)}" for series in self._leaders]
        for service in self._services:
            terms = {host: _last(series, end) for host, series in self._terms[service.name].items()}
            parts.append(f"leads {min(sum(text == LEADS for _, text in terms.values()), 2)}")
            parts.append(f"silent {min(sum(math.isnan(value) for value, _ in terms.values()), 2)}")
            values = [value for value, _ in terms.values() if not math.isnan(value)]
            parts.append(f"terms {min(int(max(values, default=0.0) - self._first_term(service.name)), _MOST_TERMS)}")
            parts.append(f"lag {sum(self._lag(service.name, end) >= each for each in _LAGS)}")
        bad = [name for name, series in self._flags if (_last(series, end)[0] >= 1) is name.endswith(_FAILED)]
        parts.append(f"flags {','.join(sorted(bad)) or 'good'}")
        reasons = sorted({reason for ops in self._operations for reason in _reasons(ops, start, end)})
        return " ".join([*parts, *(["errors", *reasons] if reasons else [])])

    def _first_term(self, service: str) -> float:
        values = [_last(series, self._begin)[0] for series in self._terms[service].values()]
        return max((value for value in values if not math.isnan(value)), default=0.0)

    def _lag(self, service: str, at: int) -> float:
        values = [_last(series, at, fresh=False)[0] for series in self._indices[service].values()]
        known = [value for value in values if not math.isnan(value)]
        return max(known) - min(known) if known else 0.0

    def events(self) -> Iterator[tuple[str, int]]:
        """What happened, as a moment of the language, and when."""
        for service in self._services:
            for series in self._terms[service.name].values():
                yield from ((space.ELECTED, at) for at in _elections(series, self._begin, self._end))
            behind = [
                (at, self._lag(service.name, at) >= space.BEHIND_ENTRIES)
                for at in range(self._begin, self._end, _SLICE_NS)
            ]
            yield from ((space.BEHIND, at) for (_, was), (at, now) in pairwise([(0, False), *behind]) if now > was)
            for kind, what in ((SNAPSHOT_BEGINS, space.SNAPSHOT), (SNAPSHOT_INSTALLED, space.INSTALLED)):
                for series in self._by_host(service.moments.get(kind, "")).values():
                    yield from ((what, at) for at in _rises(series, self._begin, self._end))
        yield from self._logged()

    def _logged(self) -> Iterator[tuple[str, int]]:
        """Snapshots, which agents tell in their logs alone."""
        began = self._recording.journal[0]
        kinds = dict(zip(SnapshotLogProbe.words, (space.SNAPSHOT, space.INSTALLED), strict=True))
        for log in sorted((self._recording.path / "logs").glob("*/*.log")):
            for line in log.read_text(errors="replace").splitlines():
                what = next((kind for words, kind in kinds.items() if words in line.lower()), None)
                at = None if what is None else _stamp(line)
                if what is None or at is None:
                    continue
                t_ns = int((at - began.wall) * _SECOND) + began.t_ns
                if self._begin <= t_ns <= self._end:
                    yield what, t_ns

    def gap_s(self) -> float:
        """The longest time for which no server was known to lead, of a second or more."""
        longest = 0
        for series in self._leaders:
            inside = (series.t_ns >= self._begin) & (series.t_ns <= self._end)
            times, known = series.t_ns[inside], (series.ok & (series.value >= 1))[inside]
            since: int | None = None
            for at, leads in zip(times.tolist(), known.tolist(), strict=True):
                if leads:
                    longest, since = max(longest, 0 if since is None else at - since), None
                elif since is None:
                    since = at
            if since is not None:
                longest = max(longest, self._end - since)
        return round(longest / _SECOND, 2) if longest >= _BLIP_S * _SECOND else 0.0


def _last(series: Series, at: int, *, fresh: bool = True) -> tuple[float, str]:
    """The value and text of the last sample before `at` (if not `fresh`: the last good one); NaN if failed or old."""
    index = int(np.searchsorted(series.t_ns, at)) - 1
    while not fresh and index >= 0 and not series.ok[index]:
        index -= 1
    if index < 0 or not series.ok[index] or (fresh and series.t_ns[index] < at - _FRESH_NS):
        return math.nan, ""
    return float(series.value[index]), str(series.text[index])


def _elections(series: Series, begin: int, end: int) -> Iterator[int]:
    leading = [
        (int(at), float(value))
        for at, value, text in zip(series.t_ns, series.value, series.text, strict=True)
        if text == LEADS
    ]
    terms: set[float] = {value for at, value in leading if at < begin}
    for at, value in leading:
        if begin <= at <= end and value not in terms:
            terms.add(value)
            yield at


def _rises(series: Series, begin: int, end: int) -> Iterator[int]:
    known = [(int(at), float(value)) for at, value, ok in zip(series.t_ns, series.value, series.ok, strict=True) if ok]
    yield from (at for (_, before), (at, value) in pairwise(known) if value > before and begin <= at <= end)


def _reasons(ops: Any, start: int, end: int) -> set[str]:
    """The classes of the errors of operations that ended in that time."""
    at = np.flatnonzero((ops.end_ns >= start) & (ops.end_ns < end) & ~ops.ok)
    return {(ops.reasons[index] or str(ops.outcome[index])).replace(" ", "-") for index in at.tolist()}


def _stamp(line: str) -> float | None:
    try:
        return datetime.fromisoformat(line.split(maxsplit=1)[0]).timestamp()
    except (ValueError, IndexError, OverflowError):
        return None
