"""Parameters that loads of several products have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from hashidrill.core.units import Duration, Rate

MAX_RATE_PER_S = 20_000


def _sane_rate(rate: Rate) -> Rate:
    if not 0 < rate <= MAX_RATE_PER_S:
        raise ValueError(f"a rate is over 0/s and at most {MAX_RATE_PER_S}/s (what one process can offer), not {rate}")
    return rate


def _positive(duration: Duration) -> Duration:
    if duration <= 0:
        raise ValueError("a timeout is longer than 0s")
    return duration


Keys = Annotated[int, Field(ge=1, le=100_000, description="How many keys are used in turn")]
Timeout = Annotated[
    Duration,
    AfterValidator(_positive),
    Field(description="When to stop waiting for an answer. Keep it long: a stall is latency to be seen"),
]
LoadRate = Annotated[Rate, AfterValidator(_sane_rate), Field(description="Operations offered, whatever comes back")]
