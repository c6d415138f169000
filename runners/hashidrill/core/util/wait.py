"""Waits for a condition, with a deadline and the last evidence in the error; runs several calls at once."""

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio

from hashidrill.core.errors import WaitTimeoutError

T = TypeVar("T")


async def wait_until(
    what: str, check: Callable[[], Awaitable[tuple[T | None, str]]], *, within_s: float, gap_s: float = 0.05
) -> T:
    """Calls `check` every `gap_s` seconds until it returns a value that is not None, and returns that.

    `check` returns (value or None, evidence); the last evidence is in the WaitTimeoutError raised after `within_s`.
    """
    evidence = "never checked"
    with anyio.move_on_after(within_s):
        while True:
            value, evidence = await check()
            if value is not None:
                return value
            await pause(gap_s)
    raise WaitTimeoutError(f"waited {within_s:g}s for {what}; last seen: {evidence}")


async def wait_while_it_moves(
    what: str,
    check: Callable[[], Awaitable[tuple[T | None, str, Any]]],
    *,
    still_s: float,
    within_s: float,
    gap_s: float = 0.05,
) -> T:
    """Like `wait_until`, with patience for a slow machine: it gives up `still_s` after the last progress.

    `check` returns (value or None, evidence, progress). There is progress if a value is greater (`>`) than all before;
    None is no progress. Raises WaitTimeoutError after `still_s` without progress, and after `within_s` in all cases.
    """
    began = moved = anyio.current_time()
    furthest: Any = None
    evidence = "never checked"
    with anyio.move_on_after(min(still_s, within_s)) as scope:
        while True:
            value, evidence, far = await check()
            if value is not None:
                return value
            if far is not None and (furthest is None or far > furthest):
                furthest, moved = far, anyio.current_time()
                scope.deadline = min(moved + still_s, began + within_s)
            await pause(gap_s)
    now = anyio.current_time()
    stood = "it still made progress" if moved + still_s > now else f"no progress for the last {now - moved:.0f}s"
    raise WaitTimeoutError(f"waited {now - began:.0f}s for {what}; last seen: {evidence}; {stood}")


async def pause(seconds: float) -> None:
    """Waits for the gap between two looks, or the length of a fault: never for a guess at how long something takes."""
    await anyio.sleep_until(anyio.current_time() + seconds)


def first_cause(error: BaseException) -> BaseException:
    """The first error in a group, at any depth; an error that is not a group is returned unchanged."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def all_at_once(calls: Iterable[Callable[[], Coroutine[Any, Any, Any]]]) -> None:
    """Calls and awaits all of them; the first error ends the others. Raises that error, not a group.

    Pass functions, not coroutines: a coroutine that is cancelled before its start would never be awaited.
    """
    try:
        async with anyio.create_task_group() as group:
            for call in calls:
                group.start_soon(call)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None


@asynccontextmanager
async def beside(*calls: Callable[[], Coroutine[Any, Any, Any]]) -> AsyncIterator[None]:
    """Runs the calls during the block, whose end cancels them. Errors of the calls or the block are not grouped."""
    try:
        async with anyio.create_task_group() as group:
            for call in calls:
                group.start_soon(call)
            try:
                yield
            finally:
                group.cancel_scope.cancel()
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
