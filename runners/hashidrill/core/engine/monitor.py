"""The engine's view during a run: the last seconds of every load and signal.

It decides steady states, guardrails and ramps, and feeds the live view. The verdict never comes from here: it is made
offline from the recording, with the same definition of latency (hashidrill.core.engine.windows).
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hashidrill.core.engine.windows import STATISTICS, Ended, Window
from hashidrill.core.experiment.conditions import LOAD_SIGNALS, LOAD_STATISTICS, Condition, Looks, Reading
from hashidrill.core.experiment.model import ATTEMPTS, Experiment
from hashidrill.core.judging.doubts import probed
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.abc import Operation, Sample
from hashidrill.core.protocols.events import Figures
from hashidrill.core.protocols.service import SILENT_S
from hashidrill.core.recording.columns import IMPLAUSIBLE

KEEP_S = 10.0
"""How long data is kept if no condition needs it for longer."""
_TICK_S = 1.0
_SIGN_OF_LIFE = "generator.cpu"
_SILENT_S = {signal: (probe.silent_s, bool(probe.regular)) for probe in probed() for signal in probe.signals}
"""How long the looks at a probe's signal may fail before it is unknown, and whether each host must be seen."""


def longest_window_s(experiment: Experiment) -> float:
    """The longest time, in seconds, over which a condition of the experiment is judged while it runs."""
    steady = experiment.steady_state
    profiles = [spec.profile for spec in experiment.traffic.values() if spec.profile is not None]
    conditions = [*steady.require, *experiment.guardrails, *(c for profile in profiles for c in profile.conditions)]
    asked_s = [condition.window_s or 0.0 for condition in conditions]
    asked_s += [_SILENT_S.get(f"{each.source}.{each.what}", (0.0, True))[0] for each in experiment.guardrails]
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
        self._faulted: dict[str, int] = {}
        """When a fault was last seen in force on a host."""

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
        figure = math.nan if sample.value is None else sample.value
        value = figure if abs(figure) < IMPLAUSIBLE else math.nan
        window = self._samples[sample.signal]
        # in order of arrival: the first column never decreases, so a look stops where its window ends
        window.append((max(t_ns, window[-1][0]) if window else t_ns, t_ns, sample.host, value))
        _forget(window, t_ns - int(self._keep_s * 1e9))
        self._last[sample.signal][sample.host] = (t_ns, value)

    def faulted(self, hosts: Iterable[str], now_ns: int) -> None:
        """A fault of the run is in force on these hosts: one of them may be silent without blinding a guardrail."""
        self._faulted.update(dict.fromkeys(hosts, now_ns))

    def reading(self, condition: Condition, now_ns: int, window_s: float) -> Reading:
        """What is known of the condition's signal over the last `window_s` seconds.

        `rate` counts acknowledged operations; for the attempts of a client, all of them. A load's statistics are
        unknown while its generator is silent. A load with nothing due has no figure.
        """
        if window_s > self._keep_s:
            raise ValueError(f"{condition}: only the last {self._keep_s:g}s are kept, not {window_s:g}s")
        of_attempts = condition.what.removeprefix(f"{ATTEMPTS[1:]}.")
        if condition.source in self._operations and of_attempts in LOAD_STATISTICS:
            load = condition.source if of_attempts == condition.what else f"{condition.source}{ATTEMPTS}"
            figure = _of_load(load, of_attempts, self._operations[load].window(now_ns, window_s))
            return Reading([Looks.of([figure])], blind=self._silent_generator(now_ns, window_s))
        signal = f"{condition.source}.{condition.what}"
        if condition.source in self._operations and condition.what in LOAD_SIGNALS:  # told when it changes
            return Reading([Looks.of([value for _, value in self._last[signal].values()])])
        by_host = self._looks(signal, now_ns, window_s)
        return Reading(list(chosen(by_host).values()), blind=self._blind(condition, now_ns, window_s))

    def _looks(self, signal: str, now_ns: int, window_s: float) -> dict[str, Looks]:
        since_ns = now_ns - int(window_s * 1e9)
        by_host: dict[str, list[float]] = defaultdict(list)
        for heard_ns, t_ns, host, value in reversed(self._samples.get(signal, ())):
            if heard_ns < since_ns:
                break
            if t_ns >= since_ns:
                by_host[host].append(value)
        return {host: Looks.of(values) for host, values in by_host.items()}

    def _silent_generator(self, now_ns: int, window_s: float) -> str:
        """Why nothing is known of any load; nothing where the generator gives signs of life, or never gave one."""
        silent_s = max(window_s, SILENT_S)
        heard_ns = self._last.get(_SIGN_OF_LIFE, {}).get("", (now_ns, 0.0))[0]
        return f"the load generator was silent for {silent_s:g}s" if now_ns - heard_ns > silent_s * 1e9 else ""

    def _blind(self, condition: Condition, now_ns: int, window_s: float) -> str:
        """Why the signal, or that of a host without a fault, is unknown; nothing where a look at each succeeded.

        Over the window, or as long as its probe may be silent. What only the leader reports needs no other host. A
        load's own signal is unknown where looks failed: it need not look all the time.
        """
        signal = f"{condition.source}.{condition.what}"
        silent_s, of_each_host = _SILENT_S.get(signal, (SILENT_S, True))
        within_s = max(window_s, silent_s)
        looks = chosen(self._looks(signal, now_ns, within_s))
        if condition.source in self._operations:
            unknown = bool(looks) and not any(one.figures for one in looks.values())
            return f"no look at {signal} succeeded for {within_s:g}s" if unknown else ""
        if not any(one.figures for one in looks.values()):
            return f"no look at {signal} succeeded for {within_s:g}s"
        since_ns = now_ns - int(within_s * 1e9)
        sighted = [host for host, one in looks.items() if one.figures]
        known = [] if not of_each_host or "" in looks else [host for host in self._last[signal] if host]
        lost = [host for host in known if host not in sighted and self._faulted.get(host, -1) < since_ns]
        return f"no look at {signal} of {', '.join(lost)} succeeded for {within_s:g}s" if lost else ""

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


def chosen(by_host: Mapping[str, Looks]) -> Mapping[str, Looks]:
    """The majority's view if there is one, else that of each host."""
    return {"": by_host[""]} if "" in by_host else by_host


def _forget(window: deque[Any], before_ns: int) -> None:
    while window and window[0][0] < before_ns:
        window.popleft()
