"""The sample's part of `datacenter:`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hashidrill.core.experiment.strict import Strict
from hashidrill.core.units import Duration

Long = Annotated[Duration, Field(gt=0, le=60)]


class Cache(Strict):
    """A cache of the store, on its host's disk. It writes through: new data is on disk first."""

    bypass_after: Long | None = Field(
        default=None, description="Go round the cache, to the store, when its disk takes longer than this; none: wait"
    )
    off_for: Long = Field(default=Duration("5s"), description="How long the cache is left alone after that")


class Pool(Strict):
    """A service whose workers each wait for the store, and whose pool of workers grows slowly under load."""

    at_least: int = Field(default=2, ge=1, le=200, description="Workers that are there from the start")
    most: int = Field(default=100, ge=1, le=200, description="Workers that the pool grows to")
    grows_every: Long = Field(default=Duration("1s"), description="Gets one more worker this often, while work waits")
    calls: int = Field(default=5, ge=1, le=50, description="Calls to the store that each request makes, in turn")


class Sample(Strict):
    """Small sample programs: a store, caches in front of it, and services with a pool of workers that call it."""

    store_takes: Duration = Field(default=Duration("20ms"), ge=0, le=10, description="How long each answer takes")
    caches: list[Cache] = Field(default=[], max_length=4, description="Each is on a host of its own, cache-1 and so on")
    pools: list[Pool] = Field(default=[], max_length=4, description="Each is on a host of its own, pool-1 and so on")
