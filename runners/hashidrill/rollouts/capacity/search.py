"""The search for a limit: the highest value of one parameter of an experiment at which its SLO still holds.

Each probe is a real run with that parameter changed. The search doubles the value until the SLO does not hold, and
bisects from there, and repeats both ends. Runs in which the generator was the bottleneck bound it too, under that name;
runs that say nothing do not.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from hashidrill.core.errors import UsageError

TRIES, REPEAT = 16, 2
"""Runs at most; and how many must agree at each end of the bracket."""
_WRITTEN = re.compile(r"(?P<number>[0-9]{1,15}(\.[0-9]{1,9})?)\s?(?P<unit>[A-Za-z%/]*)")
_DIGITS = 3
"""Significant digits of the values that are tried."""


class Outcome(StrEnum):
    """What a run says: the SLO held, it did not, the generator was the bottleneck, or the run says nothing at all."""

    HELD = "held"
    BROKEN = "broken"
    GENERATOR = "generator"
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
    """What is known so far. `held` is the highest value that held, `not_held` the lowest one that did not.

    A value that was tried several times is what most of its runs say, and not held where these are even. A run that
    says nothing (it crashed, or nothing was measured) is no bound.
    """

    probes: list[Probe] = field(default_factory=list)
    interrupted: bool = False
    stuck: Probe | None = None
    """A run that said nothing twice: nothing is known beyond it."""

    @property
    def held(self) -> Value | None:
        limit = math.inf if self.not_held is None else self.not_held.number
        return max((v for v in self._of(Outcome.HELD) if v.number < limit), key=_number, default=None)

    @property
    def not_held(self) -> Value | None:
        return min((*self._of(Outcome.BROKEN), *self._of(Outcome.GENERATOR)), key=_number, default=None)

    @property
    def bounded_by_generator(self) -> bool:
        """Whether the upper end of the bracket is one of the generator, which says nothing about the datacenter."""
        return self.not_held is not None and self.outcome(self.not_held) is Outcome.GENERATOR

    def outcome(self, value: Value) -> Outcome:
        """What the runs at a value say together."""
        counts = self.counts(value)
        if not counts:
            return Outcome.INVALID
        # where they are even, it does not hold each time; and what the datacenter did weighs more than its generator
        return max((Outcome.BROKEN, Outcome.GENERATOR, Outcome.HELD), key=lambda outcome: counts[outcome])

    def counts(self, value: Value) -> Counter[Outcome]:
        """How often each outcome came of a value, without the runs that say nothing."""
        return Counter(p.outcome for p in self.probes if p.value == value and p.outcome is not Outcome.INVALID)

    def split(self, value: Value) -> bool:
        """Whether runs at this value disagree."""
        return len(self.counts(value)) > 1

    def _of(self, outcome: Outcome) -> list[Value]:
        return [value for value in dict.fromkeys(p.value for p in self.probes) if self.outcome(value) is outcome]


def _number(value: Value) -> float:
    return value.number


def search(
    start: Value,
    probe: Callable[[Value], Probe],
    *,
    highest: Value | None = None,
    precision: float = 0.1,
    tries: int = TRIES,
    repeat: int = REPEAT,
    into: Search | None = None,
) -> Search:
    """Double from `start` until a probe does not hold (or `highest` does), then bisect until within `precision`.

    Both ends of the bracket are run again until `repeat` runs of each agree: one run is a sample of a busy machine.
    KeyboardInterrupt from a probe ends the search; what is known by then is returned.
    """
    found = into if into is not None else Search()
    try:
        for _ in range(tries):
            value = _again(found) or _even(found) or _next(found, start, highest, precision) or _edge(found, repeat)
            if value is None or found.stuck is not None:
                break
            found.probes.append(probe(value))
    except KeyboardInterrupt:
        found.interrupted = True
    return found


def _again(found: Search) -> Value | None:
    """The value of a run that said nothing, once more; after the second time the search is stuck."""
    if not found.probes or found.probes[-1].outcome is not Outcome.INVALID:
        return None
    last = found.probes[-1]
    if sum(p.value == last.value and p.outcome is Outcome.INVALID for p in found.probes) > 1:
        found.stuck = last
    return last.value


def _even(found: Search) -> Value | None:
    """The last value, where as many of its runs held as did not."""
    counts = found.counts(found.probes[-1].value).most_common() if found.probes else []
    return found.probes[-1].value if len(counts) > 1 and counts[0][1] == counts[1][1] else None


def _next(found: Search, start: Value, highest: Value | None, precision: float) -> Value | None:
    """The next value to try; None when the bracket is narrow enough."""
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
    # between them by ratio, not by distance: the precision of a limit is a percentage
    middle = start.at(math.sqrt(held.number * not_held.number))
    return None if middle.number in (held.number, not_held.number) else middle


def _edge(found: Search, repeat: int) -> Value | None:
    """An end of the bracket that too few runs agree on."""
    for value in (found.held, found.not_held):
        if value is not None and max(found.counts(value).values()) < repeat:
            return value
    return None


def confirmed(found: Search, value: Value | None, repeat: int) -> bool:
    """Whether `repeat` runs at this value agree."""
    return value is None or max(found.counts(value).values(), default=0) >= repeat
