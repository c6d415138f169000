"""The sample's part of `datacenter:`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from hashidrill.core.experiment.strict import Strict
from hashidrill.core.units import Duration, Size

Long = Annotated[Duration, Field(gt=0, le=60)]


class Database(Strict):
    """A database that serves some requests at a time, while the others wait in line. The tenants are the loads."""

    at_once: int = Field(default=4, ge=1, le=200, description="Requests that it serves at a time")
    of_one_tenant: int | None = Field(
        default=None, ge=1, le=200, description="How many of those may be of one tenant, a load; none: all of them"
    )


class Cache(Strict):
    """A cache of the store, on its host's disk. It writes through: new data is on disk first."""

    bypass_after: Long | None = Field(
        default=None, description="Go round the cache, to the store, when its disk takes longer than this; none: wait"
    )
    memory: bool = Field(default=False, description="Keep everything in memory instead: a restart empties it")
    database: int | None = Field(
        default=None, ge=1, le=4, description="The number of the database that it is a cache of; none: of the store"
    )
    off_for: Long = Field(default=Duration("5s"), description="How long the cache is left alone after that")


class Pool(Strict):
    """A service whose workers each wait for the store, and whose pool of workers grows slowly under load."""

    at_least: int = Field(default=2, ge=1, le=200, description="Workers that are there from the start")
    most: int = Field(default=100, ge=1, le=200, description="Workers that the pool grows to")
    grows_every: Long = Field(default=Duration("1s"), description="Gets one more worker this often, while work waits")
    calls: int = Field(default=5, ge=1, le=50, description="Calls to the store that each request makes, in turn")
    leaks: Size = Field(default=Size("0B"), le=1_000_000, description="Memory that each request leaves behind")


class Logs(Strict):
    """A pipeline of logs, in batches of lines: node-1 takes them in, searcher-1 can search them.

    Parsed on the node, all a batch has is buffers that may overflow. Parsed in a `tier`, on tier-1, it is first stored
    on archive-1, and search gets what it has room for.
    """

    parse: Literal["node", "tier"] = Field(default="node", description="Where lines are parsed")
    parse_takes: Duration = Field(default=Duration("80ms"), gt=0, le=10, description="CPU that parsing a batch takes")
    search_takes: Duration = Field(
        default=Duration("100ms"), gt=0, le=10, description="How long search takes for a batch, or for one search"
    )
    room: int = Field(default=20, ge=1, le=1000, description="What each queue holds: batches, and searches")


class Checker(Strict):
    """Checks the health of targets, of which backend-1 and backend-2 have half each; a load says how many."""

    workers: int = Field(default=2, ge=1, le=8, description="Processes that check")
    reports: Literal["all", "changes"] = Field(
        default="all",
        description="What they hand on: each result, or, a few times a second, what changed",
    )
    report_takes: Duration = Field(default=Duration("4ms"), ge=0, le=1, description="CPU that taking in a report takes")
    every: Long = Field(default=Duration("30s"), description="The interval of each check")
    timeout: Long = Field(default=Duration("2s"), description="An older result is unknown")
    most: int = Field(default=100_000, ge=1, le=100_000, description="Refuses more checks than this")


class Sample(Strict):
    """Small sample programs: a store, databases, caches of these, pools of workers that call it, a pipeline of logs."""

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
    logs: Logs | None = Field(default=None, description="A pipeline of logs, from a node to search")

    @model_validator(mode="after")
    def _every_cache_has_what_it_is_a_cache_of(self) -> Sample:
        for n, cache in enumerate(self.caches, 1):
            if (cache.database or 0) > len(self.databases):
                raise ValueError(f"cache {n} is of database {cache.database}, and there are {len(self.databases)}")
            if cache.memory and cache.bypass_after is not None:
                raise ValueError(f"cache {n} is in memory and has no disk to go round; leave out bypass_after")
        return self
