"""Waiting for a condition, with a deadline and the last evidence in the error. Nothing else in the project waits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from hashidrill.errors import WaitTimeoutError

T = TypeVar("T")


async def wait_until(
    what: str, check: Callable[[], Awaitable[tuple[T | None, str]]], *, within_s: float, gap_s: float = 0.05
) -> T:
    """Call `check` every `gap_s` seconds until it returns a value that is not None, and return that.

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


async def pause(seconds: float) -> None:
    """The gap between two looks at something, or the length of a fault: never a guess at how long something takes."""
    await anyio.sleep_until(anyio.current_time() + seconds)
