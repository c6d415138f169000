"""Finds and removes jobs that a run left in an attached Nomad."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from hashidrill.core.errors import FaultError
from hashidrill.staging.attach import removal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hashidrill.core.protocols.rights import Left
    from hashidrill.staging.attach.http import Wire

JOBS_OF = "jobs of"
"""The value of `Left.what` for the job of that name, the jobs `NAME-...`, and jobs dispatched from them."""


async def remove(wire: Wire, left: Left) -> int:
    """Removes the jobs, returns how many there were. Raises FaultError if that fails or cannot be checked."""

    async def find() -> list[str]:
        listed = await removal.ask(wire, "GET", "/v1/jobs", left, params={"prefix": left.name}, may_lack=())
        if not isinstance(listed, list):
            raise FaultError(f"{left}: Nomad's answer is not a list")
        ids = [str(job["ID"]) for job in listed]
        return [one for one in ids if one == left.name or one.startswith((f"{left.name}-", f"{left.name}/"))]

    async def take_away(found: Sequence[str]) -> None:
        for job in found:
            await removal.ask(wire, "DELETE", f"/v1/job/{quote(job, safe='')}", left, params={"purge": "true"})

    return await removal.remove_all(find, take_away)
