"""Writes that can be looked for at the end: what identifies each, and which key it goes to."""

from __future__ import annotations


def stamp(run_id: str, n: int) -> str:
    """What identifies write n of a run, and is recorded as the operation's value."""
    return f"{run_id}.{n}"


class Turns:
    """Which key each write goes to: one that is written once, or one of those that are written in turn.

    A write that a later one overwrote cannot be looked for at the end, so whether it was lost nobody can say. A share
    of `once` (0 to 1), evenly spread, goes to keys of its own. With `most` such keys that share begins to shrink, as
    `most` / n at write n: a load of 1,000 times as many writes leaves 8 times as many keys (1 + ln 1,000), and has
    some to look for in each second to the end.
    """

    def __init__(self, once: float, keys: int, most: int) -> None:
        self._once, self._keys, self._most = once, keys, most
        self._owed = 0.0
        self.once = 0
        """How many keys have been written once."""
        self.in_turn = 0
        """How many writes went to the keys that are written in turn."""

    def skip_to(self, n: int) -> None:
        """The writes before `n` have had their turns, whoever made them: other generators share the load."""
        while self.once + self.in_turn < n:
            self.next()

    def next(self) -> tuple[bool, int]:
        """Whether the next write has a key of its own, and the number of its key among those of its sort."""
        self._owed += min(self._once, self._most / (self.once + self.in_turn + 1))
        # a sum of shares falls a hair short of the whole: 0.1 ten times is under 1
        if self._owed >= 1 - 1e-9:
            self._owed -= 1
            self.once += 1
            return True, self.once - 1
        self.in_turn += 1
        return False, (self.in_turn - 1) % self._keys
