"""A job that somebody stops by mistake, and registers again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field

from hashidrill.core.faults.base import Cases
from hashidrill.core.protocols.abc import Claim, Evidence, Observer, Place, Target, Undo
from hashidrill.core.protocols.rights import Right
from hashidrill.products.nomad import api, jobs, rights, tasks
from hashidrill.products.nomad.faults.declared import OfWork, work_of

_STOPPED_WITHIN_S = 45.0
"""Nomad gives tasks 5 s to end unless their job says more, and at most 30 s."""


class StopParams(jobs.JobParams):
    """Which job, and whether Nomad forgets it as well."""

    purge: bool = Field(default=False, description="Nomad forgets the job, as `nomad job stop -purge` makes it")


class JobStop(OfWork[StopParams]):
    """Stops a job, and with it all of its allocations; reverting registers it again, as it was.

    Limits: in force once all tasks have ended, which takes as long as their job gives them. A job that runs nothing,
    like one that is only dispatched, is proven by Nomad's word alone. What a periodic or dispatched job had started
    before goes on.
    """

    kind: ClassVar[str] = "nomad.job.stop"
    Params: ClassVar[type[StopParams]] = StopParams
    observer: ClassVar[Observer] = Observer(
        "the processes of the job's tasks on all nodes (/proc), and the job in a follower's state",
        "nothing for a job that runs; one that runs nothing is read through Nomad's HTTP API alone",
    )
    cases: ClassVar[Cases] = Cases(on=(("nomad:leader", {"job": "sleepers"}),))

    def rights(self) -> Sequence[Right]:
        return (*rights.READS, *rights.JOBS)

    @property
    def observed_within_s(self) -> float:
        return _STOPPED_WITHIN_S

    def uses(self, place: Place) -> Sequence[Claim]:
        return (*super().uses(place), work_of(self.params.job))

    async def prior(self, target: Target) -> Mapping[str, Any]:
        """The job as it is registered. Raises FaultError for one that is not, or is stopped."""
        job = await jobs.registered(self.hosts, self.params.job)
        return {"job": job, "processes": len(await self._processes())}

    async def _processes(self) -> list[tasks.TaskProcess]:
        return [one for one in await tasks.on_all_nodes(self.hosts) if one.job == self.params.job]

    async def apply(self, undo: Undo) -> None:
        params = {"purge": "true" if self.params.purge else "false"}
        await api.when_led(self.hosts, "DELETE", jobs.path_of(self.params.job), params=params)

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        stopped = await jobs.stopped(self.hosts, self.params.job, copy=True)
        left, before = len(await self._processes()), undo["prior"]["processes"]
        state = "registered" if stopped is False else "stopped" if stopped else "not known"
        measured = f"the job is {state}, {left} processes of its tasks run ({before} before)"
        figures: dict[str, float | str] = {"processes": left, "before": before}
        if present:
            there = stopped is None if self.params.purge else stopped is True
            asked = f"the job is {'not known' if self.params.purge else 'stopped'}, and none of its processes runs"
            return Evidence(there and not left, asked, measured, figures)
        return Evidence(stopped is False, "the job is registered", measured, figures)

    async def revert(self, undo: Undo) -> None:
        """Nothing for a job that is registered: somebody may have registered another version meanwhile."""
        job = undo.get("prior", {}).get("job")
        if job is not None and await jobs.stopped(self.hosts, self.params.job) is not False:
            await api.when_led(self.hosts, "POST", "/v1/jobs", body={"Job": {**job, "Stop": False}})
