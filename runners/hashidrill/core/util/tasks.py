"""Several calls at once, where one error is one error and not a group of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any

import anyio


async def all_at_once(calls: Iterable[Callable[[], Coroutine[Any, Any, Any]]]) -> None:
    """Call and await all of them; the first error ends the others. Raises that error, not a group.

    They are functions and not coroutines: one that is cancelled before its start would be a coroutine never awaited.
    """
    try:
        async with anyio.create_task_group() as group:
            for call in calls:
                group.start_soon(call)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None


@asynccontextmanager
async def beside(*calls: Callable[[], Coroutine[Any, Any, Any]]) -> AsyncIterator[None]:
    """Runs them while the block goes on; its end cancels them. An error of theirs, or of the block, is no group."""
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
