"""Removes what a run left in an attached product."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hashidrill.core.errors import FaultError
from hashidrill.core.util.wait import pause

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from hashidrill.core.protocols.rights import Left
    from hashidrill.staging.attach.http import Wire

WITHIN_S = 5.0
"""Seconds for each answer."""
_AGAIN_S = 1.0


async def remove_all(
    find: Callable[[], Awaitable[Sequence[str]]], take_away: Callable[[Sequence[str]], Awaitable[object]]
) -> int:
    """Removes what `find` returns, until it returns nothing; returns how many there were.

    It looks again before it returns: a write that a sick agent delayed may arrive after the delete, and an agent
    that does not know of the removal registers its instances again.
    """
    removed: set[str] = set()
    while found := await find():
        await take_away(found)
        removed |= {*found}
        await pause(_AGAIN_S)
    return len(removed)


async def ask(
    wire: Wire,
    method: str,
    path: str,
    left: Left,
    *,
    params: Mapping[str, str] | None = None,
    body: bytes | None = None,
    may_lack: Sequence[str] = ("GET", "DELETE"),
) -> Any:
    """The JSON of the answer to a GET; None for other methods, and for a 404 to one of the methods `may_lack`.

    Raises FaultError for a refusal.
    """
    answer = await wire.request(method, path, params=params, body=body, timeout_s=WITHIN_S)
    if answer.status == 404 and method in may_lack:
        return None
    if answer.status not in {200, 204}:
        said = answer.body[:200].decode(errors="replace").strip()
        raise FaultError(f"{left}: {method}: HTTP {answer.status} {said}")
    return answer.json() if method == "GET" else None
