"""Which operations of a load still wait for an answer, so that guardrails can count their age."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_NS = 1e9
REPORT_AFTER_S = 0.25


class Waiting:
    """The operations of one load that were started and have not ended, on the generator's side.

    What `take` returns first mentions an operation when it has waited for `report_after_s`: those that end sooner, as
    most do, cost no message.
    """

    def __init__(self, report_after_s: float = REPORT_AFTER_S) -> None:
        self._report_after_ns = int(report_after_s * _NS)
        self._quiet: dict[int, int] = {}
        self._reported: dict[int, int] = {}
        self._ended: list[int] = []
        self._next = 0

    def begin(self, due_ns: int) -> int:
        """An operation that was due then starts. Returns what `end` takes."""
        self._next += 1
        self._quiet[self._next] = due_ns
        return self._next

    def end(self, token: int) -> None:
        """It ended, however; idempotent."""
        if self._quiet.pop(token, None) is None and (due_ns := self._reported.pop(token, None)) is not None:
            self._ended.append(due_ns)

    @contextmanager
    def operation(self, due_ns: int) -> Iterator[None]:
        """`begin` and `end` around a block."""
        token = self.begin(due_ns)
        try:
            yield
        finally:
            self.end(token)

    def take(self, now_ns: int) -> tuple[list[int], list[int]]:
        """When those were due that have waited for long since the last call, and those of them that have ended."""
        before_ns = now_ns - self._report_after_ns
        overdue = {token: due_ns for token, due_ns in self._quiet.items() if due_ns <= before_ns}
        for token in overdue:
            del self._quiet[token]
        self._reported |= overdue
        ended, self._ended = self._ended, []
        return list(overdue.values()), ended
