"""What is read from theirs: steps of a method, what was lost on the way, and what cannot be said at all."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hashidrill.errors import UsageError
from hashidrill.units import Duration, shown

ONCE_S = 3.0
"""How long a step is that is over at once: theirs have no length."""
MOST_STEPS = 20
_GO = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


class UnsupportedError(UsageError):
    """Something in their file that an experiment of ours cannot say; the message names its place."""


@dataclass
class Step:
    """One step of the method to be. Seconds."""

    fault: str
    on: str
    with_: dict[str, Any] = field(default_factory=dict)
    at_s: float = 0.0
    for_s: float = ONCE_S

    def as_data(self) -> dict[str, Any]:
        data: dict[str, Any] = {"fault": self.fault, "on": self.on}
        if self.with_:
            data["with"] = self.with_
        if self.at_s:
            data["at"] = seconds(self.at_s)
        return {**data, "for": seconds(self.for_s)}


@dataclass
class Reading:
    """One file while it is read. `on` is the selector that was asked for; empty where their labels decide."""

    on: str = ""
    side: str = ""
    """The other side of network faults that was asked for; "" where their labels decide."""
    steps: list[Step] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    def lose(self, text: str) -> None:
        if text not in self.lost:
            self.lost.append(text)

    def add(self, at_s: float, for_s: float, on: str, *faults: tuple[str, dict[str, Any]]) -> None:
        """Raises UnsupportedError for too many."""
        for fault, parameters in faults:
            self.steps.append(Step(fault, on, parameters, at_s, for_s))
        if len(self.steps) > MOST_STEPS:
            raise UnsupportedError(f"it has more than {MOST_STEPS} steps; import its parts one by one")


def go_seconds(value: Any, at: str) -> float:
    """A duration as Go writes it, like 1m30s. Raises UnsupportedError."""
    text = str(value).strip()
    parts = _GO.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise UnsupportedError(f"{at}: {shown(value)} is not a duration like 30s or 1m30s")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def seconds(value: float) -> str:
    """As an experiment writes it."""
    return str(Duration(round(value, 3)))


def go_text(value: float) -> str:
    """As Go reads it: our text for times has one unit, which Go knows too."""
    return seconds(value)


def percent(value: Any, at: str) -> str:
    """`25`, `"25"` or 25.0 as 25%. Raises UnsupportedError."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise UnsupportedError(f"{at}: {shown(value)} is not a percentage") from None
    return f"{number:g}%"


def mapping(value: Any, at: str) -> Mapping[str, Any]:
    """Raises UnsupportedError for anything else."""
    if not isinstance(value, Mapping):
        raise UnsupportedError(f"{at}: expected keys and values, got {shown(value)}")
    return value


def only(value: Mapping[str, Any], known: set[str], at: str) -> None:
    """Raises UnsupportedError for keys that nobody reads: their own API may drop a typo without a word."""
    if unknown := sorted(set(value) - known):
        raise UnsupportedError(f"{at}.{unknown[0]}: nobody reads this; known here are {', '.join(sorted(known))}")
