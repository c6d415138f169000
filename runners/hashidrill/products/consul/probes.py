"""Probes of Consul: who leads, what Raft says and takes, who is a member, what autopilot thinks.

Paths, names and units as Consul 1.10.3 and 1.22.2 answer them.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, ClassVar

import anyio
from pydantic import BaseModel, Field, TypeAdapter

from hashidrill.core.probes.agents import AgentsApi, Interval, MajorityProbe, Metrics, Timer, merged
from hashidrill.core.probes.base import BaseProbe, SickError
from hashidrill.core.protocols.abc import Sample
from hashidrill.core.protocols.service import LEADS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import httpx

    from hashidrill.core.protocols.abc import Probe

SERF_ALIVE = 1
SERF_FAILED = 4

RAFT_TIMES = {
    "raft.commitTime": "raft.commit_time",
    "raft.leader.dispatchLog": "raft.dispatch_log",
    "raft.leader.lastContact": "raft.last_contact",
    "raft.replication.appendEntries.rpc": "raft.append_entries",
}
"""Consul's timers (milliseconds, after the prefix `consul.`) and our signals (seconds)."""


class _Raft(BaseModel):
    state: str
    term: int
    commit_index: int


class _Stats(BaseModel):
    raft: _Raft


class _Self(BaseModel):
    stats: _Stats = Field(alias="Stats")


class _Member(BaseModel):
    name: str = Field(alias="Name")
    status: int = Field(alias="Status")


class _Health(BaseModel):
    healthy: bool = Field(alias="Healthy")


_LEADER = TypeAdapter(str)
_SELF = TypeAdapter(_Self)
_MEMBERS = TypeAdapter(list[_Member])
_HEALTH = TypeAdapter(_Health)
_METRICS = TypeAdapter(Metrics)


class _ConsulProbe(BaseProbe):
    def __init__(self, hosts: Mapping[str, str], *, port: int = 8500, api: AgentsApi | None = None) -> None:
        self.hosts = hosts  # as they are when it samples: servers may be replaced meanwhile
        self._api = api or AgentsApi(port=port)

    async def aclose(self) -> None:
        await self._api.aclose()

    async def _leader_of(self, address: str, names: Mapping[str, str]) -> str:
        """The host name of the leader as the agent at `address` knows it. Raises SickError when it knows none."""
        leader = await self._api.get(address, "/v1/status/leader", _LEADER)
        if not leader:
            raise SickError("knows no leader")
        leader_address = leader.rpartition(":")[0].strip("[]")
        return names.get(leader_address, leader_address)


class _HostProbe(_ConsulProbe):
    """A probe of one of the hosts."""

    def __init__(self, host: str, hosts: Mapping[str, str], *, port: int = 8500, api: AgentsApi | None = None) -> None:
        super().__init__(hosts, port=port, api=api)
        self.host = host
        self._address = self.hosts[host]


class LeaderViewProbe(_HostProbe):
    """`raft.leader` as one server sees it: text is the leader's host name, value 1; failed with value 0 for none."""

    signals: ClassVar = ("raft.leader",)
    interval_s = 0.5

    async def measure(self) -> Sequence[Sample]:
        names = {address: name for name, address in self.hosts.items()}
        return [Sample("raft.leader", 1.0, await self._leader_of(self._address, names), self.host)]

    def failed(self, reason: str) -> Sequence[Sample]:
        return [Sample("raft.leader", 0.0, reason, self.host, ok=False)]


class LeaderProbe(_ConsulProbe, MajorityProbe):
    """`raft.leader` (host empty) as a majority of all servers sees it."""

    signals: ClassVar = ("raft.leader",)
    interval_s = 0.5


class RaftProbe(_HostProbe):
    """`raft.state` (text; value 1 for a leader), `raft.term` (text: `leads` if it does), `raft.commit_index` of a
    server.
    """

    signals: ClassVar = ("raft.state", "raft.term", "raft.commit_index")

    async def measure(self) -> Sequence[Sample]:
        raft = (await self._api.get(self._address, "/v1/agent/self", _SELF)).stats.raft
        return [
            Sample("raft.state", float(raft.state == "Leader"), raft.state, self.host),
            Sample("raft.term", float(raft.term), LEADS if raft.state == "Leader" else "", self.host),
            Sample("raft.commit_index", float(raft.commit_index), "", self.host),
        ]


class MembersProbe(_ConsulProbe):
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


class AutopilotProbe(_ConsulProbe):
    """`consul.autopilot_healthy`: 1 or 0, as autopilot on any server that answers sees the datacenter."""

    signals: ClassVar = ("consul.autopilot_healthy",)
    # without a leader the servers hold the request back for some seconds: that is a failed sample
    timeout_s = 2.0

    async def measure(self) -> Sequence[Sample]:
        path = "/v1/operator/autopilot/health"
        # 429 is how Consul says "unhealthy", with the usual body; a rate limit's 429 has another body and is a failure
        health = await self._api.get_from_any(self.hosts, path, _HEALTH, accept={200, 429})
        return [Sample("consul.autopilot_healthy", float(health.healthy))]


class RaftTimesProbe(_HostProbe):
    """Consul's own Raft timers of one server, in seconds: the mean of its last 10 s interval (text: max and count).

    A timer that did not run in that interval has no sample: only a leader commits, dispatches and appends.
    """

    signals: ClassVar = tuple(RAFT_TIMES.values())
    interval_s = 2.0
    timeout_s = 2.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._interval = Interval()

    async def measure(self) -> Sequence[Sample]:
        metrics = await self._api.get(self._address, "/v1/agent/metrics", _METRICS)
        self._interval.goes_on(metrics, anyio.current_time())
        timers: dict[str, list[Timer]] = defaultdict(list)
        for timer in metrics.samples:
            if timer.count and (signal := _signal(timer.name)):
                timers[signal].append(timer)
        return [merged(signal, same, metrics.timestamp, self.host) for signal, same in timers.items()]


def _signal(name: str) -> str | None:
    """Older versions put the peer's id behind the name, newer ones into a label: one timer for each peer."""
    name = name.partition(".")[2]
    appending = "raft.replication.appendEntries.rpc"
    return RAFT_TIMES.get(appending if name.startswith(appending + ".") else name)


def consul_probes(
    servers: Mapping[str, str],
    *,
    port: int = 8500,
    known: Mapping[str, str] | None = None,
    transport: httpx.AsyncBaseTransport | None = None,
) -> list[Probe]:
    """All probes of Consul for servers by host name and address. `run_probes` closes what they hold open.

    `servers` are read again for each sample; `known` are all that may ever be servers, where that is more.
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
