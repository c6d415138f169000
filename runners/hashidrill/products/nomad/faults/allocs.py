"""Allocations of a job that fail, and tasks that get a signal: of the whole job, or of those on one node."""

from __future__ import annotations

import math
import signal
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from hashidrill.core.errors import FaultError, WaitTimeoutError
from hashidrill.core.faults.base import Cases, P
from hashidrill.core.protocols.abc import Claim, Evidence, Observer, Place, Target, Trouble, Undo
from hashidrill.core.protocols.rights import Right
from hashidrill.core.units import Duration, Percent
from hashidrill.core.util.wait import wait_until
from hashidrill.products.nomad import api, jobs, rights, tasks
from hashidrill.products.nomad.faults.declared import OfWork, work_of

_ENDED = ("failed", "lost", "complete")
_STOPPED = "T"
_STILL_WITHIN_S = 20.0
_GAP_S = 0.3


class PickParams(jobs.JobParams):
    """How many of the allocations that run: by their names, the first ones."""

    count: int | None = Field(default=None, ge=1, description="How many allocations")
    share: Percent | None = Field(default=None, gt=0, le=1, description="How many of them, as a share, rounded up")

    @model_validator(mode="after")
    def _one_of_them(self) -> PickParams:
        if (self.count is None) == (self.share is None):
            raise ValueError("write either count or share")
        return self


class _OfAllocations(OfWork[P]):
    """`undo["prior"]["allocs"]` are the ids of those that were picked."""

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
        """What is picked, and the processes of its tasks. Raises FaultError where too few run, or none can be seen."""
        await jobs.registered(self.hosts, self.params.job)
        live = [one for one in await jobs.allocations(self.hosts, self.params.job) if jobs.runs(one)]
        where = ""
        if self.hosts.host(target.host).roles.get(api.AGENT) == "client":
            live, where = [one for one in live if one["NodeName"] == target.host], f" on {target.host}"
        wanted = self.params.count or math.ceil(float(self.params.share) * len(live))
        if not live or len(live) < wanted:
            raise FaultError(
                f"{self.params.job} runs {len(live)} allocations{where}, and {wanted or 'some'} were to be"
            )
        picked = [one["ID"] for one in live[:wanted]]
        processes = await self._processes(picked)
        unseen = set(picked) - {one.alloc for one in processes}
        if unseen:
            raise FaultError(
                f"{len(unseen)} of the {len(picked)} allocations have no process that can be seen: nothing would show"
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
        """What Nomad said instead of sending it to all tasks of the allocation; empty once it did."""
        try:
            path = f"/v1/client/allocation/{alloc}/signal"
            await api.when_led(self.hosts, "POST", path, body={"Signal": name, "Task": ""})
        except (FaultError, WaitTimeoutError) as error:
            return str(error)
        return ""


class FailParams(PickParams):
    """How long Nomad may go on restarting the tasks."""

    within: Duration = Field(default=Duration("60s"), gt=0, le=600, description="Until Nomad gives the allocations up")


class AllocFail(_OfAllocations[FailParams]):
    """Kills the tasks of some allocations, again after each restart, until Nomad gives them up as failed.

    Limits: a job whose `restart` block never gives up (`mode = "delay"`) does not fail: an error after `within`. With
    Nomad's own settings a service is restarted twice, 15 s later each time.
    """

    kind: ClassVar[str] = "nomad.alloc.fail"
    Params: ClassVar[type[FailParams]] = FailParams
    once: ClassVar[bool] = True
    observer: ClassVar[Observer] = Observer(
        "the processes of these allocations on all nodes (/proc), and the allocations in a follower's state",
        "the state of the allocations is read through Nomad's HTTP API, which also takes the signals; /proc is not",
    )
    cases: ClassVar[Cases] = Cases(on=(("nomad:leader", {"job": "sleepers", "count": 1}),), momentary=True)

    async def apply(self, undo: Undo) -> None:
        """Raises WaitTimeoutError where the job's `restart` goes on for longer than `within`."""
        left = set(undo["prior"]["allocs"])
        said = ""

        async def killed() -> tuple[bool | None, str]:
            nonlocal said
            known = {one["ID"]: one for one in await jobs.allocations(self.hosts, self.params.job)}
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
        known = {one["ID"]: one for one in await jobs.allocations(self.hosts, self.params.job, copy=True)}
        states = Counter(str(known[one]["ClientStatus"]) if one in known else "forgotten" for one in picked)
        left = len(await self._processes(picked))
        shown = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
        measured = f"of {len(picked)} allocations: {shown}; {left} of their processes run"
        figures: dict[str, float | str] = {"allocations": len(picked), "failed": states["failed"], "processes": left}
        if present:
            asked = "all of them are failed, and none of their processes runs"
            return Evidence(states["failed"] == len(picked) and not left, asked, measured, figures)
        return Evidence(True, "Nomad answers; what failed stays failed, and Nomad replaces it by itself", measured)

    async def revert(self, undo: Undo) -> None:
        return


class SignalParams(PickParams):
    """Which signal. STOP freezes tasks until the fault is reverted; what the others do is up to the tasks."""

    signal: Literal["STOP", "KILL", "TERM", "INT", "HUP", "QUIT", "USR1", "USR2"] = "STOP"
    """STOP, KILL, TERM, INT, HUP, QUIT, USR1 or USR2."""


class AllocSignal(_OfAllocations[SignalParams]):
    """Sends a signal to the tasks of some allocations. STOP freezes them: Nomad goes on taking them for running.

    Limits: refused where fewer allocations run than `count`, and where their processes cannot be seen, as in a task
    driver that hides them.
    """

    kind: ClassVar[str] = "nomad.alloc.signal"
    Params: ClassVar[type[SignalParams]] = SignalParams
    observer: ClassVar[Observer] = Observer(
        "the processes of these allocations on all nodes (/proc)",
        "nothing; whether a task got a signal for which it has a handler is what Nomad wrote in the task's events",
    )
    cases: ClassVar[Cases] = Cases(on=(("nomad:leader", {"job": "sleepers", "share": "100%"}),))

    @property
    def observed_within_s(self) -> float:
        return _STILL_WITHIN_S

    async def prior(self, target: Target) -> Mapping[str, Any]:
        """Raises FaultError for tasks that are frozen already."""
        prior = await super().prior(target)
        if self.params.signal == "STOP":
            frozen = sum(one.state == _STOPPED for one in await self._processes(prior["allocs"]))
            if frozen:
                raise FaultError(f"{frozen} processes of these allocations are stopped already; find out by whom")
        return {**prior, "signalled": await self._signalled(prior["allocs"])}

    async def _signalled(self, allocs: Sequence[str]) -> int:
        """How often Nomad's clients wrote down that they sent a signal to tasks of these allocations."""
        found = await jobs.allocations(self.hosts, self.params.job, copy=True)
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
        measured = f"of {len(before)} processes {ended} ended, {handled} handle it and run; Nomad wrote {told} signals"
        fine = ended + handled == len(before) and (not handled or told >= len(prior["allocs"]))
        return Evidence(fine, "each process ended, or handles the signal and got it", measured, {"ended": ended})

    async def revert(self, undo: Undo) -> None:
        """Frozen tasks go on; nothing for those that are gone. Raises FaultError for one that cannot be reached."""
        if self.params.signal != "STOP":
            return
        for one in await self._processes(undo.get("prior", {}).get("allocs", ())):
            if one.state == _STOPPED and (said := await self._signal(one.alloc, "SIGCONT")):
                raise FaultError(f"SIGCONT was not sent to the allocation {one.alloc}: {said}")
