"""What people predicted, as values with units that can be compared with what a recording measured."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hashidrill.core.judging.measure import seconds, share
from hashidrill.core.protocols.registry import near
from hashidrill.core.units import shown
from hashidrill.gamedays.gameday.model import UNITS, Question

Value = float | str | list[str]
SAME, ANOTHER, NOBODY = "same", "another", "nobody"
_CHOICES = {"leader": (SAME, ANOTHER, NOBODY), "verdict": ("PASS", "FAIL")}
_NONE = "none"
FACTOR = 2.0
"""A number that is off by more than this is a surprise, unless the difference is small:"""
SLACK = {"stop": 1.0, "latency": 0.1, "errors": 0.02}
"""Seconds, and for errors a share."""


@dataclass(frozen=True)
class Measured:
    """What a recording says about a question: its value, or why there is none."""

    value: Value | None
    text: str
    """For a person: the value, with where it comes from; or why there is none."""

    def to_data(self) -> dict[str, Any]:
        """JSON has no infinity: `never` stands for it."""
        return {"value": _NEVER if self.value == math.inf else self.value, "text": self.text}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Measured:
        """What `to_data` gave."""
        return cls(math.inf if data["value"] == _NEVER else data["value"], str(data["text"]))


_NEVER = "never"
Outcome = Literal["right", "surprise", "not asked", "not measured"]


def choices(question: Question, alerts: Sequence[str]) -> tuple[str, ...]:
    """What may be answered, where that is one of a few."""
    return tuple(alerts) if question.measure == "alerts" else _CHOICES.get(question.measure, ())


def how_to_answer(question: Question, alerts: Sequence[str]) -> str:
    """What an answer looks like."""
    if question.measure in UNITS:
        return UNITS[question.measure].how()
    if question.measure == "alerts":
        return f"{', '.join(alerts) or 'there is no alert that can fire'}; several with commas; or none"
    return ", ".join(_CHOICES[question.measure])


def read_answer(question: Question, written: str, alerts: Sequence[str]) -> Value:
    """The value that was meant. Raises ValueError that says what would be right."""
    text = " ".join(written.split())
    if question.measure in UNITS:
        return float(UNITS[question.measure](text))
    if question.measure == "alerts":
        names = [part.strip().lower() for part in text.split(",") if part.strip()]
        if names == [_NONE]:
            return []
        for name in names:
            if name not in alerts:
                raise ValueError(f"{shown(name)} is none of the alerts: {near(name, [*alerts, _NONE])}")
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
    """Whether what happened is what somebody predicted."""
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
