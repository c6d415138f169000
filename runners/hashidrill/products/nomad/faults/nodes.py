"""Faults of one Nomad client: drains it, makes it ineligible or a black hole, or cuts it off from the servers."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from hashidrill.core.errors import FaultError
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.faults.base import Cases, NoParams, P, table_of
from hashidrill.core.protocols.abc import Claim, Evidence, Observer, Place, Target, Undo
from hashidrill.core.protocols.capabilities import AgentApi, AgentFiles, PacketFilter
from hashidrill.core.protocols.claims import ANSWERS, HOST, ON_CONNECTIONS, connections, needs, takes
from hashidrill.core.protocols.packets import Block
from hashidrill.core.protocols.rights import Right
from hashidrill.core.units import Duration, seconds
from hashidrill.products.nomad import api, rights, trial_jobs
from hashidrill.products.nomad.faults.declared import OfNodes
from hashidrill.products.nomad.settings import RPC_PORT, data_dir
from hashidrill.products.nomad.tasks import TaskProcesses

_OBSERVER = Observer(
    "the scheduler's plan for a job that only this node can run; the node and its allocations in a follower's state",
    "Nomad's HTTP API",
)
_NS = 1_000_000_000
_OBSERVED_WITHIN_S = 15.0


class _Ineligible(OfNodes[P]):
    def rights(self) -> Sequence[Right]:
        """The observer plans a job, which needs the right to submit jobs."""
        return (*rights.READS, rights.right("node", "", "write"), rights.work("submit-job"))

    @property
    def observed_within_s(self) -> float:
        """The observer asks servers three times, and each server may be busy because of the experiment."""
        return _OBSERVED_WITHIN_S

    async def prior(self, target: Target) -> Mapping[str, Any]:
        node = await api.node_named(self.hosts, target.host)
        if node["SchedulingEligibility"] != "eligible" or node["Status"] != "ready":
            state = f"{node['Status']} and {node['SchedulingEligibility']}"
            raise FaultError(f"{target.host} is {state}: it gets no work, with or without this fault")
        return {"node": node["ID"]}

    async def _seen(self, undo: Undo) -> tuple[bool, str, int]:
        node_id = self._node(undo)
        node = await api.from_copy(self.hosts, f"/v1/node/{node_id}")
        allocs = await api.from_copy(self.hosts, f"/v1/node/{node_id}/allocations")
        there = [one for one in allocs or () if one["ClientStatus"] in ("running", "pending")]
        return await trial_jobs.would_place(self.hosts, node_id), str(node["SchedulingEligibility"]), len(there)


class NodeEligibility(_Ineligible[NoParams]):
    """Keeps the scheduler from placing more work on the node; its tasks go on.

    Limits: refused on a host without a Nomad client, and on a node that is already ineligible.
    """

    kind: ClassVar[str] = "nomad.node.eligibility"
    cases: ClassVar[Cases] = Cases(on=(("nomad:one-client", {}),))
    observer: ClassVar[Observer] = _OBSERVER

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
    """The time that tasks have before they are stopped anyway."""

    deadline: Duration = Field(default=Duration("30s"), gt=0)
    """How long tasks have before they are stopped anyway."""


class NodeDrain(_Ineligible[DrainParams]):
    """Moves all work away from the node, as before maintenance; remaining work is stopped at the deadline.

    Limits: the fault is in force once the node is empty, so its proof may take as long as `deadline`. Work that fits on
    no other node is stopped and waits (`nomad.evals_blocked`).
    """

    kind: ClassVar[str] = "nomad.node.drain"
    cases: ClassVar[Cases] = Cases(on=(("nomad:one-client", {"deadline": "10s"}),))
    observer: ClassVar[Observer] = _OBSERVER
    Params: ClassVar[type[Strict]] = DrainParams

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


_READ_ONLY, _WRITABLE = 0o555, 0o200
_TRIED_WITHIN_S = 45.0


class NodeBlackHole(OfNodes[NoParams]):
    """Breaks the node's folder of allocations: each new allocation fails at once; the node stays ready and empty.

    Running tasks go on. The agent heartbeats, answers, and reports its driver as healthy.

    Limits: each observation takes a second or two, because it starts a task. The fault is refused if tasks already fail
    on the node. It may be in force together with `nomad.node.eligibility`, which is the mitigation: start the
    mitigation later, and end it earlier.
    """

    kind: ClassVar[str] = "nomad.node.black_hole"
    cases: ClassVar[Cases] = Cases(on=(("nomad:one-client", {}),))
    observer: ClassVar[Observer] = Observer(
        "the result of a batch job that only this node can run; while the node is ineligible, its folder's mode",
        "the folder that the injector changes, while the node is ineligible",
    )
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({AgentFiles})

    def rights(self) -> Sequence[Right]:
        return (*rights.READS, *rights.JOBS)

    @property
    def observed_within_s(self) -> float:
        return _TRIED_WITHIN_S

    def uses(self, place: Place) -> Sequence[Claim]:
        """Does not claim the placement of work, because an operator would make the node ineligible meanwhile."""
        return (needs(HOST), takes("the node's folder of allocations", "both decide whether it accepts new ones"))

    def _folder(self, host: str) -> Path:
        return data_dir(self.hosts.host(host).use(AgentFiles).data) / "alloc"

    async def prior(self, target: Target) -> Mapping[str, Any]:
        prior = await super().prior(target)
        ended = await trial_jobs.outcome(self.hosts, prior["node"], _trial(f"{target.host}-before"))
        if ended != "complete":
            raise FaultError(f"a task on {target.host} is {ended} already: the node runs no work without this fault")
        folder = self._folder(target.host)
        try:
            mode = folder.stat().st_mode & 0o777
        except OSError as error:
            raise FaultError(f"{target.host}: {folder}: {error.strerror}") from None
        return {**prior, "mode": mode}

    async def apply(self, undo: Undo) -> None:
        self._folder(undo["host"]).chmod(_READ_ONLY)

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        """Uses a trial job or, if the node was made ineligible meanwhile, the mode of the folder."""
        node = self._node(undo)
        looks = await api.from_copy(self.hosts, f"/v1/node/{node}")
        if looks["Status"] == "ready" and looks["SchedulingEligibility"] == "ineligible":
            return self._by_its_folder(undo, present=present)
        ended = await trial_jobs.outcome(self.hosts, node, _trial(undo["fault_id"]))
        measured = f"a task there is {ended}; the node is {looks['Status']} and {looks['SchedulingEligibility']}"
        if present:
            fine = looks["Status"] == "ready" and looks["SchedulingEligibility"] == "eligible"
            return Evidence(
                fine and ended == "failed", "a task on the node fails, and the node is ready and eligible", measured
            )
        return Evidence(ended == "complete", "a task on the node completes", measured)

    def _by_its_folder(self, undo: Undo, *, present: bool) -> Evidence:
        mode = self._folder(undo["host"]).stat().st_mode & 0o777
        takes_none = not mode & _WRITABLE
        said = "read-only" if takes_none else "writable"
        return Evidence(
            takes_none is present,
            f"the node's folder of allocations is {'read-only' if present else 'writable'}",
            f"it is {said} (mode {mode:o}); the node is ready and ineligible, so no task can be tried there",
        )

    async def revert(self, undo: Undo) -> None:
        self._folder(undo["host"]).chmod(int(undo.get("prior", {}).get("mode", 0o711)))


def _trial(of: str) -> str:
    """A name that reveals nothing, because all readers of Nomad's jobs and allocations see it, even trainees."""
    return f"{zlib.crc32(of.encode()):08x}"


