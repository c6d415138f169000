"""`nomad.replicas`: a service of N replicas, from nothing; how long each takes to run, at first and after each loss."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field, StringConstraints

from hashidrill.core.experiment.strict import Strict
from hashidrill.core.loads.schedule import Reply
from hashidrill.core.protocols.abc import LoadCost, Operation
from hashidrill.core.units import Duration
from hashidrill.products.nomad.loads.base import NODE_NAME, NomadLoad, Via, document, task, timed_out_at_the_end
from hashidrill.products.nomad.loads.starts import start_of

if TYPE_CHECKING:
    from hashidrill.core.loads.http_client import HttpClient
    from hashidrill.core.loads.schedule import Waiting
    from hashidrill.core.protocols.abc import Detail, EmitOperation

_LOOK_EVERY_S = 0.25
_ASK_WITHIN_S = 2.0
_SECOND = 10**9
_RUNS = "running"


class Replicas(NomadLoad):
    """Registers one job and watches its replicas. An operation is a replica that is missing until it runs again.

    The first operations begin when the job is registered: a cold start. Later ones begin when a replica is seen not to
    run any more, as Nomad's servers know it, and end when they know another one in its place to run. A replica with
    another allocation, or restarted, since the last look was away from that look on.

    `LOAD.running` is how many run.
    """

    kind: ClassVar[str] = "nomad.replicas"
    signals: ClassVar = {"running": None}

    class Params(Strict):
        """`count` replicas of a task that sleeps.

        `spread`: `hosts` spreads them evenly over the nodes, `distinct` allows one on each node, `none` leaves it to
        the scheduler, which packs by default. `step` and `healthy_for` act out a deploy tool made for small steps.
        """

        count: int = Field(ge=1, le=1_000, description="How many replicas")
        spread: Literal["none", "hosts", "distinct"] = Field(default="hosts", description="Over the nodes")
        prefer: Annotated[str, StringConstraints(pattern=NODE_NAME)] | None = Field(
            default=None, description="A node that each replica would rather run on, like node-1"
        )
        restart_delay: Duration = Field(
            default=Duration("1s"), ge=0, description="Before a failed task is tried again on its node, twice at most"
        )
        reschedule_delay: Duration = Field(
            default=Duration("5s"), ge=5, description="Before a failed replica is placed again, on any node"
        )
        step: int | None = Field(
            default=None,
            ge=1,
            description="Raise the count by this many at a time (none: at once)",
        )
        healthy_for: Duration = Field(
            default=Duration("0s"), ge=0, description="How long all must run before the next step"
        )
        after: Duration = Field(default=Duration("0s"), ge=0, description="When it registers, after the loads begin")
        via: Via = "nomad:servers"

    params: Params

    @classmethod
    def cost(cls, params: Params) -> LoadCost:  # noqa: ARG003 - it asks four times a second, whatever it holds
        return LoadCost(rate_per_s=1 / _LOOK_EVERY_S)

    async def run(self, emit: EmitOperation) -> None:
        """Until cancelled; replicas that are missing then are emitted as `unknown`."""
        clock = self.context.clock
        names = [f"{self.job_id}.group[{n}]" for n in range(self.params.count)]
        away = _Away(self.name, self.context.waiting, emit)
        await asyncio.sleep(float(self.params.after))
        began_ns = clock.now_ns()
        for name in names:
            away.lost(name, began_ns)
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
                        came = away.missing.keys() & running.keys()
                        starts = await self._starts(client, url, allocs) if came else {}
                        away.seen(names, running, starts, _Look(asked_ns, seen_ns))
                        self.context.sample("running", float(len(running)), _shares(running.values()))
                        if steps.goes_on(len(running), seen_ns):
                            await self.register(client, self._job(steps.asked))
                    else:
                        self.context.sample("running", None, answer.error or f"HTTP {answer.status}")
                    await asyncio.sleep(_LOOK_EVERY_S)
        finally:
            for name in list(away.missing):
                away.back(name, clock.now_ns(), timed_out_at_the_end())

    async def _starts(self, client: HttpClient, url: str, allocs: Iterable[Mapping[str, Any]]) -> dict[str, Detail]:
        """Where the time of each start went, as far as Nomad tells: a measure that no verdict waits for."""
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
    """When the servers were asked for the replicas, and when they had answered."""

    asked_ns: int
    answered_ns: int


class _Away:
    """The replicas that are missing: each is an operation from then on until it runs again."""

    def __init__(self, load: str, waiting: Waiting, emit: EmitOperation) -> None:
        self._load, self._waiting, self._emit = load, waiting, emit
        self.missing: dict[str, tuple[int, int]] = {}
        self._were: dict[str, str] = {}
        self._asked_ns = 0

    def lost(self, name: str, at_ns: int) -> None:
        self.missing[name] = (at_ns, self._waiting.begin(at_ns))

    def back(self, name: str, at_ns: int, reply: Reply, value: str = "") -> None:
        since_ns, token = self.missing.pop(name)
        self._waiting.end(token)
        self._emit(
            Operation(
                load=self._load,
                intended_ns=since_ns,
                start_ns=since_ns,
                end_ns=at_ns,
                key=name,
                value=value,
                outcome=reply.outcome,
                status=reply.status,
                error=reply.error,
                reason=reply.reason,
                detail=reply.detail,
            )
        )

    def seen(
        self, names: Iterable[str], running: Mapping[str, Replica], starts: Mapping[str, Detail], at: _Look
    ) -> None:
        """What a look at the replicas says of each. One that was replaced since the last look was away from then on."""
        for name in names:
            one = running.get(name)
            if one and name not in self.missing and self._were.get(name, one.instance) != one.instance:
                self.lost(name, self._asked_ns)
            if one and name in self.missing:
                self.back(name, at.answered_ns, Reply("ok", status=200, detail=starts.get(name)), one.node)
            elif one is None and name not in self.missing:
                self.lost(name, at.asked_ns)
        self._were = {name: one.instance for name, one in running.items()}
        self._asked_ns = at.asked_ns


class Steps:
    """How many replicas are asked for by now: a deploy tool made for small steps waits for each to be healthy."""

    def __init__(self, count: int, step: int, healthy_for_s: float) -> None:
        self._count, self._step, self._healthy_ns = count, step, round(healthy_for_s * _SECOND)
        self._healthy_since: int | None = None
        self.asked = min(step, count)

    def goes_on(self, running: int, at_ns: int) -> bool:
        """Whether `asked` was raised by what was seen then."""
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
    """And should."""
    return bool(alloc["ClientStatus"] == _RUNS and alloc["DesiredStatus"] == "run")


class Replica(NamedTuple):
    """A replica that runs: on which node, and which one it is; a replaced or restarted one is another."""

    node: str
    instance: str


def where(allocs: Iterable[Mapping[str, Any]]) -> dict[str, Replica]:
    """Each replica that runs and should, by its name."""
    return {alloc["Name"]: Replica(alloc["NodeName"], _instance(alloc)) for alloc in allocs if runs(alloc)}


def _instance(alloc: Mapping[str, Any]) -> str:
    restarts = sum(int(task.get("Restarts") or 0) for task in (alloc.get("TaskStates") or {}).values())
    return f"{alloc['ID']}, restarted {restarts} times"


def _shares(replicas: Iterable[Replica]) -> str:
    """`node-1: 4, node-2: 3`."""
    there = [one.node for one in replicas]
    return ", ".join(f"{node}: {there.count(node)}" for node in sorted(set(there)))
