"""Predictions of a game day and the recorded results, as values that can be compared."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hashidrill.core.engine.monitor import STATISTICS, Window, chosen
from hashidrill.core.errors import HypothesisInvalidError
from hashidrill.core.experiment.conditions import LOAD_STATISTICS, Condition, Looks, Reading
from hashidrill.core.judging import measure
from hashidrill.core.judging.measure import SECOND, seconds, share, when
from hashidrill.core.judging.verdict import RunVerdict
from hashidrill.core.protocols.registry import near
from hashidrill.core.recording.reader import Operations, Recording, Series
from hashidrill.core.units import shown
from hashidrill.gamedays.gameday.plan import UNITS, Limit, Question

Value = float | str | list[str]
SAME, ANOTHER, NOBODY = "same", "another", "nobody"
_CHOICES = {"leader": (SAME, ANOTHER, NOBODY), "verdict": ("PASS", "FAIL")}
_NONE = "none"
FACTOR = 2.0
"""A prediction that is off by more than this factor is a surprise, unless the difference is at most SLACK."""
SLACK = {"stop": 1.0, "latency": 0.1, "errors": 0.02}
"""In seconds; for errors, a share."""


@dataclass(frozen=True)
class Measured:
    """A recording's answer to a question: its value, or why there is none."""

    value: Value | None
    text: str
    """For a person: the value with its source, or why there is none."""

    def to_data(self) -> dict[str, Any]:
        """JSON has no infinity: `never` stands for it."""
        return {"value": _NEVER if self.value == math.inf else self.value, "text": self.text}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Measured:
        """The reverse of `to_data`."""
        return cls(math.inf if data["value"] == _NEVER else data["value"], str(data["text"]))


_NEVER = "never"
Outcome = Literal["right", "surprise", "late", "not asked", "not measured"]


def choices(question: Question, alerts: Sequence[str]) -> tuple[str, ...]:
    """The possible answers, if there are only a few."""
    return tuple(alerts) if question.measure == "alerts" else _CHOICES.get(question.measure, ())


def how_to_answer(question: Question, alerts: Sequence[str]) -> str:
    """A description of valid answers."""
    if question.measure in UNITS:
        return UNITS[question.measure].how()
    if question.measure == "alerts":
        return f"{', '.join(alerts) or 'there is no alert that can fire'}; separate several with commas; or none"
    return ", ".join(_CHOICES[question.measure])


def read_answer(question: Question, written: str, alerts: Sequence[str]) -> Value:
    """Reads an answer. Raises ValueError with an example of a valid one."""
    text = " ".join(written.split())
    if question.measure in UNITS:
        return 0.0 if text == "0" else float(UNITS[question.measure](text))  # zero is the same in every unit
    if question.measure == "alerts":
        names = [part.strip().lower() for part in text.split(",") if part.strip()]
        if names == [_NONE]:
            return []
        for name in names:
            if name not in alerts:
                raise ValueError(f"{shown(name)} is not one of the alerts: {near(name, [*alerts, _NONE])}")
        return sorted(set(names))
    known = _CHOICES[question.measure]
    found = [each for each in known if each.lower().startswith(text.lower())] if text else []
    if len(found) != 1:
        raise ValueError(f"{shown(text)}: answer one of {', '.join(known)}")
    return found[0]


def in_words(question: Question, value: Value | None) -> str:
    """A value for a person: `2.1s`, `30%`, `no-leader, slow`."""
    if value is None:
        return ""
    if isinstance(value, list):
        return ", ".join(value) or _NONE
    if isinstance(value, str):
        return value
    return share(value) if question.measure == "errors" else seconds(value)


def compared(question: Question, answer: Value | None, measured: Measured | None) -> Outcome:
    """How the prediction compares with the measurement."""
    if answer is None:
        return "not asked"
    if measured is None or measured.value is None:
        return "not measured"
    if isinstance(answer, float) and isinstance(measured.value, (int, float)):
        return "right" if _near(question, answer, float(measured.value)) else "surprise"
    if isinstance(answer, list) and isinstance(measured.value, Collection) and not isinstance(measured.value, str):
        return "right" if set(answer) == set(measured.value) else "surprise"
    return "right" if answer == measured.value else "surprise"


