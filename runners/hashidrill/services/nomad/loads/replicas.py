"""`nomad.replicas`: a service of N replicas, from nothing; how long each takes to run, at first and after each loss."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from hashidrill.abc import LoadCost, Operation
from hashidrill.experiment.strict import Strict
from hashidrill.loads.schedule import Reply
from hashidrill.services.nomad.loads.base import NomadLoad, Via, document, task, timed_out_at_the_end
from hashidrill.units import Duration

if TYPE_CHECKING:
    from hashidrill.abc import EmitOperation

_LOOK_EVERY_S = 0.25
_ASK_WITHIN_S = 2.0
_SECOND = 10**9
_RUNS = "running"


class Replicas(NomadLoad):
    """Registers one job and watches its replicas. An operation is a replica that is missing until it runs again.

    The first operations begin when the job is registered: a cold start. Later ones begin when a replica is seen not to
    run any more, as Nomad's servers know it, and end when they know another one in its place to run.
    """

    kind: ClassVar[str] = "nomad.replicas"
    signals: ClassVar = {"running": None}

    class Params(Strict):
        """`count` replicas of a task that sleeps.

        `spread`: `hosts` spreads them evenly over the nodes, `distinct` allows one on each node, `none` leaves it to
        the scheduler, which packs by default.
        """

        count: int = Field(ge=1, le=1_000, description="How many replicas")
        spread: Literal["none", "hosts", "distinct"] = Field(default="hosts", description="Over the nodes")
        restart_delay: Duration = Field(
            default=Duration("1s"), ge=0, description="Before a failed task is tried again on its node, twice at most"
        )
        reschedule_delay: Duration = Field(
            default=Duration("5s"), ge=5, description="Before a failed replica is placed again, on any node"
        )
        via: Via = "nomad:servers"

    params: Params

    @classmethod
    def cost(cls, params: Params) -> LoadCost:  # noqa: ARG003 - it asks four times a second, whatever it holds
        return LoadCost(rate_per_s=1 / _LOOK_EVERY_S)

    async def run(self, emit: EmitOperation) -> None:
        """Until cancelled; replicas that are missing then are emitted as `unknown`."""
        clock = self.context.clock
        names = [f"{self.job_id}.group[{n}]" for n in range(self.params.count)]
        missing: dict[str, tuple[int, int]] = {}

        def lost(name: str, at_ns: int) -> None:
            missing[name] = (at_ns, self.context.waiting.begin(at_ns))

        def back(name: str, reply: Reply, value: str = "") -> None:
            since_ns, token = missing.pop(name)
            self.context.waiting.end(token)
            emit(
                Operation(
                    load=self.name, intended_ns=since_ns, start_ns=since_ns, end_ns=clock.now_ns(), key=name,
                    value=value, outcome=reply.outcome, status=reply.status, error=reply.error, reason=reply.reason,
                )
            )  # fmt: skip

        began_ns = clock.now_ns()
        for name in names:
            lost(name, began_ns)
        try:
            async with self.client() as client:
                await self.register(client, self._job())
                turn = 0
                while True:
                    turn += 1
                    asked_ns = clock.now_ns()
                    url = f"{self.endpoint(turn)}/v1/job/{self.job_id}/allocations"
                    answer = await client.request("GET", url, timeout_s=_ASK_WITHIN_S)
                    allocs = document(answer)
                    if isinstance(allocs, list):
                        running = where(allocs)
                        for name in names:
                            if name in missing and name in running:
                                back(name, Reply("ok", status=200), running[name])
                            elif name not in missing and name not in running:
                                lost(name, asked_ns)
                        self.context.sample("running", float(len(running)), _shares(running.values()))
                    else:
                        self.context.sample("running", None, answer.error or f"HTTP {answer.status}")
                    await asyncio.sleep(_LOOK_EVERY_S)
        finally:
            for name in list(missing):
                back(name, timed_out_at_the_end())

    def _job(self) -> dict[str, Any]:
        group: dict[str, Any] = {
            "Name": "group", "Count": self.params.count, "EphemeralDisk": {"SizeMB": 10},
            "Tasks": [task("/bin/sleep", "86400")],
            "RestartPolicy": {
                "Attempts": 2, "Interval": 60 * _SECOND, "Mode": "fail",
                "Delay": int(float(self.params.restart_delay) * _SECOND),
            },
            "ReschedulePolicy": {
                "Unlimited": True, "DelayFunction": "constant",
                "Delay": int(float(self.params.reschedule_delay) * _SECOND),
            },
        }  # fmt: skip
        if self.params.spread == "hosts":
            group["Spreads"] = [{"Attribute": "${node.unique.name}", "Weight": 100}]
        elif self.params.spread == "distinct":
            group["Constraints"] = [{"Operand": "distinct_hosts", "RTarget": "true"}]
        return {"Type": "service", "TaskGroups": [group]}

    async def clean_up(self) -> None:
        await self.remove(self.job_id)


def where(allocs: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The node of each replica that runs and should, by the replica's name."""
    return {
        alloc["Name"]: alloc["NodeName"]
        for alloc in allocs
        if alloc["ClientStatus"] == _RUNS and alloc["DesiredStatus"] == "run"
    }


def _shares(nodes: Iterable[str]) -> str:
    """`node-1: 4, node-2: 3`."""
    there = list(nodes)
    return ", ".join(f"{node}: {there.count(node)}" for node in sorted(set(there)))


KINDS = (Replicas,)
