"""A host that gets little CPU: by cgroup quota, or, without rights to one, by a duty cycle of stops."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from hashidrill.abc import Evidence, Undo
from hashidrill.faults.base import BaseFault
from hashidrill.model import Strict

_BURN_S = 0.5
# quotas are enforced per period of 100 ms: a burn of 500 ms can get one period's quota more
_OVER = 1.35


class ThrottleParams(Strict):
    """CPU seconds a second for all of the host's processes together."""

    cores: float = Field(gt=0, le=64)


class CpuThrottle(BaseFault[ThrottleParams]):
    """The host's processes together get `cores`. The observer is a busy loop on that host."""

    kind: ClassVar[str] = "cpu.throttle"
    Params: ClassVar[type[Strict]] = ThrottleParams

    async def apply(self, undo: Undo) -> None:
        await self._host(undo).limit_cpu(undo["fault_id"], self.params.cores)

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        got = await self._host(undo).canary_cpu(_BURN_S)
        limit = self.params.cores * _OVER
        return Evidence(
            got <= limit if present else got > limit,
            f"at most {self.params.cores:g} cores" if present else f"more than {self.params.cores:g} cores",
            f"a busy loop got {got:.2f} cores",
            {"asked_cores": self.params.cores, "measured_cores": got},
        )

    async def revert(self, undo: Undo) -> None:
        await self._host(undo).unlimit_cpu(undo["fault_id"])


KINDS = (CpuThrottle,)
