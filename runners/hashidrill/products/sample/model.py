"""The sample's part of `datacenter:`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from hashidrill.core.experiment.strict import Strict
from hashidrill.core.units import Duration, Size

Long = Annotated[Duration, Field(gt=0, le=60)]


class Database(Strict):
    """A database that serves a limited number of requests at a time; others wait in line. Each load is a tenant."""

    at_once: int = Field(default=4, ge=1, le=200, description="Requests that it serves at a time")
    of_one_tenant: int | None = Field(
        default=None, ge=1, le=200, description="How many of these may belong to one tenant (a load); none: all"
    )


class Cache(Strict):
    """A cache of the store, on its host's disk. It writes through: new data is on disk before the answer."""

    bypass_after: Long | None = Field(
        default=None, description="Bypass the cache and ask the store if the disk takes longer than this; none: wait"
    )
    memory: bool = Field(default=False, description="Keep everything in memory, not on disk: a restart empties it")
    database: int | None = Field(
        default=None, ge=1, le=4, description="The number of the database that it caches; none: it caches the store"
    )
    off_for: Long = Field(default=Duration("5s"), description="How long the cache is bypassed after that")


class Pool(Strict):
    """A service whose workers each wait for the store. Under load, its pool of workers grows slowly."""

    at_least: int = Field(default=2, ge=1, le=200, description="Number of workers at the start")
    most: int = Field(default=100, ge=1, le=200, description="Maximum number of workers")
    grows_every: Long = Field(default=Duration("1s"), description="How often it adds a worker while work waits")
    calls: int = Field(default=5, ge=1, le=50, description="Calls to the store that each request makes, in sequence")
    leaks: Size = Field(default=Size("0B"), le=1_000_000, description="Memory that each request leaks")


class Logs(Strict):
    """A pipeline for logs in batches of lines: node-1 receives them, searcher-1 can search them.

    If lines are parsed on the node, batches are only in buffers, which may overflow. If they are parsed in a `tier`, on
    tier-1, each batch is first stored on archive-1, and search gets as many batches as it has room for.
    """

    parse: Literal["node", "tier"] = Field(default="node", description="Where lines are parsed")
    parse_takes: Duration = Field(default=Duration("80ms"), gt=0, le=10, description="CPU time to parse a batch")
    search_takes: Duration = Field(
        default=Duration("100ms"), gt=0, le=10, description="How long search takes for a batch, or for one search"
    )
    room: int = Field(default=20, ge=1, le=1000, description="How many batches and searches each queue can hold")


class Checker(Strict):
    """Checks the health of targets, half of them on backend-1 and half on backend-2; a load sets how many."""

    workers: int = Field(
        default=2, ge=0, le=8, description="Processes that check; 0: one event loop checks and handles the results"
    )
    reports: Literal["all", "changes"] = Field(
        default="all",
        description="What the processes report: each result, or only changes, a few times a second",
    )
    report_takes: Duration = Field(default=Duration("4ms"), ge=0, le=1, description="CPU time to process a report")
    every: Long = Field(default=Duration("30s"), description="The interval of each check")
    timeout: Long = Field(default=Duration("2s"), description="A result older than this is unknown")
    most: int = Field(default=100_000, ge=1, le=100_000, description="The most checks that it accepts")


class Sample(Strict):
    """Small sample programs: a store, databases, caches of both, pools that call the store, checkers, pipelines."""

    store_takes: Duration = Field(
        default=Duration("20ms"), ge=0, le=10, description="How long each answer of the store, and of a database, takes"
    )
    databases: list[Database] = Field(
        default=[], max_length=4, description="Each is on a host of its own, database-1 and so on"
    )
    caches: list[Cache] = Field(default=[], max_length=4, description="Each is on a host of its own, cache-1 and so on")
    pools: list[Pool] = Field(default=[], max_length=4, description="Each is on a host of its own, pool-1 and so on")
    checkers: list[Checker] = Field(
        default=[], max_length=4, description="Each is on a host of its own, checker-1 and so on"
    )
    logs: Logs | None = Field(default=None, description="A pipeline for logs, from a node to search")

    @model_validator(mode="after")
    def _every_cache_has_what_it_is_a_cache_of(self) -> Sample:
        for n, cache in enumerate(self.caches, 1):
            if (cache.database or 0) > len(self.databases):
                raise ValueError(f"cache {n} caches database {cache.database}, but only {len(self.databases)} exist")
            if cache.memory and cache.bypass_after is not None:
                raise ValueError(f"cache {n} is in memory and has no disk to bypass; leave out bypass_after")
        return self
