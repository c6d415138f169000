"""Finds secrets that a run left in an attached Vault, and removes them with all their versions."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote

from hashidrill.core.errors import FaultError
from hashidrill.core.protocols.rights import Left
from hashidrill.core.util.wait import all_at_once
from hashidrill.products.vault.rights import MOUNT
from hashidrill.staging.attach import removal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hashidrill.staging.attach.http import Wire


SECRETS_BELOW = "secrets below"
"""The value of `Left.what` for all secrets below one path of the loads' KV engine."""
_METADATA = f"/v1/{MOUNT}/metadata"
_AT_ONCE = 16


def left_by(load: str, run_id: str) -> Left:
    """The secrets that a load leaves, whose paths contain the run's id."""
    return Left("vault", SECRETS_BELOW, f"{load}/{run_id}/")


async def remove(wire: Wire, left: Left) -> int:
    """Removes the secrets, returns how many there were. Raises FaultError if that fails or cannot be checked."""
    if left.what != SECRETS_BELOW:
        raise FaultError(f"{left}: hashidrill cannot remove this from vault")

    async def take_away(found: Sequence[str]) -> None:
        for start in range(0, len(found), _AT_ONCE):
            await all_at_once(partial(_delete, wire, key, left) for key in found[start : start + _AT_ONCE])

    return await removal.remove_all(partial(_found, wire, left.name, left), take_away)


async def _delete(wire: Wire, key: str, left: Left) -> None:
    await removal.ask(wire, "DELETE", f"{_METADATA}/{quote(key)}", left)


async def _found(wire: Wire, folder: str, left: Left) -> list[str]:
    said = await removal.ask(wire, "GET", f"{_METADATA}/{quote(folder)}", left, params={"list": "true"})
    if said is None:
        return []
    data = said.get("data") if isinstance(said, dict) else None
    names = data.get("keys") if isinstance(data, dict) else None
    if not isinstance(names, list):
        raise FaultError(f"{left}: Vault's answer is not a list of secrets")
    found: list[str] = []
    for name in map(str, names):
        path = f"{folder}{name}"
        found += await _found(wire, path, left) if name.endswith("/") else [path]
    return found
