"""`nomad.dispatch`: batch work that is handed to Nomad at a rate, as a queue or a build service does."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from hashidrill.core.experiment.strict import Strict
from hashidrill.core.loads.http_client import insist
from hashidrill.core.loads.schedule import OpenLoop, Reply
from hashidrill.core.protocols.abc import LoadCost
from hashidrill.core.units import Duration, Rate
from hashidrill.products.nomad.loads import accounts
from hashidrill.products.nomad.loads.base import (
    FINAL_READS_WITHIN_S,
    NomadLoad,
    Timeout,
    Via,
    change_reply,
    document,
    task,
)
from hashidrill.products.nomad.loads.witness import Witness

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hashidrill.core.loads.answer import Answer
    from hashidrill.core.protocols.abc import EmitOperation

_META = "hashidrill"


class Dispatch(NomadLoad):
    """Dispatches a parameterized job `rate` times a second; each is a batch job of one task that ends by itself.

    An operation is `ok` when Nomad has acknowledged the dispatch. The final reads are the dispatched jobs that Nomad
    knows at the end, so that `no_acknowledged_write_lost` can judge whether accepted work was forgotten.

    `LOAD.work` is how often a task of it started, and in its text the state (`complete`, `runs`, `waits`, `failed`,
    `lost`, `dropped`, `forgotten`) that `no_alloc_lost` judges. `LOAD.witnessed`, an account in which no server of
    Nomad has a say.
    """

    kind: ClassVar[str] = "nomad.dispatch"
    signals: ClassVar = {"work": None, "witnessed": None}

    class Params(Strict):
        """Each task takes some 0.1 s of CPU to start: on two cores, 2/s is a lot."""

        rate: Rate = Field(gt=0, le=100)
        """Dispatches offered, at most 100/s; each starts processes: on two cores, 2/s is a lot."""
        runs_for: Duration = Field(default=Duration("0s"), ge=0, description="How long each task runs")
        witness: bool = Field(default=False, description="Each task says itself when it begins and ends, over TCP")
        via: Via = "nomad:servers"
        timeout: Timeout = Duration("30s")

    params: Params

    def __init__(self, name: str, params: Params, context: Any) -> None:
        super().__init__(name, params, context)
        self._acknowledged: dict[str, None] = {}
        self._witness = Witness()

    @classmethod
    def cost(cls, params: Params) -> LoadCost:
        return LoadCost(rate_per_s=params.rate)

    async def prepare(self) -> None:
        """Register the job. Raises WaitTimeoutError when no server takes it, DatacenterError without a witness."""
        seconds = float(self.params.runs_for)
        ran = task("/bin/sleep", f"{seconds:g}") if seconds else task("/bin/true")
        if self.params.witness:
            await self._witness.listen(self.context.local_address)
            ran = task(*self._witness.command(seconds))
        job = {
            "Type": "batch",
            "ParameterizedJob": {"MetaRequired": [_META], "Payload": "forbidden"},
            "TaskGroups": [{"Name": "group", "Count": 1, "EphemeralDisk": {"SizeMB": 10}, "Tasks": [ran]}],
        }
        async with self.client() as client:
            await self.register(client, job)

    async def run(self, emit: EmitOperation) -> None:
        """Until cancelled; every dispatch is emitted exactly once."""
        context = self.context
        async with self.client() as client:

            async def dispatch(n: int, key: str, value: str) -> Reply:  # noqa: ARG001 - the key says which one it is
                url = f"{self.endpoint(n)}/v1/job/{self.job_id}/dispatch"
                body = json.dumps({"Meta": {_META: key}}).encode()
                reply = change_reply(await client.request("POST", url, body=body, timeout_s=float(self.params.timeout)))
                if reply.outcome == "ok":
                    self._acknowledged[key] = None
                return reply

            loop = OpenLoop(
                self.name,
                self.params.rate,
                self._plan,
                dispatch,
                context.clock,
                lag=context.lag,
                waiting=context.waiting,
                course=context.course,
            )
            await loop.run(emit)

    def _plan(self, n: int) -> tuple[str, str]:
        return f"{self.context.run_id}-{n}", "dispatched"

    async def final_reads(self) -> Mapping[str, str | None]:
        """Each dispatch that Nomad knows; None for one that it acknowledged and forgot. Raises WaitTimeoutError.

        What became of the work of each is sampled as `LOAD.work`, and what it said itself as `LOAD.witnessed`.
        """
        params = {"prefix": f"{self.job_id}/dispatch-", "meta": "true"}
        async with self.client() as client:

            async def ask(path: str, params: Mapping[str, str]) -> list[dict[str, Any]]:
                return await insist(
                    client, self.context.endpoints, "GET", path, _listed, within_s=FINAL_READS_WITHIN_S, params=params
                )

            jobs = {str((job.get("Meta") or {}).get(_META)): job for job in await ask("/v1/jobs", params)}
            allocs = await ask("/v1/allocations", {"task_states": "true"})
        for key in self._acknowledged:
            account = accounts.of(jobs.get(key), allocs)
            self.context.sample("work", float(account.started), f"{key} {account.state}")
            if self.params.witness:
                began, state = self._witness.account(key)
                self.context.sample("witnessed", float(began), f"{key} {state}")
        known = {key: "dispatched" for key in jobs if key.startswith(f"{self.context.run_id}-")}
        return {**self._acknowledged, **known}

    async def clean_up(self) -> None:
        """Nomad removes the dispatched jobs, which have ended, by itself."""
        await self._witness.close()
        await self.remove(self.job_id)


def _listed(answer: Answer) -> list[dict[str, Any]] | None:
    found = document(answer)
    return found if isinstance(found, list) else None
