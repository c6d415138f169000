"""Faults of a job: stopped by mistake, its allocations failed, or signals sent to its tasks."""

from __future__ import annotations

import math
import signal
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StringConstraints, model_validator

from hashidrill.core.errors import FaultError, WaitTimeoutError
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.faults.base import Cases, P
from hashidrill.core.protocols.abc import Claim, Evidence, Hosts, Observer, Place, Target, Trouble, Undo
from hashidrill.core.protocols.registry import near
from hashidrill.core.protocols.rights import Right
from hashidrill.core.units import Duration, Percent
from hashidrill.core.util.wait import wait_until
from hashidrill.products.nomad import api, rights, tasks, trial_jobs
from hashidrill.products.nomad.faults.declared import OfWork, work_of

JobId = Annotated[str, StringConstraints(pattern=r"^[^\s?#%]{1,200}$")]


class JobParams(Strict):
    """Which job."""

    job: JobId = Field(description="The id of a job; a load's job is hashidrill-LOAD")


def path_of(job: str) -> str:
    return f"/v1/job/{job}"


async def _found(hosts: Hosts, job: str, *, copy: bool) -> Mapping[str, Any] | None:
    """Searches the list of jobs, so that a missing job is not an error. Raises FaultError, WaitTimeoutError."""
    params = {"prefix": job}
    listed = await (api.from_copy if copy else _led)(hosts, "/v1/jobs", params)
    return next((one for one in listed if one["ID"] == job), None)


async def _led(hosts: Hosts, path: str, params: Mapping[str, str]) -> Any:
    return await api.when_led(hosts, "GET", path, params=params)


async def is_stopped(hosts: Hosts, job: str, *, copy: bool = False) -> bool | None:
    """Whether the job is stopped; None if Nomad does not know the job. `copy`: by a follower's own state."""
    found = await _found(hosts, job, copy=copy)
    return None if found is None else bool(found["Stop"])


async def registered(hosts: Hosts, job: str) -> Mapping[str, Any]:
    """The whole job. Raises FaultError for a job that Nomad does not know, or that is stopped."""
    found = await _found(hosts, job, copy=False)
    if found is None:
        known = [one["ID"] for one in await _led(hosts, "/v1/jobs", {})]
        known = [one for one in known if not one.startswith(trial_jobs.PREFIX)]
        raise FaultError(f"Nomad knows no job {job!r}: {near(job, known) if known else 'there are none'}")
    if found["Stop"]:
        raise FaultError(f"the job {job} is already stopped: it runs nothing, with or without this fault")
    whole: Mapping[str, Any] = await api.when_led(hosts, "GET", path_of(job))
    return whole


async def allocations(hosts: Hosts, job: str, *, copy: bool = False) -> Sequence[Mapping[str, Any]]:
    """All allocations of the job that Nomad remembers, in order of their names and ids."""
    path = f"{path_of(job)}/allocations"
    found = await (api.from_copy(hosts, path) if copy else api.when_led(hosts, "GET", path))
    return sorted(found or (), key=lambda one: (one["Name"], one["ID"]))


def runs(alloc: Mapping[str, Any]) -> bool:
    """Whether the allocation runs and is meant to run."""
    return bool(alloc["ClientStatus"] == "running" and alloc["DesiredStatus"] == "run")


_STOPPED_WITHIN_S = 45.0
"""Nomad gives tasks 5 s to end unless their job says more, and at most 30 s."""


class StopParams(JobParams):
    """The job to stop, and whether Nomad also purges it."""

    purge: bool = Field(default=False, description="Nomad also forgets the job, as with `nomad job stop -purge`")


class JobStop(OfWork[StopParams]):
    """Stops a job, and with it all of its allocations; reverting registers it again, unchanged.

    Limits: the fault is in force once all tasks have ended, which takes as long as their job allows. If the job itself
    runs nothing, because it is only dispatched, Nomad's report alone is proof. Periodic or dispatched jobs that it
    started go on.
    """

    kind: ClassVar[str] = "nomad.job.stop"
    cases: ClassVar[Cases] = Cases(on=(("nomad:leader", {"job": "sleepers"}),))
    Params: ClassVar[type[StopParams]] = StopParams
    observer: ClassVar[Observer] = Observer(
        "the processes of the job's tasks on all nodes (/proc), and the job in a follower's state",
        "nothing if the job runs tasks; a job without tasks is read only through Nomad's HTTP API",
    )

    def rights(self) -> Sequence[Right]:
        return (*rights.READS, *rights.JOBS)

    @property
    def observed_within_s(self) -> float:
        return _STOPPED_WITHIN_S

    def uses(self, place: Place) -> Sequence[Claim]:
        return (*super().uses(place), work_of(self.params.job))

    async def prior(self, target: Target) -> Mapping[str, Any]:
        job = await registered(self.hosts, self.params.job)
        return {"job": job, "processes": len(await self._processes())}

    async def _processes(self) -> list[tasks.TaskProcess]:
        return [one for one in await tasks.on_all_nodes(self.hosts) if one.job == self.params.job]

    async def apply(self, undo: Undo) -> None:
        params = {"purge": "true" if self.params.purge else "false"}
        await api.when_led(self.hosts, "DELETE", path_of(self.params.job), params=params)

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        stopped = await is_stopped(self.hosts, self.params.job, copy=True)
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
        """Does nothing for a registered job: another version may have been registered meanwhile."""
        job = undo.get("prior", {}).get("job")
        if job is not None and await is_stopped(self.hosts, self.params.job) is not False:
            await api.when_led(self.hosts, "POST", "/v1/jobs", body={"Job": {**job, "Stop": False}})


