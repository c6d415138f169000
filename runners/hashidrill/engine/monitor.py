"""The engine's view during a run: the last seconds of every load and signal.

It decides steady states, guardrails and ramps, and feeds the live view. The verdict never comes from here: it is made
offline from the recording, with the same definition of latency (hashidrill.engine.windows).
"""

from __future__ import annotations

import math
import operator
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hashidrill import registry
from hashidrill.abc import Operation, Sample
from hashidrill.engine.windows import STATISTICS, Ended, Window
from hashidrill.events import Figures
from hashidrill.experiment.conditions import LOAD_STATISTICS, Condition
from hashidrill.experiment.model import ATTEMPTS, Experiment
from hashidrill.service import SILENT_S

KEEP_S = 10.0
"""How long data is kept if no condition needs it for longer."""
_TICK_S = 1.0
_DECIDED_BY_ONE_HOST: dict[str, Callable[[float, float], bool]] = {
    "<": operator.ge, "<=": operator.gt, "==": operator.gt
}  # fmt: skip
"""Comparisons that need all hosts, each with the test of the highest measured host that already refutes it."""


def longest_window_s(experiment: Experiment) -> float:
    """The longest time, in seconds, over which a condition of the experiment is judged while it runs."""
    steady = experiment.steady_state
    profiles = [spec.profile for spec in experiment.traffic.values() if spec.profile is not None]
    conditions = [*steady.require, *experiment.guardrails, *(c for profile in profiles for c in profile.conditions)]
    asked_s = [condition.window_s or 0.0 for condition in conditions]
    return max(KEEP_S, steady.for_, *asked_s, *(profile.window_s for profile in profiles))


class Monitor:
    """Trailing windows over operations and samples; `keep_s` is the longest window that anybody will ask for."""

    def __init__(self, loads: Iterable[str], keep_s: float = KEEP_S) -> None:
        self._keep_s = keep_s
        self._operations = {name: Ended() for name in loads}
        self._samples: dict[str, deque[tuple[int, int, str, float]]] = defaultdict(deque)
        lanes = [lane for service in registry.services().values() for lane in service.lanes]
        self._names = {lane.signal: lane.title for lane in lanes if lane.names}
        self._last: dict[str, dict[str, tuple[int, float]]] = defaultdict(dict)
        """Of each signal, by host: when it was sampled last, and its value."""
        self.leaders: dict[str, str] = {}
        """Who leads, by the title of the lane: "" for nobody. Nothing of what nobody has sampled."""

    def operation(self, op: Operation) -> None:
        ended = self._operations[op.load]
        ended.add(op.intended_ns, op.end_ns, ok=op.outcome == "ok")
        ended.forget(op.end_ns - int(self._keep_s * 1e9))

    def waiting(self, load: str, begun: Sequence[int], ended: Sequence[int]) -> None:
        """Operations that began to wait for an answer, by due time, and those that stopped waiting."""
        self._operations[load].wait(begun, ended)

    def sample(self, t_ns: int, sample: Sample) -> None:
        if sample.signal in self._names and not sample.host:
            self.leaders[self._names[sample.signal]] = sample.text if sample.ok else ""
        # even a failed sample may have a value: no leader is 0
        value = sample.value if sample.value is not None else float("nan")
        window = self._samples[sample.signal]
        # in order of arrival: the first column never decreases, so a look stops where its window ends
        window.append((max(t_ns, window[-1][0]) if window else t_ns, t_ns, sample.host, value))
        _forget(window, t_ns - int(self._keep_s * 1e9))
        self._last[sample.signal][sample.host] = (t_ns, value)

    def value(self, condition: Condition, now_ns: int, window_s: float) -> float:
        """The condition's signal over the last `window_s` seconds; NaN when nothing was measured.

        `rate` counts acknowledged operations; for the attempts of a client, all of them.
        A signal of several hosts counts as the mean of its worst (highest) host. A host that was not measured is not
        below a limit, and does not hide another one that is above.
        """
        if window_s > self._keep_s:
            raise ValueError(f"{condition}: only the last {self._keep_s:g}s are kept, not {window_s:g}s")
        since = now_ns - int(window_s * 1e9)
        of_attempts = condition.what.removeprefix(f"{ATTEMPTS[1:]}.")
        if condition.source in self._operations and of_attempts in LOAD_STATISTICS:
            load = condition.source if of_attempts == condition.what else f"{condition.source}{ATTEMPTS}"
            return _of_load(load, of_attempts, self._operations[load].window(now_ns, window_s))
        by_host: dict[str, list[float]] = defaultdict(list)
        for heard_ns, t_ns, host, value in reversed(self._samples.get(f"{condition.source}.{condition.what}", ())):
            if heard_ns < since:
                break
            if t_ns >= since:
                by_host[host].append(value)
        return of_worst_host(condition, by_host)

    def tick(self, now_ns: int) -> dict[str, Figures]:
        """For the live view: each load's last second, with waiting operations apart from failed ones."""
        table = {}
        for load, operations in self._operations.items():
            window = operations.window(now_ns, _TICK_S)
            waiting, waited_s = window.overdue()
            table[load] = Figures(
                rate=_of_load(load, "rate", window),
                p50_s=_known(window.percentile(50)),
                p99_s=_known(window.percentile(99)),
                errors=_known(window.failed()),
                waiting=waiting,
                waited_s=waited_s if waiting else None,
            )
        return table

    def probes(self, now_ns: int) -> dict[str, float]:
        """For the live view: the last sample of each signal, if it is fresh; of several hosts, the highest."""
        since = now_ns - int(SILENT_S * 1e9)
        found = {}
        for signal, by_host in self._last.items():
            fresh = {host: value for host, (t_ns, value) in by_host.items() if t_ns >= since and not math.isnan(value)}
            if fresh:
                found[signal] = fresh.get("", max(fresh.values()))
        return found


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _of_load(load: str, what: str, window: Window) -> float:
    if what == "rate":
        return window.rate(acknowledged=not load.endswith(ATTEMPTS))
    return STATISTICS[what](window)


def of_worst_host(condition: Condition, by_host: Mapping[str, Sequence[float]]) -> float:
    """The mean of the worst (highest) host, or of the majority's view if there is one; NaN if there is nothing.

    Also NaN if a host was not measured and could change the answer: `<` needs all hosts below the limit, but one host
    above it decides.
    """
    chosen = [by_host[""]] if "" in by_host else list(by_host.values())
    means = [float(np.mean(values)) for values in chosen]
    if not means:
        return float("nan")
    worst = float(np.fmax.reduce(means))  # ignores NaN
    decided = _DECIDED_BY_ONE_HOST.get(condition.op)
    if decided is not None and np.isnan(means).any() and not decided(worst, condition.limit):
        return float("nan")
    return worst


def _forget(window: deque[Any], before_ns: int) -> None:
    while window and window[0][0] < before_ns:
        window.popleft()
