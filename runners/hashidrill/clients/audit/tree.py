"""The content of a configuration file, with the line and column of each part, in any language.

Names are compared folded: to Consul, Nomad and Vault, `NumRetries`, `num_retries` and, in HCL, `NUM_RETRIES` are the
same. A value that is known only at run time (`var.count`, `"${...}"`, a function call) is an Expression: rules must
not guess it.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from json.decoder import scanstring  # type: ignore[attr-defined]

MAX_DEPTH = 100
"""The deepest nesting that is read: deeper than any configuration, and far from Python's recursion limit."""

BYTE_ORDER_MARK = "the file starts with a byte order mark, which no agent accepts: save it without one"


@dataclass(frozen=True, order=True)
class Place:
    """A line and a column, both from 1."""

    line: int
    column: int


class MalformedError(Exception):
    """A text cannot be parsed: `place` says where, `what` says why."""

    def __init__(self, place: Place, what: str) -> None:
        super().__init__(what)
        self.place = place
        self.what = what


@dataclass(frozen=True)
class Scalar:
    value: str | float | bool | None
    place: Place


@dataclass(frozen=True)
class Expression:
    """A value that is unknown before the run. `text` is the source text; for a string, without its quotes."""

    text: str
    place: Place


@dataclass(frozen=True)
class Sequence:
    items: tuple[Value, ...]
    place: Place


@dataclass(frozen=True)
class Entry:
    """`key = value`, or a block with its labels and a Mapping as its value."""

    key: str
    labels: tuple[str, ...]
    value: Value
    place: Place


@dataclass(frozen=True)
class Comment:
    """A comment's text without its marks, its line, and in `trailing` whether it follows something on that line."""

    text: str
    line: int
    trailing: bool


def fold(name: str) -> str:
    """A name in the form used for comparison."""
    return name.replace("_", "").replace("-", "").lower()


@dataclass(frozen=True)
class Mapping:
    """The body of a block, an object, or a whole file. Later settings take precedence; blocks are appended."""

    entries: tuple[Entry, ...]
    place: Place
    labels: tuple[str, ...] = ()
    _by_name: dict[str, list[Entry]] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        for entry in self.entries:
            self._by_name.setdefault(fold(entry.key), []).append(entry)

    def find(self, *names: str) -> Entry | None:
        """The last entry with one of these names; null counts as missing."""
        found = [entry for name in names for entry in self._by_name.get(fold(name), [])]
        said = [entry for entry in found if not (isinstance(entry.value, Scalar) and entry.value.value is None)]
        return said[-1] if said else None

    def has(self, *names: str) -> bool:
        """Whether one of these names has a value; an empty list or string counts as missing."""
        return any(not empty(entry.value) for name in names for entry in self._by_name.get(fold(name), []))

    def blocks(self, *names: str) -> list[Mapping]:
        """All bodies with one of these names: blocks, objects, and objects in lists, in the order of the file."""
        entries = [entry for name in names for entry in self._by_name.get(fold(name), [])]
        return [body for entry in entries for body in _bodies(entry)]

    def block(self, *names: str) -> Mapping | None:
        """All bodies with one of these names, merged like the agents merge them; None if there are none."""
        found = self.blocks(*names)
        if not found:
            return None
        return Mapping(tuple(entry for body in found for entry in body.entries), found[0].place, found[0].labels)

    def number(self, *names: str) -> float | None:
        """A number, which may be written as a string; None if it is missing or unknown."""
        entry = self.find(*names)
        return None if entry is None else number_of(entry.value)

    def flag(self, *names: str) -> bool | None:
        """True or false, which may be written as a string; None if it is missing or unknown."""
        entry = self.find(*names)
        if entry is None or not isinstance(entry.value, Scalar):
            return None
        value = entry.value.value
        if isinstance(value, str):
            return {"true": True, "1": True, "false": False, "0": False}.get(value.lower())
        return bool(value) if isinstance(value, bool | int) else None

    def text(self, *names: str) -> str | None:
        """A string; None if it is missing, unknown, or not a string."""
        entry = self.find(*names)
        if entry is None or not isinstance(entry.value, Scalar) or not isinstance(entry.value.value, str):
            return None
        return entry.value.value

    def texts(self, *names: str) -> list[str]:
        """The strings of a list, or a single string as a list; leaves out unknown strings."""
        entry = self.find(*names)
        values = [] if entry is None else _values(entry)
        return [value.value for value in values if isinstance(value, Scalar) and isinstance(value.value, str)]

    def names(self) -> set[str]:
        return set(self._by_name)

    def walk(self) -> Iterator[Mapping]:
        """Yields itself and all bodies nested in it."""
        yield self
        for body in (body for entry in self.entries for body in _bodies(entry)):
            yield from body.walk()


