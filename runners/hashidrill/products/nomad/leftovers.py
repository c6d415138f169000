"""Jobs that a run left in a Nomad of somebody else: how they are found, and taken away."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from hashidrill.core.errors import FaultError
from hashidrill.core.util.wait import pause

if TYPE_CHECKING:
    from hashidrill.core.protocols.rights import Left
    from hashidrill.staging.attach.http import Wire

JOBS_OF = "jobs of"
"""The word of `Left.what`: the job of that name, those that are called `NAME-...`, and what was dispatched of them."""
_WITHIN_S, _AGAIN_S = 5.0, 1.0


async def remove(wire: Wire, left: Left) -> int:
    """How many there were; none is there now. Raises FaultError where that cannot be done, or be seen."""
    removed: set[str] = set()
    while found := await _found(wire, left):
        for job in found:
            await _asked(wire, "DELETE", f"/v1/job/{quote(job, safe='')}", left, {"purge": "true"})
        removed |= {*found}
        await pause(_AGAIN_S)
    return len(removed)


async def _found(wire: Wire, left: Left) -> list[str]:
    listed = await _asked(wire, "GET", "/v1/jobs", left, {"prefix": left.name})
    if not isinstance(listed, list):
        raise FaultError(f"{left}: Nomad's answer is no list")
    ids = [str(job["ID"]) for job in listed]
    return [one for one in ids if one == left.name or one.startswith((f"{left.name}-", f"{left.name}/"))]


async def _asked(wire: Wire, method: str, path: str, left: Left, params: dict[str, str]) -> Any:
    answer = await wire.request(method, path, params=params, timeout_s=_WITHIN_S)
    if answer.status == 404 and method == "DELETE":
        return {}
    if answer.status != 200:
        said = answer.body[:200].decode(errors="replace").strip()
        raise FaultError(f"{left}: {method}: HTTP {answer.status} {said}")
    return answer.json()
