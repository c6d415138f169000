"""Reads JSON with positions. The standard library says whether it is JSON; this says where everything stands."""

from __future__ import annotations

import json
import re
from json.decoder import scanstring  # type: ignore[attr-defined]

from hashidrill.clients.audit.lines import Lines
from hashidrill.clients.audit.tree import (
    BYTE_ORDER_MARK,
    MAX_DEPTH,
    Entry,
    MalformedError,
    Mapping,
    Place,
    Scalar,
    Sequence,
    Value,
)

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
    raise ValueError(f"{name} is no number of JSON")


class _Reader:
    """Over a text that is known to be JSON."""

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
