"""Probes of Nomad: the leader, times of Raft and the scheduler, nodes and allocations.

Paths, names and units are those of Nomad 1.10.5.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar

import httpx2
from pydantic import BaseModel, Field, TypeAdapter

from hashidrill.core.probes import agents
from hashidrill.core.probes.agents import AgentsApi, Metrics
from hashidrill.core.probes.base import SickError
from hashidrill.core.protocols.abc import Probe, Sample
from hashidrill.core.units import seconds
from hashidrill.products.nomad import trial_jobs
from hashidrill.products.nomad.settings import HTTP_PORT

TIMES = {
    "nomad.raft.commitTime": "nomad.commit_time",
    "nomad.raft.leader.lastContact": "nomad.last_contact",
    "nomad.nomad.plan.submit": "nomad.plan_submit",
}
"""Nomad's timers (milliseconds) and hashidrill's signals (seconds)."""
_REJECTED = "nomad.nomad.plan.node_rejected"
_STALE = "?stale"
"""Makes any server answer by itself, because probes must not wait for a leader."""


class _Stats(BaseModel):
    raft: agents.RaftStats


class _Self(BaseModel):
    stats: _Stats


class _Node(BaseModel):
    name: str = Field(alias="Name")
    status: str = Field(alias="Status")
    eligibility: str = Field(alias="SchedulingEligibility")


class _Client(BaseModel):
    last_heartbeat: str


class _ClientStats(BaseModel):
    client: _Client


class _ClientSelf(BaseModel):
    stats: _ClientStats


class _OfJob(BaseModel):
    job: str = Field(alias="JobID")

    @property
    def ours(self) -> bool:
        """Whether the allocation belongs to an observer's job, which starts and ends with each look."""
        return self.job.startswith(trial_jobs.PREFIX)


class _Alloc(_OfJob):
    node: str = Field(alias="NodeName")
    client_status: str = Field(alias="ClientStatus")
    desired_status: str = Field(alias="DesiredStatus")


_SELF = TypeAdapter(_Self)
_CLIENT_SELF = TypeAdapter(_ClientSelf)
_NODES = TypeAdapter(list[_Node])
_ALLOCS = TypeAdapter(list[_Alloc])
_EVALS = TypeAdapter(list[_OfJob])


class LeaderProbe(agents.LeaderProbe):
    """`nomad.leader` (host empty) as a majority of all servers sees it."""

    signals: ClassVar = ("nomad.leader",)
    leader_path = f"/v1/status/leader{_STALE}"


class RaftProbe(agents.RaftProbe):
    """`nomad.raft_state`, `nomad.raft_term` and `nomad.commit_index` of one server."""

    signals: ClassVar = ("nomad.raft_state", "nomad.raft_term", "nomad.commit_index")

    async def _stats(self) -> agents.RaftStats:
        return (await self._api.get(self._address, "/v1/agent/self", _SELF)).stats.raft


class SnapshotLogProbe(agents.SnapshotLogProbe):
    """`nomad.snapshots` and `nomad.installs` of one server."""

    signals: ClassVar = ("nomad.snapshots", "nomad.installs")
    log_path = "/v1/agent/monitor?log_level=info&plain=true"


class TimesProbe(agents.TimesProbe):
    """Nomad's own timers of one server. `nomad.plan_rejections`: how often in that interval this server, as the leader,
    refused to place on a node what a scheduler had planned for it.
    """

    signals: ClassVar = (*TIMES.values(), "nomad.plan_rejections")
    path = "/v1/metrics"

    def _signal_of(self, timer: str) -> str | None:
        return TIMES.get(timer)

    def _counted(self, metrics: Metrics) -> Sequence[Sample]:
        rejected = sum(counter.count for counter in metrics.counters if counter.name == _REJECTED)
        return [Sample("nomad.plan_rejections", float(rejected), f"since {metrics.timestamp}", self.host)]


