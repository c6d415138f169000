"""The search for a limit: the highest value of one parameter of an experiment at which its SLO still holds.

Each probe is a real run with that parameter changed. The search doubles the value until the SLO does not hold, bisects
from there, and repeats both ends. A run in which the generator was the bottleneck is also an upper bound, and is named
as such; an INVALID run is not a bound.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from hashidrill.core.compare.measured import use_of
from hashidrill.core.errors import UsageError
from hashidrill.core.experiment.conditions import Condition
from hashidrill.core.experiment.library import complete, read_experiment
from hashidrill.core.experiment.loader import resolve
from hashidrill.core.experiment.resolved import ResolvedExperiment
from hashidrill.core.hypothesis.files import FOLDER
from hashidrill.core.judging.at_worst import all_hold
from hashidrill.core.judging.judge import judge_question
from hashidrill.core.judging.validity import Validity
from hashidrill.core.judging.verdict import Finding
from hashidrill.core.recording.reader import Recording
from hashidrill.lab.sandbox.sandbox import scratch_folder

TRIES, REPEAT = 16, 2
"""The most runs, and how many runs must agree at each end of the bracket."""
_WRITTEN = re.compile(r"(?P<number>[0-9]{1,15}(\.[0-9]{1,9})?)\s?(?P<unit>[A-Za-z%/]*)")
_DIGITS = 3
"""Significant digits of the values that are tried."""


class Outcome(StrEnum):
    """The result of a run: the SLO held, it did not, the generator was the bottleneck, or the run proves nothing."""

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
    """Whether it is written without a decimal point, because it is a count."""

    @classmethod
    def parse(cls, text: object) -> Value:
        """Raises UsageError."""
        match = None if isinstance(text, bool) else _WRITTEN.fullmatch(str(text).strip())
        if match is None or not float(match["number"]):
            raise UsageError(f"{text!r} is not a value to search with: write a number over 0 with its unit, like 50/s")
        return cls(float(match["number"]), match["unit"], isinstance(text, int) or not match["unit"])

    def at(self, number: float) -> Value:
        """A number of the same unit, with only the significant digits."""
        rounded = round(number) if self.whole else float(f"{number:.{_DIGITS}g}")
        return Value(max(1.0, rounded) if self.whole else rounded, self.unit, self.whole)

    @property
    def written(self) -> int | str:
        """The value in the form that YAML needs."""
        return int(self.number) if self.whole else f"{self.number:.9f}".rstrip("0").rstrip(".") + self.unit

    def __str__(self) -> str:
        return str(self.written)


@dataclass(frozen=True)
class Probe:
    """One run of the search: its value, its outcome, and the reason."""

    value: Value
    outcome: Outcome
    text: str
    recording: str = ""


@dataclass
class Search:
    """The results so far. `held` is the highest value that held, `not_held` the lowest one that did not.

    The majority of its runs decides about a value that was tried several times; a tie counts as not held. A run that
    proves nothing (it crashed, or nothing was measured) sets no bound.
    """

    probes: list[Probe] = field(default_factory=list)
    interrupted: bool = False
    stuck: Probe | None = None
    """The second INVALID run of the same value: the search cannot go on."""

    @property
    def held(self) -> Value | None:
        limit = math.inf if self.not_held is None else self.not_held.number
        return max((v for v in self._of(Outcome.HELD) if v.number < limit), key=_number, default=None)

    @property
    def not_held(self) -> Value | None:
        return min((*self._of(Outcome.BROKEN), *self._of(Outcome.GENERATOR)), key=_number, default=None)

    @property
    def bounded_by_generator(self) -> bool:
        """Whether the upper bound comes from the generator, which says nothing about the datacenter."""
        return self.not_held is not None and self.outcome(self.not_held) is Outcome.GENERATOR

    def outcome(self, value: Value) -> Outcome:
        """The most frequent outcome of the runs at a value."""
        counts = self.counts(value)
        if not counts:
            return Outcome.INVALID
        # in a tie, the SLO did not hold each time, and BROKEN by the datacenter outweighs GENERATOR
        return max((Outcome.BROKEN, Outcome.GENERATOR, Outcome.HELD), key=lambda outcome: counts[outcome])

    def counts(self, value: Value) -> Counter[Outcome]:
        """The count of each outcome for a value, without runs that gave no result."""
        return Counter(p.outcome for p in self.probes if p.value == value and p.outcome is not Outcome.INVALID)

    def split(self, value: Value) -> bool:
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
    """Doubles from `start` until a probe does not hold (or `highest` does), then bisects until within `precision`.

    Runs both ends of the bracket again until `repeat` runs of each agree: one run is a sample of a busy machine.
    KeyboardInterrupt from a probe ends the search, which then returns what is known.
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
    """Repeats the value of a run without a result; after the second time the search is stuck."""
    if not found.probes or found.probes[-1].outcome is not Outcome.INVALID:
        return None
    last = found.probes[-1]
    if sum(p.value == last.value and p.outcome is Outcome.INVALID for p in found.probes) > 1:
        found.stuck = last
    return last.value


