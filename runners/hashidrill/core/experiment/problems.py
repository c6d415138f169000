"""All problems of an experiment as one message: each with file, line, column and a caret under the place."""

from __future__ import annotations

import textwrap
import unicodedata
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Loc = tuple[str | int, ...]
"""Where in a document: `("load", "kv-writes", "rate")`, `("method", 0, "for")`."""

MOST_PROBLEMS = 10
MOST_LINES = 38  # with the last line that counts the rest, one screen
COLUMNS = 150
_EXCERPT = 120


@dataclass(frozen=True)
class File:
    """A file as the user wrote its name, and what it holds."""

    name: str
    text: str


@dataclass(frozen=True, order=True)
class Problem:
    """One problem, at `offset` characters into the text. `at` is the path as a person reads it.

    `file` counts the files that an experiment is read from: 0 for its own, 1 for the one that it extends, and so on.
    """

    file: int
    offset: int
    at: str
    text: str


def path_text(loc: Iterable[str | int]) -> str:
    """`load.kv-writes.rate`, `method[0].for`. Keys may hold anything, so they are made printable."""
    parts: list[str] = []
    for part in loc:
        if isinstance(part, int):
            parts.append(f"[{part}]")
        else:
            parts.append(f"{'.' if parts else ''}{_clipped(printable(part), 60)}")
    return "".join(parts)


def message(files: Sequence[File], problems: Iterable[Problem]) -> str:
    """One screen: at most MOST_PROBLEMS problems, in the order of the files, and how many more there are."""
    from hashidrill.core.util.redaction import Redactor  # noqa: PLC0415 - most files have no problem

    redactor = Redactor()
    masked = [replace(file, text=redactor.masked(file.text)) for file in files]
    ordered = [replace(problem, text=redactor.text(problem.text)) for problem in sorted(set(problems))]
    lines: list[str] = []
    for count, problem in enumerate(ordered):
        file = masked[problem.file]
        block = _block(file.name, file.text, problem)
        if count == MOST_PROBLEMS or len(lines) + len(block) > MOST_LINES:
            lines.append(f"{printable(file.name)}: ... and {len(ordered) - count} more")
            break
        lines += block
    return "\n".join(lines)


def wrapped(text: str) -> str:
    """`text` in lines that fit the screen, without characters that a terminal acts on."""
    return "\n".join(textwrap.wrap(printable(text), COLUMNS, subsequent_indent="    ", break_on_hyphens=False))


def line_and_column(text: str, offset: int) -> tuple[int, int]:
    """Both from 1, as editors count them."""
    offset = min(offset, len(text))
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


def _block(name: str, text: str, problem: Problem) -> list[str]:
    line, column = line_and_column(text, problem.offset)
    at = f"{problem.at}: " if problem.at else ""
    head = f"{printable(name)}:{line}:{column}: {at}{_clipped(printable(problem.text), 400)}"
    return [*wrapped(head).split("\n"), *_excerpt(text, problem.offset, column)]


def _excerpt(text: str, offset: int, column: int) -> list[str]:
    """The source line, or the part of it around the place, and a caret under the place."""
    start = min(offset, len(text)) - (column - 1)
    end = text.find("\n", start)
    line = text[start : len(text) if end < 0 else end].rstrip("\r")
    if not line.strip():
        return []
    left = max(0, column - 1 - _EXCERPT // 2) if len(line) > _EXCERPT else 0
    shown = printable(line[left : left + _EXCERPT])
    before = shown[: column - 1 - left]
    prefix = "  ..." if left else "  "
    suffix = "..." if left + _EXCERPT < len(line) else ""
    return [f"{prefix}{shown}{suffix}", " " * (len(prefix) + _cells(before)) + "^"]


def printable(text: str) -> str:
    """The same length, on one line, without characters that a terminal acts on."""
    return "".join(char if char.isprintable() else " " if char.isspace() else "?" for char in text)


def _cells(text: str) -> int:
    """Columns of a terminal that `text` takes."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def _clipped(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def listed(names: Sequence[str]) -> str:
    """`a`, `a or b`, `a, b or c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
