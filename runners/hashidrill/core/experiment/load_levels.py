"""Load profiles: how a load changes during the method.

    profile: {steps: [10%, 50%, 100%, 200%], each: 10s}
    profile: {ramp: {to: 300%, over: 60s}}
    profile: {ramp: {by: 10%, every: 10s, while: ["kv-writes.latency.p50 < 300ms"]}}
    profile: {ramp: {at: 10s, from: 0%, by: 10%, to: 100%, every: 10s, while: ["web.running >= 30"], resume: true}}
    profile: {spike: {to: 500%, at: 10s, for: 5s}}
    profile: {search: {until: ["kv-writes.latency.p50 > 600ms"], from: 500%, to: 5000%, every: 4s, for: 120s}}
    profile: {recorded: a-day-in-production.csv, over: 30s}

A level is a percentage of the load's `rate` or `count`. Without a profile it is always 100%.
"""

from __future__ import annotations

import csv
import json
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from hashidrill.core.experiment.conditions import Condition
from hashidrill.core.experiment.documents import Document, Loc
from hashidrill.core.units import Duration, Level, positive

_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a level's course, from `start_ns` to the next: the level at its start, its change per second."""

    start_ns: int
    level: float
    slope_per_s: float = 0.0

    def at(self, t_ns: int) -> float:
        return self.level + self.slope_per_s * (t_ns - self.start_ns) / _NS


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a load that one of several generators offers: operation `index` and every `of`-th after it."""

    index: int = 0
    of: int = 1

    @property
    def first(self) -> bool:
        """Whether this generator does the tasks that exactly one generator must do."""
        return self.index == 0

    def count(self, operations: int) -> int:
        """How many of the first `operations` are in this part."""
        return max(0, -(-(operations - self.index) // self.of))


class Course:
    """One load's level: 1 until the method begins, then as its profile says.

    `profile` holds the pieces of the method; their times count from its start. `share` selects the operations that
    this generator offers.
    """

    def __init__(self, profile: Sequence[Piece] = (), share: Share = Share()) -> None:
        self._profile = profile
        self.share = share
        self.start_ns: int | None = None
        """When operation 0 is due, as agreed with other generators; None: when the load begins."""
        self.pieces: list[Piece] = [Piece(0, 1.0)]
        self.changes = 0
        """Counts changes, so that users of the pieces notice that they must plan again."""
        self._held_ns, self._slope_per_s = 0, 0.0
        self._later: list[Piece] = []

    def begin(self, t_ns: int) -> None:
        """Begins the method at `t_ns`, which may be a moment ago; the course is then corrected."""
        for piece in self._profile:
            self._add(replace(piece, start_ns=t_ns + piece.start_ns))

    def set(self, t_ns: int, level: float) -> None:
        """Sets the level from `t_ns` on."""
        self._add(Piece(t_ns, level))

    def hold(self, t_ns: int) -> None:
        """Keeps the level from `t_ns` on, until `go`."""
        self._held_ns, self._slope_per_s = t_ns, self.piece(t_ns).slope_per_s
        self._later = [piece for piece in self.pieces if piece.start_ns > t_ns]
        self._add(Piece(t_ns, self.at(t_ns)))

    def go(self, t_ns: int) -> None:
        """Ends a `hold`: all later changes are delayed by its length."""
        self._add(Piece(t_ns, self.at(t_ns), self._slope_per_s))
        for piece in self._later:
            self._add(replace(piece, start_ns=piece.start_ns + t_ns - self._held_ns))

    def _add(self, piece: Piece) -> None:
        while self.pieces and self.pieces[-1].start_ns >= piece.start_ns:
            self.pieces.pop()
        self.pieces.append(piece)
        self.changes += 1

    def piece(self, t_ns: int) -> Piece:
        """The piece that contains `t_ns`."""
        return self.pieces[max(0, bisect_right(self.pieces, t_ns, key=lambda piece: piece.start_ns) - 1)]

    def at(self, t_ns: int) -> float:
        return self.piece(t_ns).at(t_ns)


class Pace:
    """The due times of the operations of a load that starts at `start_ns` and offers `rate_per_s` at level 1."""

    def __init__(self, course: Course, rate_per_s: float, start_ns: int) -> None:
        self._course = course
        self._rate_per_s = rate_per_s
        self._start_ns = start_ns
        self._rewind()

    def _rewind(self) -> None:
        self._changes = self._course.changes
        self._index = 0
        self._done = 0.0  # operations that were due before the piece at `_index`
        self._steady: tuple[float, float, int, float] | None = None

    def due_ns(self, n: int) -> int | None:
        """When operation `n` is due; None if the present pieces have no more. `n` never decreases between calls."""
        if self._changes != self._course.changes:
            self._rewind()
        if self._steady is not None:  # most operations are like the one before: at a rate that does not change
            done, inside, begin_ns, per_s = self._steady
            if n - done < inside:
                return begin_ns + round((n - done) / per_s * _NS)
        pieces = self._course.pieces
        while True:
            piece = pieces[self._index]
            begin_ns = max(piece.start_ns, self._start_ns)
            last = self._index + 1 == len(pieces)
            until_ns = None if last else max(pieces[self._index + 1].start_ns, self._start_ns)
            level = piece.at(begin_ns)
            if until_ns is None:
                inside = math.inf if level > 0 else 0.0
            else:
                length_s = (until_ns - begin_ns) / _NS
                inside = self._rate_per_s * length_s * (level + piece.slope_per_s * length_s / 2)
            left = n - self._done
            if left < inside:
                if piece.slope_per_s == 0:
                    self._steady = self._done, inside, begin_ns, self._rate_per_s * level
                return begin_ns + round(_after(left, self._rate_per_s, level, piece.slope_per_s) * _NS)
            if last:
                return None
            self._done += inside
            self._index += 1


def _after(count: float, rate_per_s: float, level: float, slope_per_s: float) -> float:
    """Seconds in which `count` operations are due: the integral of rate * (level + slope * t), solved for t."""
    if slope_per_s == 0:
        return count / (rate_per_s * level)
    share = count / rate_per_s
    # this form of the quadratic's root loses no digits when the slope is small
    return 2 * share / (level + math.sqrt(max(0.0, level * level + 2 * slope_per_s * share))) if share else 0.0


MAX_LEVEL = 100.0
MAX_STEPS = 200


def _sane(level: Level) -> Level:
    if level > MAX_LEVEL:
        raise ValueError(f"a level may be at most {Level(MAX_LEVEL)} of the load's rate or count, not {level}")
    return level


Height = Annotated[Level, AfterValidator(_sane)]
Length = Annotated[Duration, AfterValidator(positive)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, defer_build=True)


class Ramp(_Part):
    """Rises evenly `to` a level `over` a time, or by one step (`by`) each `every`, `while` conditions hold."""

    to: Height | None = Field(default=None, description="The level at the end; for a ramp in steps, the highest level")
    over: Length | None = Field(default=None, description="Time to reach the level")
    by: Height | None = Field(default=None, description="The size of one step up")
    every: Length | None = Field(default=None, description="How long to hold and judge each level")
    while_: list[Condition] | None = Field(
        default=None, alias="while", min_length=1, max_length=20, description="Go on as long as these conditions hold"
    )
    step_back: bool = Field(
        default=True, description="When the conditions no longer hold, go back one step; with false, stay there"
    )
    at: Duration = Field(default=Duration("0s"), description="When a ramp in steps starts, after the method began")
    from_: Height = Field(default=Level("100%"), alias="from", description="The level that a ramp in steps starts at")
    resume: bool = Field(default=False, description="Go up again once the conditions hold again; false: never again")

    @model_validator(mode="after")
    def _one_of_two(self) -> Ramp:
        even = self.to is not None and self.over is not None
        stepwise = bool(self.by) and self.every is not None and self.while_ is not None
        if even == stepwise or (even and (self.by or self.every or self.while_)) or (stepwise and self.over):
            raise ValueError(
                "write a ramp either as `{to: 300%, over: 60s}`,"
                ' or as `{by: 10%, every: 10s, while: ["LOAD.latency.p50 < 300ms"]}`, with an optional highest `to`'
            )
        if even and (self.at or float(self.from_) != 1 or self.resume):
            raise ValueError("at, from and resume are for ramps in steps: this ramp rises evenly from 100 %, at once")
        if self.to is not None and stepwise and self.to < self.from_:
            raise ValueError(f"a ramp in steps must rise, but this one goes from {self.from_} to {self.to}")
        return self


class Spike(_Part):
    """Jumps to a level, and back to 100%."""

    to: Height = Field(description="The level of the spike")
    at: Duration = Field(default=Duration("0s"), description="When it starts, after the method began")
    for_: Length = Field(alias="for", description="How long it lasts")


class Search(_Part):
    """Raises the level from `from` by factor `by` `until` conditions hold, then keeps it."""

    until: list[Condition] = Field(
        min_length=1, max_length=20, description="Stop raising when these have held for two `every` in a row"
    )
    from_: Height = Field(alias="from", description="The first level to try")
    to: Height = Field(description="The highest level to try; if that is not enough, the run is INVALID")
    by: Height = Field(default=Level("150%"), description="Each level is this percentage of the one before")
    every: Length = Field(default=Duration("5s"), description="How long to hold and judge each level")
    at: Duration = Field(default=Duration("0s"), description="When it starts, after the method began")
    for_: Length = Field(alias="for", description="Length of the search plus the time at the level it finds; then 100%")

    @model_validator(mode="after")
    def _can_end(self) -> Search:
        if not 0 < self.from_ <= self.to:
            raise ValueError(f"a search must rise from over 0%, but this one goes from {self.from_} to {self.to}")
        if self.by <= 1:
            raise ValueError(f"each level must be over 100% of the one before, not {self.by}")
        longest = Duration(2 * self.every * len(self.levels))
        if longest > self.for_:
            raise ValueError(
                f"the search may take {longest} ({len(self.levels)} levels, each held up to twice {self.every}), but"
                f" lasts {self.for_}: let it last longer, or use fewer levels"
            )
        return self

    @property
    def levels(self) -> list[float]:
        """All levels that it may try, in order."""
        steps = math.ceil(round(math.log(self.to / self.from_) / math.log(self.by), 9))
        return [min(float(self.to), self.from_ * self.by**n) for n in range(steps + 1)]


_SHAPES = ("steps", "ramp", "spike", "search")
RECORDED = "recorded"
MOST_ROWS = 1000
_NUMBER = re.compile(r"\d{1,15}(\.\d{1,9})?")


def recorded_files(document: Document) -> list[tuple[Loc, str]]:
    """The place and the text of each `recorded: FILE` in an experiment."""
    parts = document.data if isinstance(document.data, dict) else {}
    return [
        ((section, name, "profile", RECORDED), profile[RECORDED])
        for section in ("load", "clients")
        for name, one in (parts[section].items() if isinstance(parts.get(section), dict) else ())
        if isinstance(one, dict) and isinstance(profile := one.get("profile"), dict)
        if isinstance(profile.get(RECORDED), str)
    ]


def with_recorded(document: Document, read_text: Callable[[Path], str]) -> Document:
    """The experiment with the rows of each recorded load in place of the name of its file.

    The path is relative to the file that names it. Raises ExperimentError, and what `read_text` raises.
    """
    for loc, written in recorded_files(document):
        path = Path(document.file_of(loc)).parent / written
        rows: list[tuple[float, float]] = []
        if not path.is_file():
            document.problem(loc, f"{written}: there is no such file (the path is relative to this one)")
        else:
            try:
                rows = list(_rows(read_text(path)))
            except ValueError as wrong:
                document.problem(loc, f"{written}: {wrong}")
        document.raise_problems()
        document = document.with_value(loc, Document(str(path), json.dumps(rows)))
    return document


def _rows(text: str) -> Iterator[tuple[float, float]]:
    """(seconds, rate) of each line. Raises ValueError."""
    lines = csv.reader(text.splitlines())
    for number, row in enumerate(lines, 1):
        if number > MOST_ROWS + 1:
            raise ValueError(f"over {MOST_ROWS} lines: give fewer, further apart")
        numbers = [float(each) for each in row if _NUMBER.fullmatch(each.strip())]
        if len(numbers) == len(row) == 2:
            yield numbers[0], numbers[1]
        elif number > 1:  # the first may have the names of the columns
            said = ",".join(row)[:40]
            raise ValueError(f"line {number}: expected two numbers, seconds and the rate from then on, got {said!r}")


class Profile(_Part):
    """How a load changes during the method: by `steps`, a `ramp`, a `spike` or a `search`, or as it was `recorded`."""

    steps: list[Height] | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_STEPS,
        description="Levels, one after the other; back to 100% after the last",
    )
    each: Length | None = Field(default=None, description="How long each step lasts")
    repeat: int = Field(default=1, ge=1, le=20, description="How many times to run through the steps")
    ramp: Ramp | None = None
    spike: Spike | None = None
    search: Search | None = None
    recorded: list[tuple[float, float]] | str | None = Field(
        default=None,
        description="A CSV file of seconds and the rate from then on, in any unit: 100% is the mean of its rates",
    )
    over: Length | None = Field(
        default=None, description="Time in which to replay what was recorded; default: the length of the recording"
    )

    @model_validator(mode="after")
    def _one_of_five(self) -> Profile:
        named = [name for name in (*_SHAPES, RECORDED) if getattr(self, name) is not None]
        if len(named) != 1:
            said = " and ".join(named) or "none of them"
            raise ValueError(f"give a profile exactly one of {', '.join(_SHAPES)} and {RECORDED}, not {said}")
        if self.over is not None and self.recorded is None:
            raise ValueError("over works only with recorded; a ramp has its own over")
        if self.recorded is not None:
            self._check_recorded(self.recorded)
        if (self.steps is None) != (self.each is None):
            raise ValueError("steps and each belong together: `{steps: [50%, 100%, 200%], each: 10s}`")
        if self.steps is None and self.repeat != 1:
            raise ValueError("repeat works only with steps")
        if self.steps is not None and not any(self.steps):
            raise ValueError("all steps are 0%, which is no load at all; give at least one of them a level")
        return self

    def _check_recorded(self, rows: list[tuple[float, float]] | str) -> None:
        if isinstance(rows, str):
            raise ValueError(f"{rows} can be read only if the experiment is a file")  # noqa: TRY004 - as all others
        if len(rows) < 2 or any(after[0] <= before[0] for before, after in pairwise(rows)):
            raise ValueError("the recorded load needs at least two lines, each later than the one before")
        if not any(rate for _, rate in rows):
            raise ValueError("all recorded rates are 0: at least one must be more")
        if (most := max(level for _, level in self.recorded_levels)) > MAX_LEVEL:
            raise ValueError(f"the highest recorded rate is {Level(most)} of the mean rate; at most {Level(MAX_LEVEL)}")

    @property
    def recorded_levels(self) -> list[tuple[float, float]]:
        """(begin in seconds after the method began, level) of each recorded line: the levels' mean over time is 1.

        The last line lasts as long as the one before it.
        """
        if self.recorded is None or isinstance(self.recorded, str):
            return []
        times = [at_s - self.recorded[0][0] for at_s, _ in self.recorded]
        times.append(2 * times[-1] - times[-2])
        rates = [rate for _, rate in self.recorded]
        mean = sum(rate * (end - begin) for rate, (begin, end) in zip(rates, pairwise(times), strict=True)) / times[-1]
        scale = (self.over or times[-1]) / times[-1]
        return [(at_s * scale, rate / mean) for at_s, rate in zip(times, rates, strict=False)]

    @property
    def conditions(self) -> Sequence[Condition]:
        """The conditions that control the level: a ramp rises while they hold, a search until they hold."""
        if self.search is not None:
            return self.search.until
        return (self.ramp.while_ or ()) if self.ramp else ()

    @property
    def window_s(self) -> float:
        """The seconds over which conditions without their own `for` are judged; 0 without such conditions."""
        if self.search is not None:
            return self.search.every
        return float(self.ramp.every or 0.0) if self.ramp else 0.0

    @property
    def length_s(self) -> float:
        """Seconds from the method's start to the last planned change, or to the start of a ramp under conditions."""
        if self.steps is not None and self.each is not None:
            return len(self.steps) * self.repeat * self.each
        for part in (self.spike, self.search):
            if part is not None:
                return part.at + part.for_
        if (levels := self.recorded_levels) and self.over is None:
            return 2 * levels[-1][0] - levels[-2][0]
        if self.over is not None:
            return float(self.over)
        return float(self.ramp.over or self.ramp.at) if self.ramp else 0.0

    def levels(self) -> list[tuple[float, float, float]]:
        """(begin, end, level) of every step, in seconds after the method began; empty without steps."""
        if self.steps is None or self.each is None:
            return []
        each = self.each
        return [(n * each, (n + 1) * each, float(level)) for n, level in enumerate(list(self.steps) * self.repeat)]

    def pieces(self) -> list[Piece]:
        """The level's course, in nanoseconds after the method began; empty if conditions control it."""
        return [Piece(round(at_s * _NS), level, slope) for at_s, level, slope in self._pieces()]

    def _pieces(self) -> Iterator[tuple[float, float, float]]:
        """Tuples of (begin in seconds, level, change per second)."""
        for begin_s, _, level in self.levels():
            yield begin_s, level, 0.0
        for begin_s, level in self.recorded_levels:
            yield begin_s, level, 0.0
        if self.steps is not None or self.recorded is not None:
            yield self.length_s, 1.0, 0.0
        if self.spike is not None:
            yield self.spike.at, float(self.spike.to), 0.0
            yield self.length_s, 1.0, 0.0
        if self.ramp is not None and self.ramp.to is not None and self.ramp.over is not None:
            yield 0.0, 1.0, (self.ramp.to - 1.0) / self.ramp.over
            yield self.length_s, float(self.ramp.to), 0.0