def _even(found: Search) -> Value | None:
    counts = found.counts(found.probes[-1].value).most_common() if found.probes else []
    return found.probes[-1].value if len(counts) > 1 and counts[0][1] == counts[1][1] else None


def _next(found: Search, start: Value, highest: Value | None, precision: float) -> Value | None:
    """The next value to try; None when the bracket is narrow enough."""
    if not found.probes:
        return start
    held, not_held = found.held, found.not_held
    if held is None:
        return None  # not even `start` held
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
    for value in (found.held, found.not_held):
        if value is not None and max(found.counts(value).values()) < repeat:
            return value
    return None


def confirmed(found: Search, value: Value | None, repeat: int) -> bool:
    return value is None or max(found.counts(value).values(), default=0) >= repeat


_STEADY, _GUARDRAIL = "steady-state", "guardrail"
_OUTCOMES = {Finding.HELD: Outcome.HELD, Finding.BROKEN: Outcome.BROKEN, Finding.INVALID: Outcome.INVALID}


@dataclass(frozen=True)
class Varied:
    """An experiment's file, and the place in it that is varied."""

    path: Path
    place: tuple[str, ...]

    @classmethod
    def of(cls, path: Path, place: str) -> Varied:
        """Raises UsageError if the experiment lacks that place."""
        varied = cls(path, tuple(place.split(".")))
        _parent(varied._document(), varied.place, path)
        return varied

    def present(self) -> object:
        """The value in the file; None if the file leaves the default."""
        parent = _parent(self._document(), self.place, self.path)
        return parent[int(self.place[-1])] if isinstance(parent, list) else parent.get(self.place[-1])

    def write(self, value: Value, folder: Path) -> Path:
        """Writes the experiment with that value to a file in `folder`, from which its hypotheses are still found."""
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
        return _yaml().load(complete(read_experiment(self.path)))


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


def probe_of(
    varied: Varied, until: Sequence[Condition], run: Callable[[ResolvedExperiment], Path]
) -> Callable[[Value], Probe]:
    """Returns a function that runs the experiment with a value and judges it. `run` returns the recording."""

    def probe(value: Value) -> Probe:
        with scratch_folder() as folder:
            resolved = resolve(varied.write(value, folder))
        recording = Recording(run(resolved))
        outcome, text = judged(recording, until)
        return Probe(value, outcome, text, str(recording.path))

    return probe


def judged(recording: Recording, until: Sequence[Condition]) -> tuple[Outcome, str]:
    """Whether all conditions held from the steady state to the end of the method, and what was measured.

    The conditions are judged as if the experiment expected them. A run that is INVALID for `hashidrill check` gives no
    bound here, with two exceptions: a run in which the generator was the bottleneck, and a run that was sick before its
    method or until a guardrail tripped.
    """
    validity = Validity.of(recording)
    if validity.damaged:
        return Outcome.INVALID, validity.damaged[0]
    if validity.generator:
        return Outcome.GENERATOR, validity.generator[0].reason
    if recording.outcome == _STEADY:
        if disturbed := use_of(recording, ()).why:
            return Outcome.INVALID, f"the steady state never held, and {disturbed}"
        measured = any(len(recording.operations(load)) for load in recording.loads)
        outcome = Outcome.BROKEN if measured else Outcome.INVALID
        return outcome, "the steady state never held" if measured else "no load completed an operation"
    if recording.outcome == _GUARDRAIL:
        return Outcome.BROKEN, f"a guardrail tripped: {recording.events('guardrail')[-1].data.get('condition')}"
    finding, text = judge_question(recording, lambda run: all_hold(run, until), "--until")
    return _OUTCOMES[finding], text
