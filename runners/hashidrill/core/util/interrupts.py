"""Delays Ctrl-C while a process is started: otherwise Ctrl-C may come after the process has started but before its
handle is stored.
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Self

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _HungUp:
    def __init__(self) -> None:
        self.act: Callable[[], object] = interrupt

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        self.act()


@contextlib.contextmanager
def hangups_interrupt() -> Iterator[None]:
    """In the block, closing the terminal interrupts like Ctrl-C, until `when_hung_up` changes that.

    Under nohup, the hangup stays ignored. Only the main thread is interrupted.
    """
    before = signal.getsignal(signal.SIGHUP)
    ours = threading.current_thread() is threading.main_thread() and before != signal.SIG_IGN
    if ours:
        signal.signal(signal.SIGHUP, _HungUp())
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGHUP, before)


def when_hung_up(act: Callable[[], object]) -> None:
    """From now on, within `hangups_interrupt`, closing the terminal calls `act` instead of interrupting."""
    handler = signal.getsignal(signal.SIGHUP)
    if isinstance(handler, _HungUp):
        handler.act = act


def interrupt() -> None:
    """Interrupts like Ctrl-C."""
    raise KeyboardInterrupt


def finish() -> None:
    """Does nothing, so a finished run is still judged, written and reported, and its verdict is the exit code."""


class PutOff:
    """In the block, delays signals that raise until `now`, or its end. Ignored and fatal signals are unchanged.

        with PutOff() as interrupts:
            process = subprocess.Popen(command)  # which gets the signals of a terminal as usual
            try:
                interrupts.now()
                ...
            except BaseException:
                process.kill()

    Only the main thread is interrupted: in any other thread, this does nothing. `numbers`: the signals; by default all
    that interrupt.
    """

    def __init__(self, *numbers: signal.Signals) -> None:
        self._numbers = numbers or _NUMBERS
        self._before: dict[signal.Signals, Any] = {}
        self._came: list[int] = []

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in self._numbers:
                if callable(before := signal.getsignal(number)):
                    self._before[number] = before
                    signal.signal(number, self._note)
        return self

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._came.append(number)

    def now(self) -> None:
        """Delivers the delayed signals, and stops delaying. Idempotent."""
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before, came, self._came = {}, self._came, []
        for one in came:
            signal.raise_signal(one)

    def __exit__(self, *_: object) -> None:
        self.now()
