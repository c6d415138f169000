"""Secrets that a run left in a Vault of somebody else: how they are found, and taken away with all their versions."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from hashidrill.core.errors import FaultError
from hashidrill.core.protocols.rights import Left
from hashidrill.core.util.wait import all_at_once, pause
from hashidrill.products.vault.policy import MOUNT

if TYPE_CHECKING:
    from hashidrill.staging.attach.http import Wire

SECRETS_BELOW = "secrets below"
"""The word of `Left.what`: all in that place of the loads' KV engine."""
_WITHIN_S, _AGAIN_S = 5.0, 1.0
_AT_ONCE = 16


def left_by(load: str, run_id: str) -> Left:
    """What loads on secrets leave: their places have the run's id in the name."""
    return Left("vault", SECRETS_BELOW, f"{load}/{run_id}/")


async def remove(wire: Wire, left: Left) -> int:
    """How many there were; none is there now. Raises FaultError where that cannot be done, or be seen."""
    if left.what != SECRETS_BELOW:
        raise FaultError(f"{left}: hashidrill does not know how to take it out of vault")
    removed: set[str] = set()

    async def delete(key: str) -> None:
        await _asked(wire, "DELETE", key, left)

    while found := await _found(wire, left.name, left):
        for start in range(0, len(found), _AT_ONCE):
            await all_at_once(partial(delete, key) for key in found[start : start + _AT_ONCE])
        removed |= {*found}
        await pause(_AGAIN_S)
    return len(removed)


async def _found(wire: Wire, folder: str, left: Left) -> list[str]:
    """Every secret below a folder, whose name ends with a slash."""
    said = await _asked(wire, "GET", folder, left, {"list": "true"})
    data = said.get("data") if isinstance(said, dict) else None
    names = data.get("keys") if isinstance(data, dict) else None
    if not isinstance(names, list):
        raise FaultError(f"{left}: Vault's answer is no list of secrets")
    found: list[str] = []
    for name in map(str, names):
        path = f"{folder}{name}"
        found += await _found(wire, path, left) if name.endswith("/") else [path]
    return found


async def _asked(wire: Wire, method: str, path: str, left: Left, params: dict[str, str] | None = None) -> Any:
    where = f"/v1/{MOUNT}/metadata/{quote(path)}"
    answer = await wire.request(method, where, params=params, timeout_s=_WITHIN_S)
    if answer.status == 404:
        return {"data": {"keys": []}}
    if answer.status not in {200, 204}:
        said = answer.body[:200].decode(errors="replace").strip()
        raise FaultError(f"{left}: {method}: HTTP {answer.status} {said}")
    return answer.json() if method == "GET" else {}
