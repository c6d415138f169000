"""What became of work that Nomad acknowledged: by its job, and by the allocations that it remembers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

FORGOTTEN, DROPPED, LOST = "forgotten", "dropped", "lost"
COMPLETE, RUNS, WAITS, FAILED = "complete", "runs", "waits", "failed"
STATES = frozenset({FORGOTTEN, DROPPED, LOST, COMPLETE, RUNS, WAITS, FAILED})
"""Forgotten: no job is known. Dropped: the job has ended, and no allocation of it was ever made. Lost: its last
allocation is, and no other came in its place. Waits: for room, or for its restart."""


@dataclass(frozen=True)
class Account:
    """`started`: how often a task of it began to run, on any node."""

    state: str
    started: int = 0


def of(job: Mapping[str, Any] | None, allocs: Iterable[Mapping[str, Any]]) -> Account:
    """`job` and `allocs` as Nomad lists them, the latter of all jobs with their tasks' events."""
    if job is None:
        return Account(FORGOTTEN)
    mine = [one for one in allocs if one["JobID"] == job["ID"]]
    started = sum(_started(one) for one in mine)
    statuses = {one["ClientStatus"] for one in mine}
    if "complete" in statuses:
        return Account(COMPLETE, started)
    if statuses & {"running", "pending", "unknown"}:
        return Account(RUNS if "running" in statuses else WAITS, started)
    if job["Status"] != "dead":
        return Account(WAITS, started)
    if not mine:
        return Account(DROPPED)
    last = max(mine, key=lambda one: int(one["CreateIndex"]))
    return Account(LOST if last["ClientStatus"] == "lost" else FAILED, started)


def _started(alloc: Mapping[str, Any]) -> int:
    """Nomad keeps a task's last ten events: enough for what it restarts a few times."""
    tasks = (alloc.get("TaskStates") or {}).values()
    return sum(event["Type"] == "Started" for one in tasks for event in one.get("Events") or ())
