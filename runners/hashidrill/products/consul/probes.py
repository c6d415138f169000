"""Probes of Consul: the leader, Raft's state and times, members, autopilot's health, the server that a client asks.

Paths, names and units are those of Consul 1.10.3 and 1.22.2.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar

import anyio
import httpx2
from pydantic import BaseModel, Field, TypeAdapter

from hashidrill.core.errors import FaultError
from hashidrill.core.probes import agents
from hashidrill.core.probes.agents import AgentsApi
from hashidrill.core.probes.base import BaseProbe, SickError
from hashidrill.core.protocols.abc import Host, Probe, Sample
from hashidrill.core.protocols.capabilities import Connection, Connections

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
    """`raft.leader` as one server sees it: 1 and the leader's host name as text; without a leader, failed and 0."""

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


class SnapshotLogProbe(agents.SnapshotLogProbe):
    """`raft.snapshots` and `raft.installs` of one server."""

    signals: ClassVar = ("raft.snapshots", "raft.installs")
    log_path = "/v1/agent/monitor?loglevel=info"


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
    # without a leader the servers answer only after some seconds, which makes the sample a failed one
    timeout_s = 2.0

    async def measure(self) -> Sequence[Sample]:
        path = "/v1/operator/autopilot/health"
        # 429 with the usual body means "unhealthy"; a rate limit's 429 has another body and counts as a failure
        health = await self._api.get_from_any(self.hosts, path, _HEALTH, accept={200, 429})
        return [Sample("consul.autopilot_healthy", float(health.healthy))]


class RaftTimesProbe(agents.TimesProbe):
    """Consul's own Raft timers of one server: only a leader commits, dispatches and appends."""

    signals: ClassVar = tuple(RAFT_TIMES.values())
    path = "/v1/agent/metrics"

    def _signal_of(self, timer: str) -> str | None:
        """There is one timer for each peer: older versions append the peer's id to the name, newer ones use a label."""
        name = timer.partition(".")[2]
        appending = "raft.replication.appendEntries.rpc"
        return RAFT_TIMES.get(appending if name.startswith(appending + ".") else name)


RPC_PORT = 8300
QUIET_BYTES = 100
"""Two keep-alives of yamux, one from each side, have 24 bytes, or 82 with TLS; the shortest request is longer."""
_REPEAT_S = 5.0


class _ConnectionsProbe(BaseProbe):
    """A probe of a host's connections to Consul's servers."""

    def __init__(self, host: Host, servers: Mapping[str, str]) -> None:
        self.host = host.name
        self._host = host
        self._servers = servers

    async def _held(self) -> Sequence[Connection]:
        try:
            return await self._host.use(Connections).connections(RPC_PORT)
        except FaultError as error:
            raise SickError(str(error)) from None


class FullWindowProbe(_ConnectionsProbe):
    """`raft.window_full` of a server: the share of the time since the last look in which data for another server
    waited because that server's receive window had no room, on the link where it was longest (text: the other server).

    The kernel counts this time for each connection, so neither a fault's own canaries nor other ports add to it.
    Needs two samples.
    """

    signals: ClassVar = ("raft.window_full",)

    def __init__(self, host: Host, servers: Mapping[str, str]) -> None:
        super().__init__(host, servers)
        self._last: tuple[float, Mapping[tuple[str, int], float]] | None = None

    async def measure(self) -> Sequence[Sample]:
        last, self._last = self._last, None
        names = {address: name for name, address in self._servers.items()}
        held = {(one.address, one.port): one.window_limited_s for one in await self._held() if one.address in names}
        now_s = anyio.current_time()
        self._last = now_s, held
        if last is None or now_s <= last[0]:
            return []
        then_s, before = last
        # a new connection between the same ports begins to count again
        waited = {link: limited_s - min(limited_s, before.get(link, 0.0)) for link, limited_s in held.items()}
        worst = max(waited, key=lambda link: waited[link], default=None)
        if worst is None:
            return [Sample("raft.window_full", 0.0, "no link", self.host)]
        return [Sample("raft.window_full", min(1.0, waited[worst] / (now_s - then_s)), names[worst[0]], self.host)]


class AskedServerProbe(_ConnectionsProbe):
    """`consul.asks` of a client agent: the server that it asks, then the others that it is connected to (text).

    Consul does not say which server a client agent uses, so the probe looks at the host's connections to servers. The
    server asked is the one to which the agent wrote most since the last look; if it wrote to none, the previous one,
    while its connection is open. The value is 1, or 0 without a connection. Sampled on each change, and every 5 s.
    """

    signals: ClassVar = ("consul.asks",)

    def __init__(self, host: Host, servers: Mapping[str, str]) -> None:
        super().__init__(host, servers)
        self._written: dict[tuple[str, int], int] = {}
        self._asked = ""
        self._said: tuple[Sample | None, float] = (None, 0.0)

    async def measure(self) -> Sequence[Sample]:
        held = await self._held()
        names = {address: name for name, address in self._servers.items()}
        wrote = Counter[str]()
        for each in held:
            before = self._written.get((each.address, each.port), 0)
            wrote[names.get(each.address, each.address)] += each.written_bytes - before
        self._written = {(each.address, each.port): each.written_bytes for each in held}
        if self._asked not in wrote or max(wrote.values()) > QUIET_BYTES:
            self._asked = max(wrote, key=lambda name: wrote[name], default="")
        found = ", ".join(filter(None, [self._asked, *sorted({*wrote} - {self._asked})]))
        return self._news(Sample("consul.asks", float(bool(found)), found, self.host))

    def failed(self, reason: str) -> Sequence[Sample]:
        return self._news(*super().failed(reason))

    def _news(self, sample: Sample) -> Sequence[Sample]:
        said, at_s = self._said
        now_s = anyio.current_time()
        if said == sample and now_s - at_s < _REPEAT_S:
            return []
        self._said = (sample, now_s)
        return [sample]


def consul_probes(
    servers: Mapping[str, str],
    *,
    port: int = 8500,
    known: Mapping[str, str] | None = None,
    transport: httpx2.AsyncBaseTransport | None = None,
) -> list[Probe]:
    """All probes of Consul for servers by host name and address. `run_probes` closes them.

    `servers` is read again for each sample; `known` has all hosts that may ever be servers, if there are more.
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