_SEEN_WITHIN_S = 60.0
"""With Nomad's own settings, a silent node is down after 20 to 30 s, and a node that was down retries in 1 to 30 s."""
_AWAY = ("down", "disconnected")


@dataclass(frozen=True)
class _Heartbeat:
    last_s: float
    ttl_s: float

    @property
    def late(self) -> bool:
        return self.last_s > self.ttl_s

    def __str__(self) -> str:
        return f"its last heartbeat was accepted {self.last_s:.1f}s ago (due every {self.ttl_s:.1f}s)"


class NodeDisconnect(OfNodes[NoParams]):
    """Drops packets from the node's agent to Nomad's servers, so its heartbeats stop; its tasks, and Consul, go on.

    Limits: the fault is in force after 5 to 7 s with the local datacenter's settings, after 20 to 30 s with Nomad's
    own. A node that comes back stops allocations that were replaced meanwhile.
    """

    kind: ClassVar[str] = "nomad.node.disconnect"
    cases: ClassVar[Cases] = Cases(on=(("nomad:one-client", {}),))
    observer: ClassVar[Observer] = Observer(
        "the node's status in a follower's state, and the node's own report of its last successful heartbeat"
    )
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({AgentApi, PacketFilter, TaskProcesses})

    def rights(self) -> Sequence[Right]:
        return rights.READS

    @property
    def observed_within_s(self) -> float:
        return _SEEN_WITHIN_S

    def uses(self, place: Place) -> Sequence[Claim]:
        servers = place.having("nomad", "server")
        cut = frozenset((host, server) for host in place.hosts for server in servers)
        return (
            *super().uses(place),
            takes(connections(RPC_PORT), where=cut, meets=ON_CONNECTIONS),
            needs(ANSWERS, "the node itself must report that no server accepts its heartbeats"),
        )

    def plan_more(self, target: Target) -> dict[str, Any]:
        return {"addresses": [host.address for host in api.servers_of(self.hosts)]}

    async def prior(self, target: Target) -> Mapping[str, Any]:
        node = await api.node_named(self.hosts, target.host)
        if node["Status"] != "ready":
            raise FaultError(f"{target.host} is {node['Status']} already, without this fault")
        return {"node": node["ID"], "tasks": [one.reference for one in await self._tasks(target.host)]}

    async def _tasks(self, host: str) -> Sequence[Any]:
        return await self.hosts.host(host).use(TaskProcesses).task_processes()

    async def apply(self, undo: Undo) -> None:
        rule = Block("output", tuple(undo["addresses"]), port=RPC_PORT)
        await self._host(undo).use(PacketFilter).set_packet_rules(table_of(undo["fault_id"]), [rule])

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        """Needs the servers' report and the node's report: each report alone could have another cause."""
        status = str((await api.from_copy(self.hosts, f"/v1/node/{self._node(undo)}"))["Status"])
        heartbeat = await self._heartbeat(undo)
        before = set(undo["prior"]["tasks"])
        still = len(before & {one.reference for one in await self._tasks(undo["host"])})
        measured = f"the node is {status}; {heartbeat}; {still} of {len(before)} processes of its tasks still run"
        figures: dict[str, float | str] = {"last_heartbeat_s": heartbeat.last_s, "tasks": len(before), "still": still}
        if present:
            asked = "the servers call the node down, and it reports that no server accepts its heartbeats"
            return Evidence(status in _AWAY and heartbeat.late, asked, measured, figures)
        asked = "the node is ready, and reports that its heartbeats are accepted"
        return Evidence(status == "ready" and not heartbeat.late, asked, measured, figures)

    async def _heartbeat(self, undo: Undo) -> _Heartbeat:
        answer = await api.call(self._host(undo), "GET", "/v1/agent/self")
        try:
            stats = answer.json()["stats"]["client"]
            last_s, ttl_s = seconds(stats["last_heartbeat"]), seconds(stats["heartbeat_ttl"])
        except (ValueError, KeyError, TypeError):
            last_s = ttl_s = None
        if last_s is None or ttl_s is None:
            raise FaultError(f"{undo['host']} does not say when its last heartbeat was accepted: {api.said(answer)}")
        return _Heartbeat(last_s, ttl_s)

    async def revert(self, undo: Undo) -> None:
        await self._host(undo).use(PacketFilter).clear_packet_rules(table_of(undo["fault_id"]))
