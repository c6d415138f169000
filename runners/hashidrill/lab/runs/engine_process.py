"""The common part of each engine process: it ends on request, reports its events, and exits with a code."""

import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import anyio

from hashidrill.core.engine.run import EXIT_CODES
from hashidrill.core.errors import HashidrillError, InterlockError
from hashidrill.core.protocols.events import Event, encode

REFUSED = "refused: "
"""Begins the last message of an engine whose run was refused by an interlock, with nothing touched."""


def exit_of(run: Callable[[], Awaitable[str]]) -> int | str:
    """Carries out a run. Returns the argument for `sys.exit`: an exit code, or the error for the log."""
    try:
        return EXIT_CODES[anyio.run(run)]
    except InterlockError as error:
        return f"{REFUSED}{error}"
    except HashidrillError as error:  # for a bug, the log gets the traceback instead
        return f"hashidrill: {error}"


@contextlib.asynccontextmanager
async def cancelled_when_told(lifeline: int | None = None) -> AsyncIterator[None]:
    """Cancels its body at SIGINT, SIGTERM, or the end of `lifeline`, a pipe that the runner holds open.

    Later signals do nothing: the run is already reverting.
    """

    async def on_signal(scope: anyio.CancelScope, signals: AsyncIterator[signal.Signals]) -> None:
        async for _ in signals:
            scope.cancel()

    async def on_end(scope: anyio.CancelScope, pipe: int) -> None:
        os.set_blocking(pipe, False)
        while True:
            await anyio.wait_readable(pipe)
            with contextlib.suppress(BlockingIOError):
                if not os.read(pipe, 1):
                    scope.cancel()
                    return

    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals, _alone():
        async with anyio.create_task_group() as group:
            with anyio.CancelScope() as run:  # not the group's own scope: the receiver must outlive the run
                group.start_soon(on_signal, run, signals)
                if lifeline is not None:
                    group.start_soon(on_end, run, lifeline)
                yield
            group.cancel_scope.cancel()


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Raises the body's own error, not a group that holds only this error."""
    try:
        yield
    except BaseExceptionGroup as group:
        if len(group.exceptions) > 1:
            raise
        raise group.exceptions[0] from None


def to_runner(event: Event) -> None:
    """Writes one line of JSON to standard output."""
    sys.stdout.write(encode(event) + "\n")
    sys.stdout.flush()
