"""Several calls at once, where one error is one error and not a group of them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
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