def _near(question: Question, answer: float, measured: float) -> bool:
    if math.isinf(answer) or math.isinf(measured):
        return answer == measured
    if abs(answer - measured) <= SLACK[question.measure]:
        return True
    small, large = sorted((answer, measured))
    return small > 0 and large / small <= FACTOR


_LOOK_EVERY_S = 0.5
"""How often a condition is checked; guardrails are checked at the same interval."""


def answers_of(
    recording: Recording, verdict: RunVerdict, questions: Mapping[str, Question], alerts: Mapping[str, Condition]
) -> dict[str, Measured]:
    """The recording's answer to each question. An INVALID run answers only the question about its verdict."""
    return {name: _answer(recording, verdict, question, alerts) for name, question in questions.items()}


def passed_limits(recording: Recording, limits: Sequence[Limit]) -> list[str]:
    """One sentence for each limit that the run exceeded. A limit without a measurement counts as kept."""
    found = []
    for limit in limits:
        if limit.load not in recording.experiment.traffic:
            continue
        question = Question(measure=limit.measure, ask="-", load=limit.load)
        measured = _measured(recording, question, {})
        if isinstance(measured.value, float) and measured.value > limit.value:
            found.append(f"{limit.measure} of {limit.load} was {measured.text}: above {limit.above}")
    return found


def _answer(recording: Recording, verdict: RunVerdict, question: Question, alerts: Mapping[str, Condition]) -> Measured:
    if question.measure == "verdict":
        return Measured(verdict.verdict.value, verdict.verdict.value)
    if verdict.invalid:
        return Measured(None, f"the run is INVALID: {verdict.invalid[0]}")
    return _measured(recording, question, alerts)


def _measured(recording: Recording, question: Question, alerts: Mapping[str, Condition]) -> Measured:
    try:
        if question.measure == "leader":
            return leader_afterwards(recording, question.signal)
        if question.measure == "alerts":
            return alerts_that_fire(recording, alerts)
        load = str(question.load)
        return {"stop": longest_stop, "latency": latency_under_fault, "errors": errors_under_fault}[question.measure](
            recording, load
        )
    except HypothesisInvalidError as error:
        return Measured(None, str(error))


def leader_afterwards(recording: Recording, signal: str = "raft.leader") -> Measured:
    """The leader at the end of the recovery: the same as at the start of the method, another, or none.

    Raises HypothesisInvalidError if no server led at that start, or if the leader was not sampled.
    """
    start_ns, _ = measure.method(recording)
    seen = measure.reigns(recording, start_ns, measure.loads_end_ns(recording), signal)
    before, after = seen[0].host, seen[-1].host
    if not before:
        raise HypothesisInvalidError("no server led when the method began")
    if not after:
        return Measured(NOBODY, f"{NOBODY}: {before} led before")
    if after == before:
        changes = any(reign.host not in {"", before} or measure.elected_again(seen[0], reign) for reign in seen[1:])
        return Measured(SAME, f"{SAME}: {after}" + (", again" if changes else ""))
    return Measured(ANOTHER, f"{ANOTHER}: {after}, after {before}")


def longest_stop(recording: Recording, load: str) -> Measured:
    """The longest time in seconds without an acknowledged operation, from the start of the method to the end of the
    recovery.

    An operation counts at the time of its acknowledgement.
    """
    start_ns, _ = measure.method(recording)
    end_ns = measure.loads_end_ns(recording)
    ops = recording.operations(load)
    acknowledged = np.sort(ops.end_ns[ops.ok])
    inside = acknowledged[(acknowledged > start_ns) & (acknowledged < end_ns)]
    edges = np.concatenate(([start_ns], inside, [end_ns]))
    gaps_ns = np.diff(edges)
    longest = int(np.argmax(gaps_ns))
    stop_s = float(gaps_ns[longest]) / SECOND
    return Measured(stop_s, f"{seconds(stop_s)}, from {when(int(edges[longest]))}")


