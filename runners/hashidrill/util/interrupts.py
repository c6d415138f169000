"""Ctrl-C, put off while a process is started: else it may come when that runs already and nobody has its handle."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, Self

_NUMBERS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def hangups_ignored() -> Iterator[None]:
    """In the block, a terminal that is closed ends nothing: verdict and report are still written."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


class PutOff:
    """In the block, what would raise comes at `now`, or at the end. What is ignored, or ends us at once, still does.

        with PutOff() as interrupts:
            process = subprocess.Popen(command)  # which gets the signals of a terminal as ever
            try:
                interrupts.now()
                ...
            except BaseException:
                process.kill()

    Only the main thread is interrupted: in any other, this does nothing.
    """

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}
        self._came: list[int] = []

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _NUMBERS:
                if callable(before := signal.getsignal(number)):
                    self._before[number] = before
                    signal.signal(number, self._note)
        return self

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._came.append(number)

    def now(self) -> None:
        """From now on they come as before, and first what came meanwhile. Idempotent."""
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before, came, self._came = {}, self._came, []
        for one in came:
            signal.raise_signal(one)

    def __exit__(self, *_: object) -> None:
        self.now()
