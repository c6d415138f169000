"""`nomad.replicas`: a service of N replicas; measures how long each takes to run, at first and after each loss.

The parts of a start are read from the timestamps that Nomad puts on evaluations, allocations and tasks (fields of
1.10.5). Servers and nodes report wall-clock times, which agree within one machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field, StringConstraints

from hashidrill.core.experiment.strict import Strict
from hashidrill.core.loads.http_client import HttpClient
from hashidrill.core.loads.schedule import Reply, Spells, Waiting, detail_as
from hashidrill.core.protocols.abc import Detail, EmitOperation, LoadCost
from hashidrill.core.units import Duration
from hashidrill.products.nomad.loads.base import NODE_NAME, NomadLoad, Via, document, task, timed_out_at_the_end

TABLE = "nomad_start"
_NS = 1e9
_RECEIVED, _STARTED = "Received", "Started"


@dataclass(frozen=True)
class Start:
    """The successive parts of one start, in seconds: the `Operation.detail` of a replica that began to run.

    `again_s`: from the job's first evaluation to the evaluation that placed this replica; above 0 if earlier tries
    failed, or if a tool raised the count step by step. `evaluation_s`: from then until the leader applied the plan (the
    evaluation waits for a worker of the scheduler, which then computes). `plan_s`: until the node had the allocation
    (the plan goes through Raft, then to the node). `start_s`: until the node had started its task.
    """

    again_s: float
    evaluation_s: float
    plan_s: float
    start_s: float

    def detail(self) -> Detail:
        return Detail(TABLE, asdict(self))

    @classmethod
    def of(cls, detail: Detail | None) -> Start:
        """Raises ValueError for a detail that is not of a start."""
        return detail_as(cls, detail, TABLE, "nomad.replicas")


def start_of(alloc: Mapping[str, Any], evaluations: Sequence[Mapping[str, Any]]) -> Start | None:
    """The start of a running allocation, from the evaluations of its job; None if a timestamp is missing."""
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
    times = [int(event["Time"]) for task in tasks for event in task.get("Events") or () if event["Type"] == kind]
    return min(times, default=None)


_LOOK_EVERY_S = 0.25
_ASK_WITHIN_S = 2.0
_SECOND = 10**9
_RUNS = "running"


class Replicas(NomadLoad):
    """Registers one job and watches its replicas. An operation is a replica that is missing until it runs again.

    The first operations begin when the job is registered: a cold start. Later operations begin when Nomad's servers
    report that a replica no longer runs, and end when they report that another one runs in its place. A replica that
    was replaced or restarted since the last look counts as missing from that look on.

    `LOAD.running` is how many replicas run.
    """

    kind: ClassVar[str] = "nomad.replicas"
    works_on: ClassVar[str] = "client"
    signals: ClassVar = {"running": None}

    class Params(Strict):
        """`count` replicas of a task that sleeps.

        `spread`: `hosts` spreads them evenly over the nodes, `distinct` allows one on each node, `none` leaves it to
        the scheduler, which packs by default. `step` and `healthy_for` imitate a deploy tool that takes small steps.
        """

        count: int = Field(ge=1, le=1_000, description="How many replicas")
        spread: Literal["none", "hosts", "distinct"] = Field(default="hosts", description="Spread over nodes")
        prefer: Annotated[str, StringConstraints(pattern=NODE_NAME)] | None = Field(
            default=None, description="A node that each replica prefers, like node-1"
        )
        restart_delay: Duration = Field(
            default=Duration("1s"),
            ge=0,
            description="Delay before a failed task is tried again on its node, twice at most",
        )
        reschedule_delay: Duration = Field(
            default=Duration("5s"), ge=5, description="Delay before a failed replica is placed again, on any node"
        )
        step: int | None = Field(
            default=None,
            ge=1,
            description="Raise the count by this many at a time (none: all at once)",
        )
        healthy_for: Duration = Field(
            default=Duration("0s"), ge=0, description="How long all replicas must run before the next step"
        )
        after: Duration = Field(default=Duration("0s"), ge=0, description="How long after the loads begin it registers")
        via: Via = "nomad:servers"

    params: Params

    @classmethod
    def cost(cls, params: Params) -> LoadCost:  # noqa: ARG003 - it asks four times a second, whatever the params
        return LoadCost(rate_per_s=1 / _LOOK_EVERY_S)

    async def run(self, emit: EmitOperation) -> None:
        clock = self.context.clock
        names = [f"{self.job_id}.group[{n}]" for n in range(self.params.count)]
        away = _Away(self.name, self.context.waiting, emit)
        await asyncio.sleep(float(self.params.after))
        began_ns = clock.now_ns()
        for name in names:
            away.begin(name, began_ns)
        try:
            async with self.client() as client:
                steps = Steps(self.params.count, self.params.step or self.params.count, float(self.params.healthy_for))
                await self.register(client, self._job(steps.asked))
                turn = 0
                while True:
                    turn += 1
                    asked_ns = clock.now_ns()
                    url = f"{self.endpoint(turn)}/v1/job/{self.job_id}"
                    answer = await client.request("GET", f"{url}/allocations", timeout_s=_ASK_WITHIN_S)
                    allocs, seen_ns = document(answer), clock.now_ns()
                    if isinstance(allocs, list):
                        running = where(allocs)
                        came = {*away} & running.keys()
                        starts = await self._starts(client, url, allocs) if came else {}
                        away.seen(names, running, starts, _Look(asked_ns, seen_ns))
                        self.context.sample("running", float(len(running)), _shares(running.values()))
                        if steps.goes_on(len(running), seen_ns):
                            await self.register(client, self._job(steps.asked))
                    else:
                        self.context.sample("running", None, answer.error or f"HTTP {answer.status}")
                    await asyncio.sleep(_LOOK_EVERY_S)
        finally:
            for name in away:
                away.end(name, timed_out_at_the_end(), clock.now_ns(), key=name)

    async def _starts(self, client: HttpClient, url: str, allocs: Iterable[Mapping[str, Any]]) -> dict[str, Detail]:
        """The parts of each start, as far as Nomad has them: no verdict depends on them."""
        evaluations = document(await client.request("GET", f"{url}/evaluations", timeout_s=_ASK_WITHIN_S))
        if not isinstance(evaluations, list) or not evaluations:
            return {}
        found = {alloc["Name"]: start_of(alloc, evaluations) for alloc in allocs if runs(alloc)}
        return {name: start.detail() for name, start in found.items() if start}

    def _job(self, count: int | None = None) -> dict[str, Any]:
        group: dict[str, Any] = {
            "Name": "group",
            "Count": self.params.count if count is None else count,
            "EphemeralDisk": {"SizeMB": 10},
            "Tasks": [task("/bin/sleep", "86400")],
            "RestartPolicy": {
                "Attempts": 2,
                "Interval": 60 * _SECOND,
                "Mode": "fail",
                "Delay": int(float(self.params.restart_delay) * _SECOND),
            },
            "ReschedulePolicy": {
                "Unlimited": True,
                "DelayFunction": "constant",
                "Delay": int(float(self.params.reschedule_delay) * _SECOND),
            },
        }
        if self.params.spread == "hosts":
            group["Spreads"] = [{"Attribute": "${node.unique.name}", "Weight": 100}]
        elif self.params.spread == "distinct":
            group["Constraints"] = [{"Operand": "distinct_hosts", "RTarget": "true"}]
        if self.params.prefer:
            named = {"LTarget": "${node.unique.name}", "RTarget": self.params.prefer, "Operand": "="}
            group["Affinities"] = [named | {"Weight": 100}]
        return {"Type": "service", "TaskGroups": [group]}

    async def clean_up(self) -> None:
        await self.remove(self.job_id)


class _Look(NamedTuple):
    asked_ns: int
    answered_ns: int


class _Away(Spells[str]):
    def __init__(self, load: str, waiting: Waiting, emit: EmitOperation) -> None:
        super().__init__(load, waiting, emit)
        self._were: dict[str, str] = {}
        self._asked_ns = 0

    def seen(
        self, names: Iterable[str], running: Mapping[str, Replica], starts: Mapping[str, Detail], at: _Look
    ) -> None:
        """Updates each replica from one look. A replica replaced since the last look is missing from that look on."""
        for name in names:
            one = running.get(name)
            if one and name not in self and self._were.get(name, one.instance) != one.instance:
                self.begin(name, self._asked_ns)
            if one and name in self:
                reply = Reply("ok", status=200, detail=starts.get(name))
                self.end(name, reply, at.answered_ns, key=name, value=one.node)
            elif one is None and name not in self:
                self.begin(name, at.asked_ns)
        self._were = {name: one.instance for name, one in running.items()}
        self._asked_ns = at.asked_ns


class Steps:
    """The number of replicas requested so far: a deploy tool with small steps waits until each one is healthy."""

    def __init__(self, count: int, step: int, healthy_for_s: float) -> None:
        self._count, self._step, self._healthy_ns = count, step, round(healthy_for_s * _SECOND)
        self._healthy_since: int | None = None
        self.asked = min(step, count)

    def goes_on(self, running: int, at_ns: int) -> bool:
        """Whether this look increased `asked`."""
        if running < self.asked or self.asked == self._count:
            self._healthy_since = None
            return False
        self._healthy_since = at_ns if self._healthy_since is None else self._healthy_since
        if at_ns - self._healthy_since < self._healthy_ns:
            return False
        self._healthy_since = None
        self.asked = min(self.asked + self._step, self._count)
        return True


def runs(alloc: Mapping[str, Any]) -> bool:
    """Whether the allocation runs and is meant to run."""
    return bool(alloc["ClientStatus"] == _RUNS and alloc["DesiredStatus"] == "run")


class Replica(NamedTuple):
    """A running replica: its node and its identity, which changes when it is replaced or restarted."""

    node: str
    instance: str


def where(allocs: Iterable[Mapping[str, Any]]) -> dict[str, Replica]:
    """Each replica that runs and is meant to run, by name."""
    return {alloc["Name"]: Replica(alloc["NodeName"], _instance(alloc)) for alloc in allocs if runs(alloc)}


def _instance(alloc: Mapping[str, Any]) -> str:
    restarts = sum(int(task.get("Restarts") or 0) for task in (alloc.get("TaskStates") or {}).values())
    return f"{alloc['ID']}, restarted {restarts} times"


def _shares(replicas: Iterable[Replica]) -> str:
    """`node-1: 4, node-2: 3`."""
    there = [one.node for one in replicas]
    return ", ".join(f"{node}: {there.count(node)}" for node in sorted(set(there)))
