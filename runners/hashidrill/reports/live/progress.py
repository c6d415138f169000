"""What a long command does, how long it has taken, and how long it takes in all: `[2 min 5 s of about 6 min] ...`.

On a terminal this is one line below everything else, which each `item` redraws, even an unchanged one. In a pipe, each
new item is one line.
"""

import time
from collections.abc import Callable
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from hashidrill.core.util.durations import so_far
from hashidrill.reports.live.display import say
from hashidrill.reports.text import for_encoding, plain_line


class Progress:
    """A context manager. `expected_s`: seconds that the whole command takes from now on; None if unknown."""

    def __init__(
        self, console: Console, expected_s: float | None = None, *, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._console, self._now_s, self._began_s = console, now_s, now_s()
        self._expected_s, self._item = expected_s, ""
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            # a thread that redraws the line would overwrite questions on the terminal: consent, sudo's password
            self._live = Live(self._line(), console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def item(self, text: str, *, left_s: float | None = None, done: float = 0.0) -> None:
        """Shows the next action. If the total time is known only now, `left_s` is the number of seconds that remain, or
        `done` the share that is done.
        """
        took_s = self._now_s() - self._began_s
        if left_s is not None:
            self._expected_s = took_s + left_s
        elif done:
            self._expected_s = took_s / done
        before, self._item = self._item, text
        if self._live is not None:
            self._live.update(self._line(), refresh=True)
        elif text != before:
            say(self._console, f"[{self}] {text}")

    def __str__(self) -> str:
        return so_far(self._now_s() - self._began_s, self._expected_s)

    def _line(self) -> Text:
        line = for_encoding(plain_line(f"[{self}] {self._item}"), self._console.encoding)
        return Text(line, "dim", no_wrap=True, overflow="crop")
