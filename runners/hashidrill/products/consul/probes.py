"""Probes of Consul: the leader, Raft's state and times, members, autopilot's health.

Paths, names and units as Consul 1.10.3 and 1.22.2 answer them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import BaseModel, Field, TypeAdapter

from hashidrill.core.probes import agents
from hashidrill.core.probes.agents import AgentsApi
from hashidrill.core.protocols.abc import Sample

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import httpx2

    from hashidrill.core.protocols.abc import Probe

SERF_ALIVE = 1
SERF_FAILED = 4

RAFT_TIMES = {
    "raft.commitTime": "raft.commit_time",
    "raft.leader.dispatchLog": "raft.dispatch_log",
    "raft.leader.lastContact": "raft.last_contact",
    "raft.replication.appendEntries.rpc": "raft.append_entries",
}
"""Consul's timers (milliseconds, after the prefix `consul.`) and hashidrill's signals (seconds)."""


class _Stats(BaseModel):
    raft: agents.RaftStats


class _Self(BaseModel):
    stats: _Stats = Field(alias="Stats")


class _Member(BaseModel):
    name: str = Field(alias="Name")
    status: int = Field(alias="Status")


class _Health(BaseModel):
    healthy: bool = Field(alias="Healthy")


_SELF = TypeAdapter(_Self)
_MEMBERS = TypeAdapter(list[_Member])
_HEALTH = TypeAdapter(_Health)


class LeaderViewProbe(agents.HostProbe):
    """`raft.leader` as one server sees it: text is the leader's host name, value 1; failed with value 0 for none."""

    signals: ClassVar = ("raft.leader",)
    interval_s = 0.5

    async def measure(self) -> Sequence[Sample]:
        names = {address: name for name, address in self.hosts.items()}
        return [Sample("raft.leader", 1.0, await self._leader_of(self._address, names), self.host)]

    def failed(self, reason: str) -> Sequence[Sample]:
        return [Sample("raft.leader", 0.0, reason, self.host, ok=False)]


class LeaderProbe(agents.LeaderProbe):
    """`raft.leader` (host empty) as a majority of all servers sees it."""

    signals: ClassVar = ("raft.leader",)


class RaftProbe(agents.RaftProbe):
    """`raft.state`, `raft.term` and `raft.commit_index` of a server."""

    signals: ClassVar = ("raft.state", "raft.term", "raft.commit_index")

    async def _stats(self) -> agents.RaftStats:
        return (await self._api.get(self._address, "/v1/agent/self", _SELF)).stats.raft


class MembersProbe(agents.AgentsProbe):
    """`consul.members_alive` and `consul.members_failed` (text: their names), from any server that answers."""

    signals: ClassVar = ("consul.members_alive", "consul.members_failed")

    async def measure(self) -> Sequence[Sample]:
        members = await self._api.get_from_any(self.hosts, "/v1/agent/members", _MEMBERS)
        failed = sorted(member.name for member in members if member.status == SERF_FAILED)
        alive = sum(member.status == SERF_ALIVE for member in members)
        return [
            Sample("consul.members_alive", float(alive)),
            Sample("consul.members_failed", float(len(failed)), ", ".join(failed)),
        ]


class AutopilotProbe(agents.AgentsProbe):
    """`consul.autopilot_healthy`: 1 or 0, as autopilot on any server that answers sees the datacenter."""

    signals: ClassVar = ("consul.autopilot_healthy",)
    # without a leader the servers hold the request back for some seconds: that is a failed sample
    timeout_s = 2.0

    async def measure(self) -> Sequence[Sample]:
        path = "/v1/operator/autopilot/health"
        # 429 is how Consul says "unhealthy", with the usual body; a rate limit's 429 has another body and is a failure
        health = await self._api.get_from_any(self.hosts, path, _HEALTH, accept={200, 429})
        return [Sample("consul.autopilot_healthy", float(health.healthy))]


class RaftTimesProbe(agents.TimesProbe):
    """Consul's own Raft timers of one server: only a leader commits, dispatches and appends."""

    signals: ClassVar = tuple(RAFT_TIMES.values())
    path = "/v1/agent/metrics"

    def _signal_of(self, timer: str) -> str | None:
        """Older versions append the peer's id to the name, newer ones use a label: one timer for each peer."""
        name = timer.partition(".")[2]
        appending = "raft.replication.appendEntries.rpc"
        return RAFT_TIMES.get(appending if name.startswith(appending + ".") else name)


def consul_probes(
    servers: Mapping[str, str],
    *,
    port: int = 8500,
    known: Mapping[str, str] | None = None,
    transport: httpx2.AsyncBaseTransport | None = None,
) -> list[Probe]:
    """All probes of Consul for servers by host name and address. `run_probes` closes them.

    `servers` are read again for each sample; `known` are all that may ever be servers, if that is more.
    """
    known = servers if known is None else known
    api = AgentsApi(port=port, transport=transport)
    probes: list[Probe] = [
        LeaderProbe(servers, api=api),
        MembersProbe(servers, api=api),
        AutopilotProbe(servers, api=api),
    ]
    for host in known:
        probes += [kind(host, known, api=api) for kind in (LeaderViewProbe, RaftProbe, RaftTimesProbe)]
    return probes
