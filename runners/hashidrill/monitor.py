"""What the engine knows while the run goes on: the last seconds of every load and signal.

It decides steady states and guardrails, and feeds the live view. The verdict never comes from here: that is made
offline, from the recording.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hashidrill.abc import Operation, Sample
from hashidrill.conditions import LOAD_STATISTICS, Condition
from hashidrill.model import ATTEMPTS

_KEEP_S = 120.0
_TICK_S = 1.0
_OF_ALL_HOSTS = ("<", "<=", "==")
_STATISTICS: dict[str, Callable[[Any], float]] = {
    "latency.p50": lambda values: float(np.percentile(values, 50)),
    "latency.p90": lambda values: float(np.percentile(values, 90)),
    "latency.p99": lambda values: float(np.percentile(values, 99)),
    "latency.max": lambda values: float(np.max(values)),
    "latency.mean": lambda values: float(np.mean(values)),
}


class Monitor:
    """Trailing windows over operations (by their end) and samples."""

    def __init__(self, loads: Iterable[str]) -> None:
        self._operations: dict[str, deque[tuple[int, float, bool]]] = {name: deque() for name in loads}
        self._samples: dict[str, deque[tuple[int, str, float]]] = defaultdict(deque)
        self.leader = ""

    def operation(self, op: Operation) -> None:
        window = self._operations[op.load]
        window.append((op.end_ns, (op.end_ns - op.intended_ns) / 1e9, op.outcome == "ok"))
        _forget(window, op.end_ns)

    def sample(self, t_ns: int, sample: Sample) -> None:
        if sample.signal == "raft.leader" and not sample.host:
            self.leader = sample.text if sample.ok else ""
        # a failed sample may have a value all the same: no leader is 0
        value = sample.value if sample.value is not None else float("nan")
        window = self._samples[sample.signal]
        window.append((t_ns, sample.host, value))
        _forget(window, t_ns)

    def value(self, condition: Condition, now_ns: int, window_s: float) -> float:
        """The condition's signal over the last `window_s` seconds; NaN when nothing was measured.

        A signal with several hosts counts as its worst (highest) host's mean. A host that was not measured cannot be
        said to be below a limit, and does not hide one that is above.
        """
        since = now_ns - int(window_s * 1e9)
        of_attempts = condition.what.removeprefix(f"{ATTEMPTS[1:]}.")
        if condition.source in self._operations and of_attempts in LOAD_STATISTICS:
            load = condition.source if of_attempts == condition.what else f"{condition.source}{ATTEMPTS}"
            return self._load_value(load, of_attempts, since, window_s)
        by_host: dict[str, list[float]] = defaultdict(list)
        for t_ns, host, value in self._samples.get(f"{condition.source}.{condition.what}", ()):
            if t_ns >= since:
                by_host[host].append(value)
        return of_worst_host(condition, by_host)

    def _load_value(self, load: str, what: str, since_ns: int, window_s: float) -> float:
        recent = [(latency, ok) for end_ns, latency, ok in self._operations[load] if end_ns >= since_ns]
        if what == "rate":
            return len(recent) / window_s
        if not recent:
            return float("nan")
        if what == "errors":
            return 1 - sum(ok for _, ok in recent) / len(recent)
        return _STATISTICS[what]([latency for latency, _ in recent])

    def tick(self, now_ns: int) -> dict[str, dict[str, float]]:
        """For the live view: each load's last second."""
        table = {}
        for load in self._operations:
            since = now_ns - int(_TICK_S * 1e9)
            table[load] = {
                "rate": self._load_value(load, "rate", since, _TICK_S),
                "p50_s": self._load_value(load, "latency.p50", since, _TICK_S),
                "p99_s": self._load_value(load, "latency.p99", since, _TICK_S),
                "errors": self._load_value(load, "errors", since, _TICK_S),
            }
        return table


def of_worst_host(condition: Condition, by_host: Mapping[str, Sequence[float]]) -> float:
    """The mean of the worst (highest) host, or of the majority's view where there is one; NaN when there is nothing."""
    chosen = [by_host[""]] if "" in by_host else list(by_host.values())
    means = [float(np.mean(values)) for values in chosen]
    worst = np.max if condition.op in _OF_ALL_HOSTS else np.fmax.reduce  # the latter leaves NaN out
    return float(worst(means)) if means else float("nan")


def _forget(window: deque[Any], now_ns: int) -> None:
    while window and window[0][0] < now_ns - _KEEP_S * 1e9:
        window.popleft()
