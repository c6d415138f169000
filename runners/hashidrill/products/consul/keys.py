"""Keys that a run left in a Consul of somebody else: how they are found, and taken away."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from hashidrill.core.errors import FaultError
from hashidrill.core.util.wait import pause

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hashidrill.core.protocols.abc import ApiAnswer
    from hashidrill.core.protocols.rights import Left
    from hashidrill.staging.attach.http import Wire

SERVICE = "consul"
BELOW, KEY = "keys below", "key"
"""The words of `Left.what`."""
_WITHIN_S, _AGAIN_S = 5.0, 1.0


async def remove(wire: Wire, left: Left) -> int:
    """How many keys there were; none is there now. Raises FaultError where that cannot be done, or be seen.

    A write that a sick agent still held may arrive after the delete, so it looks again before it says so.
    """
    path, removed = f"/v1/kv/{quote(left.name)}", 0
    while found := await _found(wire, path, left):
        await _ask(wire, "DELETE", path, left, {"recurse": ""} if left.what == BELOW else {})
        removed += found
        await pause(_AGAIN_S)
    return removed


async def _found(wire: Wire, path: str, left: Left) -> int:
    answer = await _ask(wire, "GET", path, left, {"keys": "", "consistent": ""})
    if answer.status == 404:
        return 0
    keys = answer.json()
    if not isinstance(keys, list):
        raise FaultError(f"{left}: Consul's answer is no list")
    return len(keys) if left.what == BELOW else keys.count(left.name)


async def _ask(wire: Wire, method: str, path: str, left: Left, params: Mapping[str, str]) -> ApiAnswer:
    answer = await wire.request(method, path, params=params, timeout_s=_WITHIN_S)
    if answer.status != 200 and not (method == "GET" and answer.status == 404):
        said = answer.body[:200].decode(errors="replace").strip()
        raise FaultError(f"{left}: {method}: HTTP {answer.status} {said}")
    return answer