Value = Scalar | Expression | Sequence | Mapping


def _values(entry: Entry) -> tuple[Value, ...]:
    return entry.value.items if isinstance(entry.value, Sequence) else (entry.value,)


def _bodies(entry: Entry) -> Iterator[Mapping]:
    for value in _values(entry):
        if isinstance(value, Mapping):
            yield Mapping(value.entries, entry.place if value is entry.value else value.place, entry.labels)


def empty(value: Value) -> bool:
    """Whether a value is null, an empty string or an empty list. Numbers and false are not empty."""
    if isinstance(value, Scalar):
        return value.value is None or value.value == ""
    return isinstance(value, Sequence) and not value.items


def number_of(value: Value) -> float | None:
    """A number, which may be written as a string; None for anything else."""
    if not isinstance(value, Scalar) or isinstance(value.value, bool):
        return None
    if isinstance(value.value, str):
        try:
            return float(value.value)
        except ValueError:
            return None
    return value.value


def is_zero_duration(value: Value) -> bool:
    """Whether a duration, in Go's notation or as a number, is known to be zero."""
    if isinstance(value, Scalar) and isinstance(value.value, str):
        return value.value.strip() in {"0", "0s", "0ms", "0m", "0h"}
    return number_of(value) == 0


def texts_within(value: Value) -> Iterator[tuple[str, Place]]:
    """All strings in a value, at any depth; strings with interpolation stay as written."""
    if isinstance(value, Scalar) and isinstance(value.value, str):
        yield value.value, value.place
    elif isinstance(value, Expression):
        yield value.text, value.place
    elif isinstance(value, Sequence):
        for item in value.items:
            yield from texts_within(item)
    elif isinstance(value, Mapping):
        for entry in value.entries:
            yield from texts_within(entry.value)


class Lines:
    def __init__(self, text: str) -> None:
        self._starts = [0]
        self._starts += [index + 1 for index, character in enumerate(text) if character == "\n"]

    def place(self, offset: int) -> Place:
        line = bisect_right(self._starts, offset)
        return Place(line, offset - self._starts[line - 1] + 1)


_SPACE = re.compile(r"[ \t\r\n]*")
_SEPARATOR = re.compile(r"[ \t\r\n]*[,:]?[ \t\r\n]*")
_WORD = re.compile(r"[\w.+-]+")


def read_json(text: str) -> Value:
    """The document. Raises MalformedError."""
    if text.startswith("\ufeff"):
        raise MalformedError(Place(1, 1), BYTE_ORDER_MARK)
    try:
        json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise MalformedError(
            Place(error.lineno, error.colno), f"not JSON: {error.msg[0].lower()}{error.msg[1:]}"
        ) from None
    except RecursionError:
        raise MalformedError(Place(1, 1), f"nested deeper than {MAX_DEPTH}") from None
    except ValueError as error:
        raise MalformedError(Place(1, 1), f"not JSON: {error}") from None
    return _Reader(text).document()


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


class _Reader:
    """Reads a text that is known to be JSON."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.lines = Lines(text)
        self.at = 0

    def document(self) -> Value:
        self.skip(_SPACE)
        return self.value(0)

    def skip(self, what: re.Pattern[str]) -> str:
        found = what.match(self.text, self.at)
        assert found is not None  # json.loads has read this text
        self.at = found.end()
        return found[0]

    def string(self) -> str:
        value, self.at = scanstring(self.text, self.at + 1, True)
        return str(value)

    def value(self, depth: int) -> Value:
        place = self.lines.place(self.at)
        if depth > MAX_DEPTH:
            raise MalformedError(place, f"nested deeper than {MAX_DEPTH}")
        first = self.text[self.at]
        if first == '"':
            return Scalar(self.string(), place)
        if first == "{":
            return Mapping(tuple(self.members(depth)), place)
        if first == "[":
            return Sequence(tuple(self.items(depth)), place)
        return Scalar(json.loads(self.skip(_WORD)), place)

    def members(self, depth: int) -> list[Entry]:
        found = []
        self.at += 1
        self.skip(_SPACE)
        while self.text[self.at] != "}":
            place = self.lines.place(self.at)
            key = self.string()
            self.skip(_SEPARATOR)
            found.append(Entry(key, (), self.value(depth + 1), place))
            self.skip(_SEPARATOR)
        self.at += 1
        return found

    def items(self, depth: int) -> list[Value]:
        found = []
        self.at += 1
        self.skip(_SPACE)
        while self.text[self.at] != "]":
            found.append(self.value(depth + 1))
            self.skip(_SEPARATOR)
        self.at += 1
        return found
