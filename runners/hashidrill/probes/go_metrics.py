"""What agents built on HashiCorp's go-metrics answer when they are asked for their metrics."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, Field

from hashidrill.abc import Sample


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


def merged(signal: str, timers: Sequence[Timer], since: str, host: str) -> Sample:
    """One sample of timers that are one (a peer each), in seconds: the mean, and in its text the largest and count."""
    count = sum(timer.count for timer in timers)
    mean_s = sum(timer.mean_ms * timer.count for timer in timers) / count / 1000
    worst_s = max(timer.max_ms for timer in timers) / 1000
    return Sample(signal, mean_s, f"max {worst_s:.6f}s, {count} in 10s since {since}", host)