_ENDED = ("failed", "lost", "complete")
_STOPPED = "T"
_STILL_WITHIN_S = 20.0
_GAP_S = 0.3


class PickParams(JobParams):
    """Takes the first N running allocations, by name."""

    count: int | None = Field(default=None, ge=1, description="How many allocations")
    share: Percent | None = Field(default=None, gt=0, le=1, description="The share of the allocations, rounded up")

    @model_validator(mode="after")
    def _one_of_them(self) -> PickParams:
        if (self.count is None) == (self.share is None):
            raise ValueError("write either count or share")
        return self


class _OfAllocations(OfWork[P]):
    elsewhere: ClassVar[frozenset[type[Any]]] = frozenset({tasks.TaskProcesses})
    params: Any

    def uses(self, place: Place) -> Sequence[Claim]:
        return (*super().uses(place), work_of(self.params.job))

    def troubles(self, place: Place) -> Iterable[Trouble]:
        if place.many:
            yield ("on",), f"{self.kind} picks from all allocations of a job, or of one node; write on: nomad:leader"

    def rights(self) -> Sequence[Right]:
        return (*rights.READS, *rights.JOBS)

    async def prior(self, target: Target) -> Mapping[str, Any]:
        """The picked allocations, and the processes of their tasks. Raises FaultError if too few allocations run, or if
        the processes of one cannot be seen.
        """
        await registered(self.hosts, self.params.job)
        live = [one for one in await allocations(self.hosts, self.params.job) if runs(one)]
        where = ""
        if self.hosts.host(target.host).roles.get(api.AGENT) == "client":
            live, where = [one for one in live if one["NodeName"] == target.host], f" on {target.host}"
        wanted = self.params.count or math.ceil(float(self.params.share) * len(live))
        if not live or len(live) < wanted:
            raise FaultError(
                f"{self.params.job} runs {len(live)} allocations{where}, but the fault needs {wanted or 'some'}"
            )
        picked = [one["ID"] for one in live[:wanted]]
        processes = await self._processes(picked)
        unseen = set(picked) - {one.alloc for one in processes}
        if unseen:
            raise FaultError(
                f"{len(unseen)} of the {len(picked)} allocations have no visible process, so no effect could be seen"
            )
        return {
            "allocs": picked,
            "names": {one["ID"]: one["Name"] for one in live[:wanted]},
            "processes": [one.reference for one in processes],
        }

    async def _processes(self, allocs: Iterable[str]) -> list[tasks.TaskProcess]:
        picked = set(allocs)
        return [one for one in await tasks.on_all_nodes(self.hosts) if one.alloc in picked]

    async def _signal(self, alloc: str, name: str) -> str:
        """Nomad's reason for not sending the signal to all tasks of the allocation; "" on success."""
        try:
            path = f"/v1/client/allocation/{alloc}/signal"
            await api.when_led(self.hosts, "POST", path, body={"Signal": name, "Task": ""})
        except (FaultError, WaitTimeoutError) as error:
            return str(error)
        return ""


class FailParams(PickParams):
    """The time for which Nomad may keep restarting the tasks."""

    within: Duration = Field(default=Duration("60s"), gt=0, le=600, description="How long Nomad may take to give up")


class AllocFail(_OfAllocations[FailParams]):
    """Kills the tasks of some allocations, again after each restart, until Nomad gives them up as failed.

    Limits: an error after `within` if the job's `restart` block never gives up (`mode = "delay"`). With Nomad's own
    settings, a service is restarted twice, each time after 15 s.
    """

    kind: ClassVar[str] = "nomad.alloc.fail"
    cases: ClassVar[Cases] = Cases(on=(("nomad:leader", {"job": "sleepers", "count": 1}),), momentary=True)
    Params: ClassVar[type[FailParams]] = FailParams
    once: ClassVar[bool] = True
    observer: ClassVar[Observer] = Observer(
        "the processes of these allocations on all nodes (/proc), and the allocations in a follower's state",
        "the state of the allocations is read through Nomad's HTTP API",
    )

    async def apply(self, undo: Undo) -> None:
        """Raises WaitTimeoutError if Nomad restarts the tasks for longer than `within`."""
        left = set(undo["prior"]["allocs"])
        said = ""

        async def killed() -> tuple[bool | None, str]:
            nonlocal said
            known = {one["ID"]: one for one in await allocations(self.hosts, self.params.job)}
            for alloc in sorted(left):
                if alloc not in known or known[alloc]["ClientStatus"] in _ENDED:
                    left.discard(alloc)
                elif any(one.state != "Z" for one in await self._processes([alloc])):
                    said = await self._signal(alloc, "SIGKILL") or said
            words = f"{len(left)} still run or are restarted" + (f"; {said}" if said else "")
            return (None if left else True), words

        what = f"Nomad to give up {len(left)} allocations of {self.params.job}"
        await wait_until(what, killed, within_s=float(self.params.within), gap_s=_GAP_S)

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        picked = undo["prior"]["allocs"]
        known = {one["ID"]: one for one in await allocations(self.hosts, self.params.job, copy=True)}
        states = Counter(str(known[one]["ClientStatus"]) if one in known else "forgotten" for one in picked)
        left = len(await self._processes(picked))
        shown = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
        measured = f"of {len(picked)} allocations: {shown}; {left} of their processes run"
        figures: dict[str, float | str] = {"allocations": len(picked), "failed": states["failed"], "processes": left}
        if present:
            asked = "all of them have failed, and none of their processes runs"
            return Evidence(states["failed"] == len(picked) and not left, asked, measured, figures)
        return Evidence(True, "Nomad answers; failed allocations stay failed, and Nomad replaces them", measured)

    async def revert(self, undo: Undo) -> None:
        return


