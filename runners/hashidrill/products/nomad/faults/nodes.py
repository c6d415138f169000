"""What an operator does to a node: no more work for it, or all of its work moved away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field

from hashidrill.core.errors import FaultError
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.faults.base import Cases, NoParams, P
from hashidrill.core.protocols.abc import Evidence, Observer, Target, Undo
from hashidrill.core.protocols.rights import Right
from hashidrill.core.units import Duration
from hashidrill.products.nomad import api, rights, trial_jobs
from hashidrill.products.nomad.faults.declared import OfNodes

_OBSERVER = Observer(
    "the scheduler's plan for a job that only this node can take; the node and its allocations in a follower's state",
    "Nomad's HTTP API, which also takes the request; not the path that applying waits on",
)
_NS = 1_000_000_000
_OBSERVED_WITHIN_S = 15.0


class _Ineligible(OfNodes[P]):
    """The node is taken out of scheduling, and put back."""

    def rights(self) -> Sequence[Right]:
        """To plan a job, which the observer does, takes what it takes to submit one."""
        return (*rights.READS, rights.right("node", "", "write"), rights.work("submit-job"))

    @property
    def observed_within_s(self) -> float:
        """Three questions to servers, each of which may be busy with what the experiment does to them."""
        return _OBSERVED_WITHIN_S

    async def prior(self, target: Target) -> Mapping[str, Any]:
        """Raises FaultError for a node that takes no work already."""
        node = await api.node_named(self.hosts, target.host)
        if node["SchedulingEligibility"] != "eligible" or node["Status"] != "ready":
            state = f"{node['Status']} and {node['SchedulingEligibility']}"
            raise FaultError(f"{target.host} is {state}: it gets no work, with or without this fault")
        return {"node": node["ID"]}

    async def _seen(self, undo: Undo) -> tuple[bool, str, int]:
        """Whether the scheduler would place work there, the eligibility of the node, and its live allocations."""
        node_id = self._node(undo)
        node = await api.from_copy(self.hosts, f"/v1/node/{node_id}")
        allocs = await api.from_copy(self.hosts, f"/v1/node/{node_id}/allocations")
        there = [one for one in allocs or () if one["ClientStatus"] in ("running", "pending")]
        return await trial_jobs.would_place(self.hosts, node_id), str(node["SchedulingEligibility"]), len(there)


class NodeEligibility(_Ineligible[NoParams]):
    """The scheduler places nothing more on the node; what runs there goes on.

    Limits: an error on a host that is no client of Nomad, and on a node that gets no work already.
    """

    kind: ClassVar[str] = "nomad.node.eligibility"
    observer: ClassVar[Observer] = _OBSERVER
    cases: ClassVar[Cases] = Cases(on=(("nomad:one-client", {}),))

    async def _set(self, undo: Undo, eligibility: str) -> None:
        body = {"NodeID": self._node(undo), "Eligibility": eligibility}
        await api.when_led(self.hosts, "POST", f"/v1/node/{self._node(undo)}/eligibility", body=body)

    async def apply(self, undo: Undo) -> None:
        await self._set(undo, "ineligible")

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        places, eligibility, _ = await self._seen(undo)
        measured = f"the scheduler would {'place work' if places else 'place nothing'} there, the node is {eligibility}"
        asked = "nothing would be placed on the node" if present else "work would be placed on the node"
        wanted = "ineligible" if present else "eligible"
        return Evidence(places is not present and eligibility == wanted, asked, measured)

    async def revert(self, undo: Undo) -> None:
        await self._set(undo, "eligible")


class DrainParams(Strict):
    """How long tasks have before they are ended anyway."""

    deadline: Duration = Field(default=Duration("30s"), gt=0)
    """How long tasks have before they are stopped anyway."""


class NodeDrain(_Ineligible[DrainParams]):
    """Moves all work away from the node, as before maintenance; what has not moved by the deadline is stopped.

    Limits: in force once the node is empty, so it may take as long as `deadline` to be proven. Work that fits on no
    other node is stopped and waits (`nomad.evals_blocked`).
    """

    kind: ClassVar[str] = "nomad.node.drain"
    observer: ClassVar[Observer] = _OBSERVER
    Params: ClassVar[type[Strict]] = DrainParams
    cases: ClassVar[Cases] = Cases(on=(("nomad:one-client", {"deadline": "10s"}),))

    @property
    def observed_within_s(self) -> float:
        return float(self.params.deadline) + _OBSERVED_WITHIN_S

    async def _drain(self, undo: Undo, spec: Mapping[str, Any] | None) -> None:
        body = {"NodeID": self._node(undo), "DrainSpec": spec, "MarkEligible": spec is None}
        await api.when_led(self.hosts, "POST", f"/v1/node/{self._node(undo)}/drain", body=body)

    async def apply(self, undo: Undo) -> None:
        await self._drain(undo, {"Deadline": int(float(self.params.deadline) * _NS), "IgnoreSystemJobs": False})

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        places, eligibility, there = await self._seen(undo)
        takes = f"the scheduler would {'place work' if places else 'place nothing'} there"
        measured = f"{there} allocations run there or are pending, {takes}, the node is {eligibility}"
        if present:
            return Evidence(
                there == 0 and not places,
                "nothing runs on the node, and nothing would be placed there",
                measured,
                {"allocations": there},
            )
        return Evidence(
            places and eligibility == "eligible", "work would be placed on the node", measured, {"allocations": there}
        )

    async def revert(self, undo: Undo) -> None:
        await self._drain(undo, None)
