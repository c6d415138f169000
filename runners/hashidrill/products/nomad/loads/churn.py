"""`nomad.job.churn`: jobs that are registered, changed and stopped at a rate, as by deployments all day."""

import json
from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from hashidrill.core.experiment.strict import Strict
from hashidrill.core.loads.answer import Answer
from hashidrill.core.loads.http_client import for_each, insist
from hashidrill.core.loads.schedule import Reply
from hashidrill.core.protocols.abc import EmitOperation
from hashidrill.core.units import Duration, Rate
from hashidrill.products.nomad.loads.base import (
    FINAL_READS_WITHIN_S,
    NomadLoad,
    Timeout,
    Via,
    change_reply,
    document,
    task,
)

_META = "hashidrill"
_REGISTER, _CHANGE, _STOP = "register", "change", "stop"
_DONE = {_REGISTER: "registered", _CHANGE: "changed", _STOP: "stopped"}
"""Each step, and what Nomad shows of a job after it."""


class JobChurn(NomadLoad):
    """Registers, changes and stops jobs, one step at a time and `rate` steps a second.

    An operation is `ok` when Nomad has acknowledged the step. The final reads are the versions of each job that Nomad
    remembers, for `no_acknowledged_write_lost`.
    """

    kind: ClassVar[str] = "nomad.job.churn"

    class Params(Strict):
        """Each version of a job starts `count` tasks, which sleep, and a change replaces them."""

        rate: Rate = Field(gt=0, le=100)
        """Steps offered, at most 100/s."""
        jobs: int = Field(default=10, ge=1, le=1_000, description="About how many jobs run at a time")
        count: int = Field(default=1, ge=0, le=100, description="Tasks of each job; with 0, only servers have work")
        via: Via = "nomad:servers"
        timeout: Timeout = Duration("30s")

    params: Params

    def __init__(self, name: str, params: Params, context: Any) -> None:
        super().__init__(name, params, context)
        self._registered: deque[str] = deque()
        self._changed: deque[str] = deque()
        self._acknowledged: set[str] = set()

    async def run(self, emit: EmitOperation) -> None:
        async with self.client() as client:

            async def step(n: int, key: str, value: str) -> Reply:  # noqa: ARG001 - the key names the step
                job, _, what = key.rpartition("/")
                url, timeout_s = self.endpoint(n), float(self.params.timeout)
                if what == _STOP:
                    answer = await client.request("DELETE", f"{url}/v1/job/{job}", timeout_s=timeout_s)
                else:
                    body = json.dumps({"Job": self._job(job, what)}).encode()
                    answer = await client.request("POST", f"{url}/v1/jobs", body=body, timeout_s=timeout_s)
                reply = change_reply(answer)
                if reply.outcome == "ok":
                    self._taken(job, what)
                return reply

            await self.open_loop(self._plan, step).run(emit)

    def _taken(self, job: str, what: str) -> None:
        self._acknowledged.add(f"{job}/{what}")
        if what == _REGISTER:
            self._registered.append(job)
        elif what == _CHANGE:
            self._changed.append(job)

    def _plan(self, n: int) -> tuple[str, str]:
        """Registers jobs until there are enough; then each new job follows the stop of the oldest."""
        full = len(self._registered) + len(self._changed) >= self.params.jobs
        if self._changed and full:
            job, what = self._changed.popleft(), _STOP
        elif self._registered and (full or n % 2):
            job, what = self._registered.popleft(), _CHANGE
        else:
            job, what = f"{self.job_id}-{n}", _REGISTER
        return f"{job}/{what}", _DONE[what]

    def _job(self, job: str, what: str) -> dict[str, Any]:
        group = {
            "Name": "group",
            "Count": self.params.count,
            "EphemeralDisk": {"SizeMB": 10},
            "Tasks": [task("/bin/sleep", "86400")],
        }
        return {
            "ID": job,
            "Name": job,
            "Type": "service",
            "Datacenters": ["*"],
            "Meta": {_META: _DONE[what]},
            "TaskGroups": [group],
        }

    async def final_reads(self) -> Mapping[str, str | None]:
        """The state of each step that Nomad remembers; None for a step that Nomad acknowledged and forgot. Raises
        WaitTimeoutError.
        """
        found: dict[str, str | None] = dict.fromkeys(self._acknowledged)
        async with self.client() as client:

            async def versions(job: str) -> None:
                path = f"/v1/job/{job}/versions"
                there = await insist(
                    client, self.context.endpoints, "GET", path, _versions, within_s=FINAL_READS_WITHIN_S
                )
                for one in there:
                    step = _STOP if one["Stop"] else _step_of(one)
                    if step is not None:
                        found[f"{job}/{step}"] = _DONE[step]

            known = {job["ID"] for job in await self._known(client)}
            await for_each(sorted(known), versions)
        for key in self._acknowledged:
            job, _, step = key.rpartition("/")
            if step == _STOP and job not in known:
                found[key] = _DONE[
                    _STOP
                ]  # Nomad also acknowledges a stop of a job that it has forgotten: the job's other steps are lost
        return found

    async def _known(self, client: Any) -> list[dict[str, Any]]:
        params = {"prefix": f"{self.job_id}-"}
        jobs: list[dict[str, Any]] = await insist(
            client, self.context.endpoints, "GET", "/v1/jobs", _jobs, within_s=FINAL_READS_WITHIN_S, params=params
        )
        return jobs

    async def clean_up(self) -> None:
        async with self.client() as client:
            known = document(
                await client.request(
                    "GET", f"{self.endpoint(0)}/v1/jobs", params={"prefix": f"{self.job_id}-"}, timeout_s=2.0
                )
            )
        await for_each([job["ID"] for job in known or ()], self.remove)


def _step_of(version: Mapping[str, Any]) -> str | None:
    shown = (version.get("Meta") or {}).get(_META)
    return next((step for step, done in _DONE.items() if done == shown), None)


def _jobs(answer: Answer) -> list[dict[str, Any]] | None:
    found = document(answer)
    return found if isinstance(found, list) else None


def _versions(answer: Answer) -> list[dict[str, Any]] | None:
    if answer.status == 404:
        return []
    found = document(answer)
    return found["Versions"] or [] if isinstance(found, dict) else None
