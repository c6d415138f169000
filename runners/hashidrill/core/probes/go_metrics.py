"""What agents built on HashiCorp's go-metrics answer when they are asked for their metrics."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, Field

from hashidrill.core.probes.base import SickError
from hashidrill.core.protocols.abc import Sample

_STANDS_S = 25.0
"""An interval lasts 10 s, and is reported for the next 10 s."""


class Timer(BaseModel):
    """One timer over one interval; milliseconds."""

    name: str = Field(alias="Name")
    count: int = Field(alias="Count")
    mean_ms: float = Field(alias="Mean")
    max_ms: float = Field(alias="Max")


class Counter(BaseModel):
    """How often something happened in one interval."""

    name: str = Field(alias="Name")
    count: int = Field(alias="Count")


class Gauge(BaseModel):
    """What a figure was at the end of one interval."""

    name: str = Field(alias="Name")
    value: float = Field(alias="Value")


class Metrics(BaseModel):
    """The last whole interval of 10 s, which began at `timestamp`."""

    timestamp: str = Field(alias="Timestamp")
    samples: list[Timer] = Field(alias="Samples")
    counters: list[Counter] = Field(alias="Counters", default=[])
    gauges: list[Gauge] = Field(alias="Gauges", default=[])


class Interval:
    """Which interval an agent last reported. If it reports the same one for long, it has stopped counting."""

    def __init__(self) -> None:
        self._last = ("", 0.0)

    def goes_on(self, metrics: Metrics, now_s: float) -> None:
        """Raises SickError if the interval that it reports has not changed for `_STANDS_S` seconds."""
        timestamp, since_s = self._last
        if metrics.timestamp != timestamp:
            self._last = (metrics.timestamp, now_s)
        elif now_s - since_s > _STANDS_S:
            raise SickError(f"its telemetry has stood still for {now_s - since_s:.0f}s, since {timestamp}")


def merged(signal: str, timers: Sequence[Timer], since: str, host: str) -> Sample:
    """One sample of timers that are one (a peer each), in seconds: the mean, and in its text the largest and count."""
    count = sum(timer.count for timer in timers)
    mean_s = sum(timer.mean_ms * timer.count for timer in timers) / count / 1000
    worst_s = max(timer.max_ms for timer in timers) / 1000
    return Sample(signal, mean_s, f"max {worst_s:.6f}s, {count} in 10s since {since}", host)
