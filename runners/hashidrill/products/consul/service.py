"""Consul as a service of a datacenter: its hosts, agents, roles, readiness, endpoints and probes.

It is light to import: the command line finds Consul's kinds and roles here, and most commands start no datacenter.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from hashidrill.core.protocols.abc import Hosts, Probe
from hashidrill.core.protocols.capabilities import Connections
from hashidrill.core.protocols.service import (
    BEHIND,
    LEADER_ELECTED,
    SNAPSHOT_BEGINS,
    SNAPSHOT_INSTALLED,
    AgentPlace,
    AgentPlan,
    Lane,
    Panel,
    Sampled,
    Site,
    Wanted,
)
from hashidrill.core.units import Duration, Percent
from hashidrill.core.util.addresses import Addresses
from hashidrill.products.consul.model import Consul
from hashidrill.products.services import READY_PATIENCE, ServersAndClients

if TYPE_CHECKING:
    import httpx2

    from hashidrill.core.protocols.rights import Right
    from hashidrill.core.units import Quantity

_HTTP_TIMEOUT_S = 2.0
HTTP_PORT = 8500
_TIMES_SILENT_S = 30.0
"""Consul sums up its Raft timers over 10 s, and only a leader has them: an election can take two intervals."""


class ConsulService(ServersAndClients):
    """The Consul agents of a datacenter (hashidrill.core.protocols.service.Service)."""

    name: ClassVar[str] = "consul"
    Spec: ClassVar[type[Consul]] = Consul
    agent_bytes: ClassVar[int] = 70_000_000  # 27 MB of its own at the start, up to 90 MB resident (2026-11)
    roles: ClassVar[tuple[str, ...]] = ("leader", "followers", "one-follower", "servers", "clients", "all")
    signals: ClassVar[Mapping[str, type[Quantity] | None]] = {
        "raft.leader": None,  # 1 while there is a leader, otherwise 0
        "raft.term": None,
        "raft.commit_index": None,
        "raft.commit_time": Duration,
        "raft.dispatch_log": Duration,
        "raft.last_contact": Duration,
        "raft.append_entries": Duration,
        "raft.window_full": Percent,
        "consul.autopilot_healthy": None,
        "consul.members_alive": None,
        "consul.members_failed": None,
    }
    probed: ClassVar[Sequence[Sampled]] = (
        Sampled(frozenset({"raft.leader"}), "raft.leader"),
        Sampled(frozenset({"raft.state", "raft.term", "raft.commit_index"}), "raft.state"),
        Sampled(frozenset({"consul.members_alive", "consul.members_failed"}), "consul.members_alive"),
        Sampled(frozenset({"consul.autopilot_healthy"}), "consul.autopilot_healthy"),
        Sampled(frozenset({"consul.asks"}), "consul.asks", 15.0),
        Sampled(frozenset({"raft.window_full"}), "raft.window_full"),
        Sampled(
            frozenset({"raft.commit_time", "raft.dispatch_log", "raft.last_contact", "raft.append_entries"}),
            silent_s=_TIMES_SILENT_S,
        ),
    )
    periods: ClassVar[Mapping[str, tuple[str, str]]] = {
        "consul.health_checks": ("interval", "1s"),
        "consul.lock": ("renew", "5s"),
    }
    at_once: ClassVar[Mapping[str, tuple[str, int]]] = {"consul.service.churn": ("at_once", 50)}
    panels: ClassVar[Sequence[Panel]] = (
        Panel("raft.commit_time", "Raft commit time", "s"),
        Panel("raft.dispatch_log", "Raft log write on the leader (dispatchLog)", "s"),
        Panel("raft.last_contact", "Time since the leader was last in contact", "s"),
        Panel("raft.append_entries", "Raft append entries", "s"),
        Panel("raft.window_full", "Share of time that a Raft link's data waits for its receiver's window"),
        Panel("consul.members_failed", "Members that Consul calls failed"),
    )
    lanes: ClassVar[Sequence[Lane]] = (
        Lane("raft.leader", "leader", bad="no leader", names=True, term="raft.term"),
        Lane("consul.autopilot_healthy", "Consul says", good="healthy", bad="unhealthy"),
    )
    undrawn: ClassVar[frozenset[str]] = frozenset(
        {"raft.state", "raft.term", "raft.commit_index", "consul.members_alive", "consul.asks"}
    )
    moments: ClassVar[Mapping[str, str]] = {
        LEADER_ELECTED: "raft.term",
        BEHIND: "raft.commit_index",
        SNAPSHOT_BEGINS: "raft.snapshots",
        SNAPSHOT_INSTALLED: "raft.installs",
    }
    asks: ClassVar[str] = "consul.asks"
    profiles: ClassVar[str] = "/debug/pprof/"
    address_variable: ClassVar[str] = "CONSUL_HTTP_ADDR"
    look: ClassVar[str] = "consul members"

    def places(self) -> Sequence[AgentPlace]:
        """`consul-1`, ... for servers; spare servers after them; `client-1`, ... and the guests for clients."""
        spec, first = self.spec, self.spec.servers + 1
        servers = [AgentPlace(f"consul-{n}", "server") for n in range(1, first)]
        spares = [AgentPlace(f"consul-{n}", "spare", starts=False) for n in range(first, first + self.spares)]
        clients = [AgentPlace(f"client-{n}", "client") for n in range(1, spec.clients + 1)]
        return [*servers, *spares, *clients, *(AgentPlace(host, "client", guest=True) for host in self.guests)]

    def impossible(self, role: str) -> str:
        if role == "clients":
            return "the datacenter has no client agents (datacenter.consul.clients is 0)"
        return f"a single server has no followers (datacenter.consul.servers is {self.spec.servers})"

    def binaries(self) -> Sequence[Wanted]:
        return [Wanted("consul", self.spec.version, self.spec.binary)]

    def agent(self, site: Site) -> AgentPlan:
        """The agent's plan. It names the spare hosts too: once all servers are replaced, agents can join only those."""
        from hashidrill.products.consul import settings  # noqa: PLC0415 - see above

        placed = {
            role: [site.addresses[p.host] for p in self.places() if p.role == role] for role in ("server", "spare")
        }
        config = settings.consul_config(
            self.spec, name=site.host, role=site.role, address=site.address, servers=placed["server"], data=site.data
        )
        if config["retry_join"] == placed["server"]:
            config["retry_join"] = [*placed["server"], *placed["spare"]]
        command = settings.consul_command(site.binaries["consul"], site.config_file)
        return AgentPlan(config, command, f"http://{site.address}:{HTTP_PORT}", "/v1/status/leader")

    async def leader(self, hosts: Hosts) -> str | None:
        from hashidrill.products.consul.api import leader_of  # noqa: PLC0415 - see above

        return await leader_of(hosts)

    async def wait_ready(self, hosts: Hosts, *, within_s: float, agents_run: Callable[[], Awaitable[None]]) -> None:
        """Waits for a known leader, live members and an accepted write. Raises WaitTimeoutError with what was missing.

        Gives up only after `within_s` without progress: many agents on few cores start one after the other.
        """
        import httpx2  # noqa: PLC0415 - see above

        from hashidrill.core.util.wait import wait_while_it_moves  # noqa: PLC0415

        base = f"http://{self._hosts(hosts, 'server')[0].address}:{HTTP_PORT}"
        async with httpx2.AsyncClient(timeout=_HTTP_TIMEOUT_S, trust_env=False, base_url=base) as client:

            async def ready() -> tuple[bool | None, str, int | None]:
                await agents_run()
                return await self._ready(hosts, client)

            await wait_while_it_moves(
                "the datacenter to be ready", ready, still_s=within_s, within_s=READY_PATIENCE * within_s
            )

    async def _ready(self, hosts: Hosts, client: httpx2.AsyncClient) -> tuple[bool | None, str, int | None]:
        import httpx2  # noqa: PLC0415 - see above

        from hashidrill.core.util.safe_json import parse  # noqa: PLC0415

        if await self.leader(hosts) is None:
            return None, "no leader is known to a majority of the servers", None
        try:
            members = parse((await client.get("/v1/agent/members")).content)
            alive = sorted(member["Name"] for member in members if member["Status"] == 1)
            wanted = sorted(host.name for host in self._hosts(hosts, "server", "client"))
            if alive != wanted:
                return None, f"alive are {', '.join(alive)} of {', '.join(wanted)}", len(alive)
            answer = await client.put("/v1/kv/hashidrill/ready", content=b"ready")
        except (httpx2.HTTPError, ValueError, KeyError, TypeError) as error:
            return None, f"{type(error).__name__}: {error}", None
        return (True if answer.text == "true" else None), f"a write was answered {answer.text!r}", len(alive)

    def probes(self, hosts: Hosts) -> Sequence[Probe]:
        from hashidrill.products.consul import probes  # noqa: PLC0415 - see above

        known = Addresses(self._hosts(hosts, "server", "spare"))
        servers = _Servers(hosts, self.name)
        kinds = {"client": probes.AskedServerProbe, "server": probes.FullWindowProbe}
        watched = [
            kind(host, known)
            for role, kind in kinds.items()
            for host in self._hosts(hosts, role)
            if host.can(Connections)
        ]
        return [*probes.consul_probes(servers, port=HTTP_PORT, known=known, transport=self.transport), *watched]

    def moment_probes(self, hosts: Hosts) -> Sequence[Probe]:
        from hashidrill.core.probes.agents import AgentsApi  # noqa: PLC0415 - see above
        from hashidrill.products.consul.probes import RaftProbe, SnapshotLogProbe  # noqa: PLC0415

        known = Addresses(self._hosts(hosts, "server", "spare"))
        api = AgentsApi(port=HTTP_PORT, transport=self.transport)
        return [kind(host, known, api=api) for host in known for kind in (RaftProbe, SnapshotLogProbe)]

    def rights(self) -> Sequence[Right]:
        return (*super().rights(), *self._rights.WATCHED)

    def describe(self, configs: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        return {"config": configs}


class _Servers(Mapping[str, str]):
    def __init__(self, hosts: Hosts, service: str) -> None:
        self._hosts = hosts
        self._service = service

    def __getitem__(self, name: str) -> str:
        host = self._hosts.host(name)
        if host.roles.get(self._service) != "server":
            raise KeyError(name)
        return host.address

    def __iter__(self) -> Iterator[str]:
        return (host.name for host in self._hosts.all_hosts() if host.roles.get(self._service) == "server")

    def __len__(self) -> int:
        return sum(1 for _ in self)