class HeartbeatProbe(agents.HostProbe):
    """`nomad.heartbeat_age` of one client, in seconds: how long ago a server accepted its last heartbeat, as the client
    reports.

    The value grows on a node that is cut off, before the servers mark the node down, and on all nodes while there is no
    leader.
    """

    signals: ClassVar = ("nomad.heartbeat_age",)

    async def measure(self) -> Sequence[Sample]:
        said = (await self._api.get(self._address, "/v1/agent/self", _CLIENT_SELF)).stats.client.last_heartbeat
        age_s = seconds(said)
        if age_s is None:
            raise SickError(f"its last heartbeat has no valid age: {said!r}")
        return [Sample("nomad.heartbeat_age", age_s, "", self.host)]


class NodesProbe(agents.AgentsProbe):
    """`nomad.nodes_ready`, `nomad.nodes_down` (or disconnected), `nomad.nodes_ineligible`; text: the nodes' names."""

    signals: ClassVar = ("nomad.nodes_ready", "nomad.nodes_down", "nomad.nodes_ineligible")

    async def measure(self) -> Sequence[Sample]:
        nodes = await self._api.get_from_any(self.hosts, f"/v1/nodes{_STALE}", _NODES)
        ready = [node.name for node in nodes if node.status == "ready"]
        down = [node.name for node in nodes if node.status in ("down", "disconnected")]
        ineligible = [node.name for node in nodes if node.eligibility != "eligible"]
        named = zip(self.signals, (ready, down, ineligible), strict=True)
        return [Sample(signal, float(len(names)), ", ".join(sorted(names))) for signal, names in named]


class AllocationsProbe(agents.AgentsProbe):
    """`nomad.allocs_running` and so on: allocations by the last report of their clients.

    Running and pending allocations count only if they should run; `failed`, `lost` and `complete` count all that Nomad
    remembers. `nomad.allocs_placed` of each node: all remembered allocations that were ever placed there.
    """

    signals: ClassVar = (
        "nomad.allocs_running",
        "nomad.allocs_pending",
        "nomad.allocs_failed",
        "nomad.allocs_lost",
        "nomad.allocs_unknown",
        "nomad.allocs_complete",
    )

    async def measure(self) -> Sequence[Sample]:
        allocs = await self._api.get_from_any(self.hosts, f"/v1/allocations{_STALE}&task_states=false", _ALLOCS)
        placed = [alloc for alloc in allocs if not alloc.ours]
        counted = Counter(
            alloc.client_status
            for alloc in placed
            if alloc.desired_status == "run" or alloc.client_status not in ("running", "pending")
        )
        on = Counter(alloc.node for alloc in placed)
        return [
            *(Sample(signal, float(counted[signal.removeprefix("nomad.allocs_")])) for signal in self.signals),
            *(Sample("nomad.allocs_placed", float(number), "", node) for node, number in on.items()),
        ]


class EvaluationsProbe(agents.AgentsProbe):
    """`nomad.evals_blocked`, `nomad.evals_pending`, `nomad.evals_failed`: evaluations that Nomad keeps, by status."""

    signals: ClassVar = ("nomad.evals_blocked", "nomad.evals_pending", "nomad.evals_failed")

    async def measure(self) -> Sequence[Sample]:
        samples = []
        for signal in self.signals:
            path = f"/v1/evaluations{_STALE}&status={signal.removeprefix('nomad.evals_')}"
            evals = await self._api.get_from_any(self.hosts, path, _EVALS)
            samples.append(Sample(signal, float(sum(not one.ours for one in evals))))
        return samples


def nomad_probes(
    servers: Mapping[str, str], clients: Mapping[str, str], transport: httpx2.AsyncBaseTransport | None = None
) -> list[Probe]:
    """All probes of Nomad for its agents by host name and address. `run_probes` closes them."""
    api = AgentsApi(port=HTTP_PORT, transport=transport)
    whole = (LeaderProbe, NodesProbe, AllocationsProbe, EvaluationsProbe)
    probes: list[Probe] = [kind(servers, api=api) for kind in whole]
    probes += [HeartbeatProbe(host, clients, api=api) for host in clients]
    return [*probes, *(kind(host, servers, api=api) for host in servers for kind in (RaftProbe, TimesProbe))]
