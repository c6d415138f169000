"""The engine's view during a run: the last seconds of every load and signal.

It decides steady states, guardrails and ramps, and feeds the live view. Verdicts come from the recording alone,
offline. The figures follow the definition of hashidrill.core.judging.measure: latency counts from the moment an
operation was due, and an unacknowledged operation is infinitely slow. An operation that still waits takes at least as
long as it has waited. If no operation waits, the figures equal a verdict's.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hashidrill.core.experiment.conditions import LOAD_SIGNALS, LOAD_STATISTICS, Condition, Looks, Reading
from hashidrill.core.experiment.model import ATTEMPTS, Experiment
from hashidrill.core.protocols.abc import Operation, Sample
from hashidrill.core.protocols.events import Figures
from hashidrill.core.protocols.service import SILENT_S, Sampled, asks, lanes, probed
from hashidrill.core.recording.columns import IMPLAUSIBLE

if TYPE_CHECKING:
    from hashidrill.core.recording.reader import Bools, Floats, Int64s

_NS = 1e9
_ROUNDING = 1e-9
"""Tolerance for survival rates: a product of fractions may miss a round share by this much."""
_USUAL = 2.0
"""An operation counts as not served after this many times the longest latency served."""


class Ended:
    """The ended operations of one load, and its operations that are known to wait."""

    def __init__(self) -> None:
        # in order of arrival; `_heard` never decreases, so bisection finds a window without a scan
        self._heard, self._due, self._end, self._ok = array("q"), array("q"), array("q"), array("b")
        self._waiting: Counter[int] = Counter()
        self._looked_ns = -1
        self._windows: dict[float, Window] = {}  # windows of the current look, by length, shared by all conditions

    def __len__(self) -> int:
        return len(self._heard)

    def add(self, due_ns: int, end_ns: int, *, ok: bool) -> None:
        self._windows.clear()
        self._heard.append(max(end_ns, self._heard[-1]) if self._heard else end_ns)
        self._due.append(due_ns)
        self._end.append(end_ns)
        self._ok.append(ok)

    def wait(self, begun: Iterable[int], ended: Iterable[int]) -> None:
        """Adds what `hashidrill.core.loads.schedule.Waiting.take` returned."""
        self._windows.clear()
        self._waiting.update(begun)
        for due_ns in ended:
            self._waiting[due_ns] -= 1
            if self._waiting[due_ns] <= 0:
                del self._waiting[due_ns]

    def forget(self, before_ns: int) -> None:
        """Drops operations that ended before `before_ns`, once they are half of all: dropping moves the other half."""
        old = bisect_left(self._heard, before_ns)
        if old * 2 > len(self._heard):
            for column in (self._heard, self._due, self._end, self._ok):
                del column[:old]

    def window(self, now_ns: int, window_s: float) -> Window:
        """The operations that were in flight during the last `window_s` seconds."""
        if now_ns != self._looked_ns:
            self._windows.clear()
            self._looked_ns = now_ns
        if window_s not in self._windows:
            self._windows[window_s] = self._window(now_ns, window_s)
        return self._windows[window_s]

    def _window(self, now_ns: int, window_s: float) -> Window:
        since_ns = now_ns - int(window_s * _NS)
        at = bisect_left(self._heard, since_ns)
        end = np.frombuffer(self._end[at:], np.int64)
        inside = (end >= since_ns) & (end <= now_ns)
        due = np.frombuffer(self._due[at:], np.int64)[inside]
        ok = np.frombuffer(self._ok[at:], np.bool_)[inside]
        waiting = np.fromiter(self._waiting.elements(), np.int64)
        return Window(window_s, since_ns, now_ns, due, end[inside], ok, waiting[waiting < now_ns])


@dataclass(frozen=True)
class Window:
    """The operations that were in flight between `since_ns` and `now_ns`."""

    length_s: float
    since_ns: int
    now_ns: int
    due_ns: Int64s
    end_ns: Int64s
    ok: Bools
    waiting_ns: Int64s
    """Due times of the operations that still wait."""

    @property
    def empty(self) -> bool:
        return not len(self.due_ns) and not len(self.waiting_ns)

    def rate(self, *, acknowledged: bool) -> float:
        """Ended operations per second: only acknowledged ones, or all."""
        return float(self.ok.sum() if acknowledged else len(self.ok)) / self.length_s

    def errors(self) -> float:
        """Share of operations that were not acknowledged, 0 to 1; NaN if nothing is known.

        An operation counts as an error once it has waited for the whole window, and twice as long as any operation
        served in it. If no operation was served, and some failed or waited that long, the share is 1.
        """
        age_ns = (self.end_ns - self.due_ns).astype(np.float64)
        patience_ns = self._patience_ns()
        failed_ns = self.due_ns[~self.ok] + np.minimum(age_ns[~self.ok], patience_ns)
        given_up_ns = self.waiting_ns + patience_ns
        good = int(self.ok.sum())
        bad = int((failed_ns >= self.since_ns).sum())
        bad += int(((given_up_ns >= self.since_ns) & (given_up_ns <= self.now_ns)).sum())
        if good + bad:
            return bad / (good + bad)
        return 1.0 if len(failed_ns) or (given_up_ns <= self.now_ns).any() else float("nan")

    def failed(self) -> float:
        """Share of ended operations that were not acknowledged, 0 to 1; NaN if none ended. See also `overdue`."""
        return float(1 - self.ok.mean()) if len(self.ok) else float("nan")

    def overdue(self) -> tuple[int, float]:
        """How many operations wait so long that `errors` counts them, and the age of the oldest in seconds."""
        ages_ns = self.now_ns - self.waiting_ns[self.waiting_ns + self._patience_ns() <= self.now_ns]
        return len(ages_ns), float(ages_ns.max()) / _NS if len(ages_ns) else 0.0

    def _patience_ns(self) -> float:
        """After this time, a waiting operation counts as not served."""
        served_ns = (self.end_ns - self.due_ns)[self.ok]
        longest_ns = float(served_ns.max()) if len(served_ns) else 0.0
        return max(self.length_s * _NS, _USUAL * longest_ns)

    def percentile(self, percent: float) -> float:
        """The latency, in seconds, that `percent` of the operations stay within; NaN if there are no operations.

        If the percentile lies among waiting operations, returns the age of the oldest one, which is a lower bound.
        """
        if self.empty:
            return float("nan")
        course = self._course
        reached = np.flatnonzero(course.waits <= 1 - percent / 100 + _ROUNDING)
        if percent < 100 and len(reached):
            return float(course.at_s[reached[0]])
        never = course.left * course.never / max(course.never + course.beyond, 1)
        if not course.beyond or (percent < 100 and never > 1 - percent / 100 + _ROUNDING):
            return course.longest_s
        return float("inf") if percent >= 100 and course.never else course.oldest_s

    def mean(self) -> float:
        """Mean latency in seconds; infinite after a single failure, NaN if there are no operations."""
        if self.empty:
            return float("nan")
        course = self._course
        if course.never:
            return float("inf")
        before = np.concatenate(([1.0], course.waits))
        steps_s = np.diff(np.concatenate(([0.0], course.at_s, [course.oldest_s])))
        return float((before * np.maximum(steps_s, 0.0)).sum())

    @cached_property
    def _course(self) -> _Course:
        """A life table of this window: how many operations were served after which time.

        An operation that was due before the window counts only for the ages that the window saw, and a waiting one
        only up to its age (Kaplan and Meier's estimate, with delayed entry). So a window shorter than its latencies
        does not overlook waiting operations, and a few old ones do not dominate it.
        """
        served_ns = np.sort((self.end_ns - self.due_ns)[self.ok])
        ages_ns = np.sort(self.now_ns - self.waiting_ns)
        # the window sees operations due inside it from age 0 on; only earlier ones enter late
        due_ns = np.concatenate((self.due_ns, self.waiting_ns))
        entry_ns = np.sort(self.since_ns - due_ns[due_ns < self.since_ns])
        from_birth = len(due_ns) - len(entry_ns)
        first = np.flatnonzero(np.diff(served_ns, prepend=served_ns[:1] - 1))  # where in served_ns each latency begins
        at_ns, count = served_ns[first], np.diff(first, append=len(served_ns))
        left = first + np.searchsorted(ages_ns, at_ns, "left")
        present = from_birth + np.searchsorted(entry_ns, at_ns, "right") - left
        waits = np.cumprod(1 - count / np.maximum(present, count), dtype=np.float64)
        last_ns = int(at_ns[-1]) if len(at_ns) else -1
        oldest_ns = max(int(ages_ns[-1]) if len(ages_ns) else 0, last_ns)
        return _Course(
            at_ns / _NS,
            waits,
            float(waits[-1]) if len(waits) else 1.0,
            int((~self.ok).sum()),
            int((ages_ns > last_ns).sum()),
            oldest_ns / _NS,
        )


@dataclass(frozen=True)
class _Course:
    """`waits[i]` is the share of operations not served by `at_s[i]`, `left` the share not served by the last one."""

    at_s: Floats
    waits: Floats
    left: float
    never: int
    """How many failed."""
    beyond: int
    """The number of operations that have waited longer than any served operation took."""
    oldest_s: float

    @property
    def longest_s(self) -> float:
        return float("inf") if self.never else self.oldest_s


STATISTICS: dict[str, Callable[[Window], float]] = {
    "latency.p50": lambda window: window.percentile(50),
    "latency.p90": lambda window: window.percentile(90),
    "latency.p99": lambda window: window.percentile(99),
    "latency.max": lambda window: window.percentile(100),
    "latency.mean": Window.mean,
    "errors": Window.errors,
}


KEEP_S = 10.0
"""How many seconds of data are kept, unless a condition needs more."""
MOST_ASKED = 3
"""A live view has no room for more client agents."""
_TICK_S = 1.0
_SIGN_OF_LIFE = "generator.cpu"


def _silences(probes: Iterable[Sampled]) -> dict[str, tuple[float, bool]]:
    """For each signal: how long its probe may fail before the signal is unknown, and whether every host must answer."""
    return {signal: (probe.silent_s, bool(probe.regular)) for probe in probes for signal in probe.signals}


def longest_window_s(experiment: Experiment) -> float:
    """The longest time, in seconds, over which any condition of the experiment is judged during the run."""
    steady = experiment.steady_state
    profiles = [spec.profile for spec in experiment.traffic.values() if spec.profile is not None]
    conditions = [*steady.require, *experiment.guardrails, *(c for profile in profiles for c in profile.conditions)]
    asked_s = [condition.window_s or 0.0 for condition in conditions]
    silent = _silences(experiment.sampled(experiment.declared_signals))
    asked_s += [silent.get(f"{each.source}.{each.what}", (0.0, True))[0] for each in experiment.guardrails]
    return max(KEEP_S, steady.for_, *asked_s, *(profile.window_s for profile in profiles))


BREACH_S = 3.0
"""For how long a promise must be broken before profiles are taken: the experiment's own windows are longer."""
_PROMISED = {"p50_below": "latency.p50", "p99_below": "latency.p99", "errors_below": "errors"}


def promises(experiment: Experiment) -> list[Condition]:
    """What the steady state and the expectations promise about the loads, as conditions that can be watched."""
    found = [each for each in experiment.steady_state.require if each.source in experiment.traffic]
    for expected in experiment.expect:
        load = expected.params.get("load") or expected.params.get("client")
        for parameter, what in _PROMISED.items():
            if load in experiment.traffic and parameter in expected.params:
                with suppress(ValueError):  # the hypothesis gives this parameter another meaning
                    found.append(Condition.parse(f"{load}.{what} < {expected.params[parameter]}"))
    return found


class Monitor:
    """Trailing windows over operations and samples; `keep_s` is the longest window that a caller will ask for.

    `probes` are the run's probes, by default the probes of hosts and products.
    """

    def __init__(self, loads: Iterable[str], keep_s: float = KEEP_S, probes: Iterable[Sampled] | None = None) -> None:
        self._silent = _silences(probed() if probes is None else probes)
        self._keep_s = keep_s
        self._operations = {name: Ended() for name in loads}
        self._samples: dict[str, deque[tuple[int, int, str, float]]] = defaultdict(deque)
        self._names = {lane.signal: lane.title for lane in lanes() if lane.names}
        self._asks = set(asks().values())
        self._last: dict[str, dict[str, tuple[int, float]]] = defaultdict(dict)
        """The time and value of the last sample, by signal and host."""
        self._said: dict[str, str] = {}
        """The text of the last look, by signal."""
        self.leaders: dict[str, str] = {}
        """The leader, by the title of its lane: "" if no server leads. Lanes never sampled are absent."""
        self.asked: dict[str, str] = {}
        """What the first few client agents do, by host: `asks consul-2`, "" without a connection to a server."""
        self._failures: Counter[str] = Counter()
        self._faulted: dict[str, int] = {}
        """When a fault was last seen in force, by host."""

    def operation(self, op: Operation) -> None:
        ended = self._operations[op.load]
        ended.add(op.intended_ns, op.end_ns, ok=op.outcome == "ok")
        ended.forget(op.end_ns - int(self._keep_s * 1e9))
        self._failures[op.load] += op.outcome != "ok"

    def failures(self, load: str) -> int:
        """How many operations of that load or client ended without an acknowledgement since the run began."""
        return self._failures[load]

    def waiting(self, load: str, begun: Sequence[int], ended: Sequence[int]) -> None:
        """Adds operations that began to wait for an answer, by due time, and removes those that stopped waiting."""
        self._operations[load].wait(begun, ended)

    def sample(self, t_ns: int, sample: Sample) -> None:
        if sample.signal in self._names and not sample.host:
            self.leaders[self._names[sample.signal]] = sample.text if sample.ok else ""
        if sample.signal in self._asks and (sample.host in self.asked or len(self.asked) < MOST_ASKED):
            server = sample.text.partition(",")[0] if sample.ok else "an unknown server"
            self.asked[sample.host] = f"asks {server}" if server else ""
        # even a failed sample may have a value: no leader is 0
        figure = math.nan if sample.value is None else sample.value
        value = figure if abs(figure) < IMPLAUSIBLE else math.nan
        window = self._samples[sample.signal]
        # in order of arrival: the first column never decreases, so a look stops where its window ends
        window.append((max(t_ns, window[-1][0]) if window else t_ns, t_ns, sample.host, value))
        _forget(window, t_ns - int(self._keep_s * 1e9))
        self._last[sample.signal][sample.host] = (t_ns, value)
        self._said[sample.signal] = sample.text

    def said(self, condition: Condition) -> str:
        """The text of the last look at the condition's signal, like `connection refused`; "" if empty."""
        return self._said.get(f"{condition.source}.{condition.what}", "")

    def faulted(self, hosts: Iterable[str], now_ns: int) -> None:
        """Notes that a fault is in force on these hosts: one may be silent without making a guardrail unknown."""
        self._faulted.update(dict.fromkeys(hosts, now_ns))

    def reading(self, condition: Condition, now_ns: int, window_s: float) -> Reading:
        """The condition's signal over the last `window_s` seconds.

        `rate` counts acknowledged operations, but all attempts of a client. A load's statistics are unknown while
        its generator is silent. A load with no operation due has no figure.
        """
        if window_s > self._keep_s:
            raise ValueError(f"{condition}: only the last {self._keep_s:g}s are kept, not {window_s:g}s")
        of_attempts = condition.what.removeprefix(f"{ATTEMPTS[1:]}.")
        if condition.source in self._operations and of_attempts in LOAD_STATISTICS:
            load = condition.source if of_attempts == condition.what else f"{condition.source}{ATTEMPTS}"
            figure = _of_load(load, of_attempts, self._operations[load].window(now_ns, window_s))
            return Reading([Looks.of([figure])], blind=self._silent_generator(now_ns, window_s), shown=condition.figure)
        signal = f"{condition.source}.{condition.what}"
        if condition.source in self._operations and condition.what in LOAD_SIGNALS:
            return Reading([Looks.of([value for _, value in self._last[signal].values()])], shown=condition.figure)
        by_host = self._looks(signal, now_ns, window_s)
        return Reading(
            list(chosen(by_host).values()), blind=self._blind(condition, now_ns, window_s), shown=condition.figure
        )

    def broken(self, promised: Iterable[Condition], now_ns: int) -> str:
        """The promises that were broken over the last `BREACH_S`, with what was measured; "" if none certainly was."""
        readings = {str(each): (each, self.reading(each, now_ns, BREACH_S)) for each in promised}
        return "; ".join(
            f"{name} ({reading})"
            for name, (each, reading) in readings.items()
            if not reading.blind and not each.holds(reading.figure, unknown=True)
        )

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
        """Why the loads' figures are unknown; "" if the generator reports regularly, or never reported."""
        silent_s = max(window_s, SILENT_S)
        heard_ns = self._last.get(_SIGN_OF_LIFE, {}).get("", (now_ns, 0.0))[0]
        return f"the load generator was silent for {silent_s:g}s" if now_ns - heard_ns > silent_s * 1e9 else ""

    def _blind(self, condition: Condition, now_ns: int, window_s: float) -> str:
        """Why the signal is unknown, everywhere or on one host without a fault; "" if it is known.

        Looks back over the window, or longer if the probe may be silent for longer. A signal that only the leader
        reports needs no other host. A load's own signal is unknown only if looks failed: it need not look all the time.
        """
        signal = f"{condition.source}.{condition.what}"
        silent_s, of_each_host = self._silent.get(signal, (SILENT_S, True))
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
        """For the live view: each signal's last sample if it is fresh; the highest if several hosts report it."""
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
    """The majority's view if there is one, otherwise the view of each host."""
    return {"": by_host[""]} if "" in by_host else by_host


def _forget(window: deque[Any], before_ns: int) -> None:
    while window and window[0][0] < before_ns:
        window.popleft()
