"""Requests that are repeated until they succeed: for seeding keys before a load and for reading them after it.

Only for what is not measured and may be sent twice.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, TypeVar

import anyio

from hashidrill.core.loads.answer import Answer, read_error
from hashidrill.core.loads.http_client import HttpClient
from hashidrill.core.util.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

_AT_ONCE = 16
_ATTEMPT_TIMEOUT_S = 10.0
_GAP_S = 0.2

T = TypeVar("T")
I = TypeVar("I")  # noqa: E741 - an item


async def insist(
    http: HttpClient,
    endpoints: Sequence[str],
    method: str,
    path: str,
    accept: Callable[[Answer], T | None],
    *,
    within_s: float,
    params: Mapping[str, str] | None = None,
    body: bytes | None = None,
) -> T:
    """What `accept` makes of the first answer it takes (it returns None for the others), asking each endpoint in turn.

    Raises WaitTimeoutError with the last answer after `within_s` seconds.
    """
    turn = itertools.cycle(endpoints)

    async def attempt() -> tuple[T | None, str]:
        url = next(turn).rstrip("/") + path
        answer = await http.request(method, url, body=body, params=params, timeout_s=_ATTEMPT_TIMEOUT_S)
        return accept(answer), f"{url}: {read_error(answer)}"

    return await wait_until(f"{method} {path} to be answered", attempt, within_s=within_s, gap_s=_GAP_S)


async def for_each(items: Iterable[I], do: Callable[[I], Awaitable[None]]) -> None:
    """Do it for all items, a few at once. The first exception ends it and is raised as it is."""
    limiter = anyio.CapacityLimiter(_AT_ONCE)

    async def one(item: I) -> None:
        async with limiter:
            await do(item)

    try:
        async with anyio.create_task_group() as tasks:
            for item in items:
                tasks.start_soon(one, item)
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
