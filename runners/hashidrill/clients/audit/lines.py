"""From an offset in a text to its line and column."""

from __future__ import annotations

from bisect import bisect_right

from hashidrill.clients.audit.tree import Place


class Lines:
    """The starts of a text's lines."""

    def __init__(self, text: str) -> None:
        self._starts = [0]
        self._starts += [index + 1 for index, character in enumerate(text) if character == "\n"]

    def place(self, offset: int) -> Place:
        line = bisect_right(self._starts, offset)
        return Place(line, offset - self._starts[line - 1] + 1)
