"""Where the time of a replica's start went, by the stamps that Nomad itself puts on evaluations, allocations and tasks.

Fields as Nomad 1.10.5 answers them. The stamps of servers and nodes are wall clocks: within one machine they agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from hashidrill.core.loads.operations import detail_as
from hashidrill.core.protocols.abc import Detail

TABLE = "nomad_start"
_NS = 1e9
_RECEIVED, _STARTED = "Received", "Started"


@dataclass(frozen=True)
class Start:
    """The parts of one start, in seconds, one after the other: the `Operation.detail` of a replica that came to run.

    `again_s`: from the job's first evaluation to the one that placed this replica. Above 0 where earlier tries failed,
    or where a tool raised the count step by step. `evaluation_s`: until the leader applied the plan that places it
    (the evaluation waits for a worker of the scheduler, which then computes). `plan_s`: until the node had the
    allocation (the plan goes through Raft, the node hears of it). `start_s`: until the node had started its task.
    """

    again_s: float
    evaluation_s: float
    plan_s: float
    start_s: float

    def detail(self) -> Detail:
        return Detail(TABLE, asdict(self))

    @classmethod
    def of(cls, detail: Detail | None) -> Start:
        """Raises ValueError where it is no detail of a start."""
        return detail_as(cls, detail, TABLE, "nomad.replicas")


def start_of(alloc: Mapping[str, Any], evaluations: Sequence[Mapping[str, Any]]) -> Start | None:
    """Of an allocation that runs and the evaluations of its job; None where a stamp is missing."""
    created = {each["ID"]: int(each["CreateTime"]) for each in evaluations if "ID" in each}
    placing = created.get(alloc.get("EvalID", ""))
    tasks = list((alloc.get("TaskStates") or {}).values())
    received, started = (_first(tasks, kind) for kind in (_RECEIVED, _STARTED))
    if placing is None or received is None or started is None:
        return None
    placed = int(alloc["CreateTime"])
    stamps = (min(created.values()), placing, placed, received, started)
    return Start(*((later - earlier) / _NS for earlier, later in pairwise(stamps)))


def _first(tasks: Sequence[Mapping[str, Any]], kind: str) -> int | None:
    """When the first event of that kind came, in ns."""
    times = [int(event["Time"]) for task in tasks for event in task.get("Events") or () if event["Type"] == kind]
    return min(times, default=None)
