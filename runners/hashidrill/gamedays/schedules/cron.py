"""A cron expression of five fields that means the same to Nomad, GitHub Actions and systemd.

The three read different dialects: Nomad's cronexpr knows L, W, #, seconds and `@daily`, GitHub knows POSIX's fields and
names, systemd has a form of its own. This module accepts their common subset: numbers, lists, ranges, steps over `*` or
a range, and the names of months and days of the week. It refuses everything else and names a valid alternative. No
cron library has this subset: each accepts its own dialect, which one of the three reads differently. The target then
checks the result: Nomad validates a job before it registers it, and tests use the real `nomad` and
`systemd-analyze`.
"""

import calendar
import datetime as dt
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from hashidrill.core.errors import UsageError

_MONTHS = {name.upper(): number for number, name in enumerate(calendar.month_abbr) if number}
_DAYS = {"SUN": 0, "MON": 1, "TUE": 2, "WED": 3, "THU": 4, "FRI": 5, "SAT": 6}
DAY_NAMES = ("Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat")
_FIELDS: tuple[tuple[str, int, int, dict[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of the month", 1, 31, {}),
    ("month", 1, 12, _MONTHS),
    ("day of the week", 0, 7, _DAYS),
)
_LONGEST_MONTH = {month: 29 if month == 2 else calendar.monthrange(2023, month)[1] for month in range(1, 13)}
_PART = re.compile(r"(?P<first>\*|\w+)(?:-(?P<last>\w+))?(?:/(?P<step>\w+))?")
_FURTHEST_DAYS = 366 * 9
"""A 29th of February may be eight years away."""
EXAMPLE = "like `17 2 * * *` (each night at 02:17) or `0 9 * * MON-FRI`"


@dataclass(frozen=True)
class Field:
    """The values of one field. `every`: the field was `*`, which restricts nothing."""

    values: tuple[int, ...]
    text: str

    @property
    def every(self) -> bool:
        return self.text == "*"


@dataclass(frozen=True)
class Cron:
    """A checked expression. Days of the week count from 0, which is Sunday."""

    minute: Field
    hour: Field
    day: Field
    month: Field
    weekday: Field

    def __str__(self) -> str:
        return " ".join(each.text for each in (self.minute, self.hour, self.day, self.month, self.weekday))

    @property
    def shortest_gap_minutes(self) -> int:
        """The shortest time between two runs, within a day with runs and across midnight."""
        times = [hour * 60 + minute for hour in self.hour.values for minute in self.minute.values]
        gaps = [later - one for one, later in pairwise(times)]
        return min([*gaps, 24 * 60 - times[-1] + times[0]])


def cron(text: str) -> Cron:
    """Raises UsageError that names the field, with a valid example."""
    words = text.split()
    if text.strip().startswith("@"):
        raise UsageError(f"--cron {text!r}: names like @daily vary between systems: write five fields, {EXAMPLE}")
    if len(words) != len(_FIELDS):
        raise UsageError(
            f"--cron {text!r}: expected 5 fields (minute, hour, day of the month, month, day of the week), got"
            f" {len(words)}: write it {EXAMPLE}"
        )
    fields = [_field(word, *about) for word, about in zip(words, _FIELDS, strict=True)]
    found = Cron(*fields)
    _check_days(found, text)
    return found


def _field(word: str, name: str, low: int, high: int, names: dict[str, int]) -> Field:
    values: set[int] = set()
    for part in word.split(","):
        values |= set(_part(part, f"--cron: {name} {word!r}", low, high, names))
    if high == 7:  # 7 is Sunday too, but not for GitHub
        values = {value % 7 for value in values}
    plain = re.fullmatch(r"[\d*/,-]+", word) and not (high == 7 and "7" in word)
    return Field(tuple(sorted(values)), word if plain else ",".join(map(str, sorted(values))))


def _part(part: str, where: str, low: int, high: int, names: dict[str, int]) -> Iterator[int]:
    found = _PART.fullmatch(part)
    if found is None:
        raise UsageError(
            f"{where}: Nomad, GitHub and systemd read {part!r} differently; write numbers, `1,15`,"
            f" `1-5`, `*` or `*/10`, {EXAMPLE}"
        )
    first, last, step = found["first"], found["last"], found["step"]
    if first == "*":
        if last is not None:
            raise UsageError(f"{where}: {part!r}: a range is from a number to a number, `1-5`")
        begin, end = low, min(high, 6) if high == 7 else high
    else:
        begin = _number(first, where, low, high, names)
        end = begin if last is None else _number(last, where, low, high, names)
        if end < begin:
            raise UsageError(f"{where}: {part!r} runs backwards: write two ranges, like `22-23,0-2`")
        if step is not None and last is None:
            raise UsageError(f"{where}: a step needs a range: write {first}-{high}/{step}")
    width = 1 if step is None else _number(step, where, 1, high, {})
    yield from range(begin, end + 1, width)


def _number(text: str, where: str, low: int, high: int, names: dict[str, int]) -> int:
    if text.upper() in names:
        return names[text.upper()]
    if not (text.isascii() and text.isdigit()) or not low <= int(text) <= high:
        known = f", or {', '.join(names)}" if names else ""
        raise UsageError(f"{where}: {text!r} is not from {low} to {high}{known}")
    return int(text)


def _check_days(found: Cron, text: str) -> None:
    if not found.day.every and not found.weekday.every:
        for field, most in ((found.day, 31), (found.weekday, 7)):
            if "*" in field.text or len(field.values) == most:
                raise UsageError(
                    f"--cron {text!r}: with a day of the month and a day of the week, some systems read {field.text!r}"
                    " as either, others as both: write `*` for one of the two, or numbers for both"
                )
    elif found.weekday.every and min(found.day.values) > max(_LONGEST_MONTH[month] for month in found.month.values):
        raise UsageError(f"--cron {text!r}: there is no such day in any of its months, so it would never run")


def on_calendar(found: Cron, zone: str) -> list[str]:
    """The expression in the form of systemd.time(7). Days of the month together with days of the week
    need two lines: cron runs when either matches, but one line of systemd needs both to match.

    The values are written one by one, so that nothing depends on how a step is read.
    """
    date = f"*-{_listed(found.month, 2)}-"
    time = f"{_listed(found.hour, 2)}:{_listed(found.minute, 2)}:00"
    tail = f" {time} {zone}"
    names = ",".join(DAY_NAMES[value] for value in found.weekday.values)
    lines = []
    if found.weekday.every or not found.day.every:
        lines.append(f"{date}{_listed(found.day, 2)}{tail}")
    if not found.weekday.every:
        lines.append(f"{names} {date}*{tail}")
    return lines


def _listed(field: Field, width: int) -> str:
    return "*" if field.every else ",".join(f"{value:0{width}d}" for value in field.values)


def next_times(found: Cron, after: dt.datetime, count: int) -> list[dt.datetime]:
    """The next runs after that moment, in its time zone; hours and minutes are local time."""
    times: list[dt.datetime] = []
    day = after.replace(hour=0, minute=0, second=0, microsecond=0)
    for offset in range(_FURTHEST_DAYS):
        date = day + dt.timedelta(days=offset)
        if not _on(found, date):
            continue
        for hour in found.hour.values:
            for minute in found.minute.values:
                if (moment := date.replace(hour=hour, minute=minute)) > after:
                    times.append(moment)
                    if len(times) == count:
                        return times
    return times


def _on(found: Cron, date: dt.datetime) -> bool:
    in_month, in_week = date.day in found.day.values, date.isoweekday() % 7 in found.weekday.values
    either = not found.day.every and not found.weekday.every
    return date.month in found.month.values and ((in_month or in_week) if either else (in_month and in_week))