def latency_under_fault(recording: Recording, load: str) -> Measured:
    """The p50, in seconds, of operations due while a fault was in force. A failed one counts as never acknowledged."""
    ops = measure.during(recording, recording.operations(load))
    p50_s = measure.percentile(measure.served_s(ops), 50)
    return Measured(p50_s, f"{seconds(p50_s)}, over {len(ops)} operations")


def errors_under_fault(recording: Recording, load: str) -> Measured:
    """The share of operations due while a fault was in force that were not acknowledged."""
    ops = measure.settled(recording, measure.during(recording, recording.operations(load)))
    if not len(ops):
        raise HypothesisInvalidError(f"no operation of {load} was due while a fault was in force")
    failed = int((~ops.ok).sum())
    return Measured(failed / len(ops), f"{share(failed / len(ops))}, {failed} of {len(ops)} operations")


def alerts_that_fire(recording: Recording, alerts: Mapping[str, Condition]) -> Measured:
    """The conditions that held at any moment from the start of the method to the end of the recovery."""
    start_ns, _ = measure.method(recording)
    end_ns = measure.loads_end_ns(recording)
    moments = {name: _fires(recording, alert, start_ns, end_ns) for name, alert in alerts.items()}
    fired = {name: at_ns for name, at_ns in moments.items() if at_ns is not None}
    said = [f"{name} ({when(at_ns)})" for name, at_ns in fired.items()]
    return Measured(sorted(fired), ", ".join(said) or "none")


def _fires(recording: Recording, alert: Condition, start_ns: int, end_ns: int) -> int | None:
    """The first time at which a successful look shows that the condition held.

    Raises HypothesisInvalidError if its signal was not recorded, or if no look succeeded during a whole window.
    """
    window_s = alert.window_s or Condition.DEFAULT_WINDOW_S
    of_load = alert.source in recording.experiment.traffic and alert.what in LOAD_STATISTICS
    ops = recording.operations(alert.source) if of_load else None
    series = None if of_load else recording.series(f"{alert.source}.{alert.what}")
    blind_ns = None
    for at_ns in range(start_ns, end_ns + 1, int(_LOOK_EVERY_S * SECOND)):
        reading = (
            Reading([Looks([_of_operations(ops, alert, at_ns, window_s)])])
            if ops is not None
            else _of_samples(series, at_ns, window_s)
        )
        if reading.maybe(alert):
            return at_ns
        if reading.failed and np.isnan(reading.figure) and blind_ns is None:
            blind_ns = at_ns
    if blind_ns is not None:
        raise HypothesisInvalidError(
            f"whether {alert} fired is unknown: no look succeeded for {window_s:g}s, {when(blind_ns)}"
        )
    return None


def _of_operations(ops: Operations, alert: Condition, now_ns: int, window_s: float) -> float:
    since_ns = now_ns - int(window_s * SECOND)
    ended = (ops.end_ns >= since_ns) & (ops.end_ns <= now_ns)
    waiting = (ops.intended_ns < now_ns) & (ops.end_ns > now_ns)
    window = Window(
        window_s, since_ns, now_ns, ops.intended_ns[ended], ops.end_ns[ended], ops.ok[ended], ops.intended_ns[waiting]
    )
    if alert.what == "rate":
        return window.rate(acknowledged=True)
    return float("nan") if window.empty else STATISTICS[alert.what](window)


def _of_samples(series: Series | None, now_ns: int, window_s: float) -> Reading:
    by_host: dict[str, list[float]] = defaultdict(list)
    if series is not None:
        inside = np.flatnonzero((series.t_ns >= now_ns - int(window_s * SECOND)) & (series.t_ns <= now_ns))
        for index in inside:
            by_host[series.host[index]].append(float(series.value[index]))
    return Reading(list(chosen({host: Looks.of(values) for host, values in by_host.items()}).values()))