class SignalParams(PickParams):
    """The signal. STOP freezes tasks until the fault is reverted; the effect of other signals depends on the tasks."""

    signal: Literal["STOP", "KILL", "TERM", "INT", "HUP", "QUIT", "USR1", "USR2"] = "STOP"
    """STOP, KILL, TERM, INT, HUP, QUIT, USR1 or USR2."""


class AllocSignal(_OfAllocations[SignalParams]):
    """Sends a signal to the tasks of some allocations. STOP freezes them: Nomad still reports them as running.

    Limits: refused if fewer allocations run than `count`, or if their processes cannot be seen, because their task
    driver hides them.
    """

    kind: ClassVar[str] = "nomad.alloc.signal"
    cases: ClassVar[Cases] = Cases(on=(("nomad:leader", {"job": "sleepers", "share": "100%"}),))
    Params: ClassVar[type[SignalParams]] = SignalParams
    observer: ClassVar[Observer] = Observer(
        "the processes of these allocations on all nodes (/proc)",
        "nothing; but whether a task got a signal that it handles is read from the task's events, which Nomad writes",
    )

    @property
    def observed_within_s(self) -> float:
        return _STILL_WITHIN_S

    async def prior(self, target: Target) -> Mapping[str, Any]:
        prior = await super().prior(target)
        if self.params.signal == "STOP":
            frozen = sum(one.state == _STOPPED for one in await self._processes(prior["allocs"]))
            if frozen:
                raise FaultError(
                    f"{frozen} processes of these allocations are stopped already; find out who stopped them"
                )
        return {**prior, "signalled": await self._signalled(prior["allocs"])}

    async def _signalled(self, allocs: Sequence[str]) -> int:
        found = await allocations(self.hosts, self.params.job, copy=True)
        return sum(
            event["Type"] == "Signaling"
            for one in found
            if one["ID"] in allocs
            for task in (one.get("TaskStates") or {}).values()
            for event in task.get("Events") or ()
        )

    async def apply(self, undo: Undo) -> None:
        for alloc in undo["prior"]["allocs"]:
            if said := await self._signal(alloc, f"SIG{self.params.signal}"):
                raise FaultError(f"SIG{self.params.signal} was not sent to {undo['prior']['names'][alloc]}: {said}")

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        prior = undo["prior"]
        now = {one.reference: one for one in await self._processes(prior["allocs"])}
        before = [now.get(reference) for reference in prior["processes"]]
        frozen = sum(one.state == _STOPPED for one in now.values())
        if not present:
            return Evidence(not frozen, "none of their processes is stopped", f"{frozen} are stopped")
        if self.params.signal == "STOP":
            hit = sum(one is not None and one.state == _STOPPED for one in before)
            return Evidence(
                hit == len(before),
                "all of their processes are stopped",
                f"{hit} of {len(before)} are stopped",
                {"processes": len(before), "hit": hit},
            )
        number = signal.Signals[f"SIG{self.params.signal}"]
        ended = sum(one is None for one in before)
        handled = sum(one is not None and number in one.catches for one in before)
        told = await self._signalled(prior["allocs"]) - prior["signalled"]
        measured = f"of {len(before)} processes {ended} ended, {handled} handle it and run; Nomad notes {told} signals"
        fine = ended + handled == len(before) and (not handled or told >= len(prior["allocs"]))
        return Evidence(fine, "each process ended, or handles the signal and received it", measured, {"ended": ended})

    async def revert(self, undo: Undo) -> None:
        """Continues frozen tasks and ignores ended tasks. Raises FaultError for a task that cannot be reached."""
        if self.params.signal != "STOP":
            return
        for one in await self._processes(undo.get("prior", {}).get("allocs", ())):
            if one.state == _STOPPED and (said := await self._signal(one.alloc, "SIGCONT")):
                raise FaultError(f"SIGCONT was not sent to the allocation {one.alloc}: {said}")
