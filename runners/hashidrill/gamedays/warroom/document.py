"""A JSON document that grows, and the changes that lead to it: every browser holds a copy of the document.

A reader is a number: the last message that it has. The page gets the messages after that one, or the whole document
if those messages are no longer kept. So no reader has a queue, and a slow one costs no memory.
"""

import json
from collections import deque
from dataclasses import dataclass
from typing import Any

KEPT = 400
"""The messages that are kept for readers who were away: more than two minutes."""
SLOW = 50
"""The messages that a reader may lack before it counts as slow or away: 25 seconds."""
_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode  # json.dumps makes one for each call
Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Batch:
    """The update for a reader. `data` is JSON: the whole document, or a list of changes `[path, value]`."""

    number: int
    whole: bool
    data: str
    missed: int = 0
    """How many messages this reader missed; the document includes their content."""


class Document:
    """A tree of dicts and lists. A change sets the value at a path; in a list, also beyond its end."""

    def __init__(self, tree: dict[str, Any], *, kept: int = KEPT) -> None:
        self.tree = tree
        self._changes: list[str] = []
        self._number = 1
        self._messages: deque[tuple[int, list[str]]] = deque()
        self._kept = kept
        self._renewed = 1
        """Readers whose last message is older get the whole document."""
        self._dropped = 0
        """The last message that was dropped because there were too many."""
        self._whole: tuple[int, str] = (0, "")

    @property
    def number(self) -> int:
        """The last message."""
        return self._number

    def set(self, *path_and_value: Any) -> None:
        """`set("loads", "kv-writes", "rate", 17, 50.0)`: the value comes last."""
        *path, value = path_and_value
        put(self.tree, tuple(path), value)
        self._changes.append(_encode([path, value]))

    def renew(self) -> None:
        """Ends a message after a removal or a large change: readers get the whole document."""
        self._changes = []
        self._messages.clear()
        self._number += 1
        self._renewed = self._number

    def send(self) -> None:
        """Ends a message, if anything was set."""
        if not self._changes:
            return
        self._number += 1
        self._messages.append((self._number, self._changes))
        self._changes = []
        while len(self._messages) > self._kept:
            self._dropped = self._messages.popleft()[0]

    def since(self, number: int | None) -> Batch | None:
        """The update for a reader that has everything up to that message; None if it is up to date."""
        if number == self._number:
            return None
        if number is None or not max(self._renewed, self._dropped) <= number < self._number:
            lacks = self._number - number if number is not None and number < self._number else 0
            return Batch(self._number, True, self._all(), lacks if lacks > SLOW else 0)
        changes = [change for at, changes in self._messages if at > number for change in changes]
        return Batch(self._number, False, f"[{','.join(changes)}]")

    def _all(self) -> str:
        if self._whole[0] != self._number:
            self._whole = (self._number, _encode(self.tree))
        return self._whole[1]


def put(tree: Any, path: Path, value: Any) -> None:
    """Set the value at a path; a list is filled with None up to the index."""
    for key in path[:-1]:
        tree = tree[key]
    last = path[-1]
    if isinstance(tree, list):
        index = int(last)
        tree.extend([None] * (index + 1 - len(tree)))
        tree[index] = value
    else:
        tree[last] = value
