"""What the tap in front of a client does to its attempts: `tap.fail`, put on `client:NAME`."""

from __future__ import annotations

import math
from collections import Counter
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from hashidrill.abc import Evidence, Undo
from hashidrill.errors import UsageError
from hashidrill.faults.base import BaseFault
from hashidrill.model import Strict
from hashidrill.retry.catalogue import FAULTS
from hashidrill.retry.plans import UNSEEN, check_fault
from hashidrill.units import Percent

_TRIES, _CHANCE_TRIES = 5, 60
_STANDARD_ERRORS = 4.0
"""How far the share that is seen may be from the one that was asked for: chance alone goes further once in 16,000."""


def _of_a_connection(name: str) -> str:
    if name in UNSEEN:
        raise ValueError(
            f"{name}: a tap sees connections alone, and there would be none; network.block with action: reject, on"
            " the agents, refuses them"
        )
    try:
        return check_fault(name)
    except UsageError as unknown:
        raise ValueError(str(unknown)) from None


def _some(percent: Percent) -> Percent:
    if percent <= 0:
        raise ValueError("0% of the attempts: that would be no fault")
    return percent


class FailParams(Strict):
    """Which class of failure, for what share of the attempts that it can befall."""

    fault: Annotated[str, AfterValidator(_of_a_connection)] = Field(
        description="A class of failure: " + ", ".join(name for name in FAULTS if name not in UNSEEN)
    )
    percent: Annotated[Percent, AfterValidator(_some)] = Percent("100%")
    seed: int = Field(default=0, description="Of what chance decides: the same one makes the same choices")


class TapFail(BaseFault[FailParams]):
    """Attempts of a client fail at its tap, all of them or some by chance, in one of the classes of the catalogue."""

    kind: ClassVar[str] = "tap.fail"
    Params: ClassVar[type[Strict]] = FailParams

    async def apply(self, undo: Undo) -> None:
        asked = self.params
        await self.hosts.tap(undo["host"]).fail(undo["fault_id"], asked.fault, float(asked.percent), asked.seed)

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        share, tries = float(self.params.percent), _CHANCE_TRIES if self.params.percent < 1 else _TRIES
        seen = await self.hosts.tap(undo["host"]).look(self.params.fault, tries)
        failed = sum(one == self.params.fault for one in seen)
        apart = _STANDARD_ERRORS * math.sqrt(share * (1 - share) / tries)
        measured = ", ".join(f"{count} of {tries} exchanges: {what}" for what, count in Counter(seen).most_common())
        return Evidence(
            (failed > 0 and abs(failed / tries - share) <= apart) if present else not failed,
            f"{self.params.fault} on {self.params.percent} of the attempts" if present else f"no {self.params.fault}",
            measured,
            {"asked_share": share if present else 0.0, "measured_share": failed / tries, "exchanges": tries},
        )

    async def revert(self, undo: Undo) -> None:
        await self.hosts.tap(undo["host"]).let_pass(undo["fault_id"])


KINDS = (TapFail,)
