"""Makes free pages in a raft.db as Consul does: large writes fill the log, then a snapshot drops them.

The server is configured to keep its whole log while large values are written, and then to keep almost none of it. The
other servers keep their configuration, so their files grow as well, but their pages are not free.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import anyio

from hashidrill.core.errors import FaultError
from hashidrill.core.protocols.capabilities import AgentApi, AgentFiles
from hashidrill.core.util.wait import wait_while_it_moves
from hashidrill.products.consul import api, boltdb, markers

if TYPE_CHECKING:
    from hashidrill.products.consul.faults.raft_db import RaftDb

MOST_PAGES = 100_000
"""400 MB of log on each server: half a minute on an ordinary disk."""
_VALUE = b"x" * 400_000
_AT_ONCE = 2
_FILLED_WITHIN_S = 120.0
_DROPPED_STILL_S = 60.0
_DROPPED_WITHIN_S = 180.0
_KEEP_ALL = {"raft_trailing_logs": 1_000_000, "raft_snapshot_threshold": 1_000_000}
_KEEP_FEW = {"raft_trailing_logs": 50, "raft_snapshot_threshold": 50, "raft_snapshot_interval": "1s"}


async def bloat(db: RaftDb, free_pages: int, config: Mapping[str, Any]) -> None:
    """Raises FaultError or WaitTimeoutError if the pages are not there in time."""
    await _restarted(db, {**config, **_KEEP_ALL})
    key = f"bloat/{db.host.name}"
    target = boltdb.read_meta(db.path).high_water + free_pages
    try:
        with anyio.fail_after(_FILLED_WITHIN_S):
            await _fill(db, key, target)
    except TimeoutError:
        there = boltdb.read_meta(db.path).high_water
        raise FaultError(
            f"{db.host.name}: raft.db has {there} of {target} pages after {_FILLED_WITHIN_S:g}s; ask for fewer"
        ) from None
    finally:
        with anyio.CancelScope(shield=True):
            await markers.remove(db.host, f"{key}/", below=True)
    await _restarted(db, {**config, **_KEEP_FEW})

    async def dropped() -> tuple[bool | None, str, int]:
        await markers.put(db.host, key, "")  # so that there is something to snapshot
        free = (await db.look()).free
        return (True if free >= 0.95 * free_pages else None), f"{free} free pages", free

    await wait_while_it_moves(
        "the old log to be dropped", dropped, still_s=_DROPPED_STILL_S, within_s=_DROPPED_WITHIN_S, gap_s=0.1
    )
    await markers.remove(db.host, key)
    await _restarted(db, config)


async def put_back(db: RaftDb, config: Mapping[str, Any]) -> None:
    """Restores the former configuration, if an interrupted bloat left another one."""
    if await db.host.use(AgentFiles).agent_config(api.AGENT) != config:
        await _restarted(db, config)


async def _restarted(db: RaftDb, config: Mapping[str, Any]) -> None:
    async with db.stopped():
        await db.host.use(AgentFiles).set_agent_config(api.AGENT, config)


async def _fill(db: RaftDb, key: str, target: int) -> None:
    """Write large values, two at a time, until the file has `target` pages."""
    numbers = itertools.count()

    async def write() -> None:
        for number in numbers:
            answer = await db.host.use(AgentApi).api(
                "PUT", f"/v1/kv/{markers.PREFIX}/{key}/{number % 4}", body=_VALUE, timeout_s=30.0, agent=api.AGENT
            )
            if answer.status != 200:
                raise FaultError(f"{db.host.name}: Consul did not take a large write: {api.said(answer)}")
            if boltdb.read_meta(db.path).high_water >= target:
                return

    async with anyio.create_task_group() as group:
        for _ in range(_AT_ONCE):
            group.start_soon(write)
