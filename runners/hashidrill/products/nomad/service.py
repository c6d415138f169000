"""Nomad as a service of a datacenter: its hosts, agents, roles, readiness, endpoints and probes.

It is light to import: the command line finds Nomad's kinds and roles here, and most commands start no datacenter.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from hashidrill.core.protocols.abc import Host, Hosts, Probe
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
from hashidrill.core.units import Duration
from hashidrill.core.util.addresses import Addresses
from hashidrill.products.nomad.model import Nomad
from hashidrill.products.services import OF_LEADER, READY_PATIENCE, ServersAndClients

if TYPE_CHECKING:
    from hashidrill.core.experiment.checks import Note
    from hashidrill.core.experiment.model import Experiment
    from hashidrill.core.units import Quantity


ALWAYS = "raw_exec"
_OF_ROOT = frozenset({"exec", "exec2", "java", "docker", "podman"})
_LISTS = ("driver.allowlist", "driver.whitelist")


def impossible(config: Mapping[str, Any]) -> set[str]:
    """The drivers in an agent's configuration that need a client that runs as root."""
    return set(_asked(config)) & _OF_ROOT


def _asked(config: Mapping[str, Any]) -> Iterator[str]:
    for block in _blocks(config.get("plugin")):
        yield from block
    for client in _blocks(config.get("client")):
        for options in _blocks(client.get("options")):
            for name in _LISTS:
                yield from (driver.strip() for driver in str(options.get(name, "")).split(","))


def _blocks(part: Any) -> Iterator[Mapping[str, Any]]:
    for one in part if isinstance(part, list) else [part]:
        if isinstance(one, Mapping):
            yield one


class NomadService(ServersAndClients):
    """The Nomad agents of a datacenter (hashidrill.core.protocols.service.Service)."""

    name: ClassVar[str] = "nomad"
    profiles: ClassVar[str] = (
        "/v1/agent/pprof/"  # this path accepts enable_debug or a token, /debug/pprof/ only enable_debug
    )
    Spec: ClassVar[type[Nomad]] = Nomad
    agent_bytes: ClassVar[int] = 70_000_000  # idle, 32 to 39 MB of its own (PSS) and 93 MB resident (2026-11)
    after: ClassVar[tuple[str, ...]] = ("consul",)
    roles: ClassVar[tuple[str, ...]] = (*OF_LEADER, "servers", "one-client", "clients", "all")
    signals: ClassVar[Mapping[str, type[Quantity] | None]] = {
        "nomad.leader": None,  # 1 while there is a leader, else 0
        "nomad.raft_term": None,
        "nomad.commit_index": None,
        "nomad.commit_time": Duration,
        "nomad.last_contact": Duration,
        "nomad.plan_submit": Duration,
        "nomad.evals_blocked": None,
        "nomad.evals_pending": None,
        "nomad.evals_failed": None,
        "nomad.plan_rejections": None,
        "nomad.allocs_running": None,
        "nomad.allocs_pending": None,
        "nomad.allocs_failed": None,
        "nomad.allocs_lost": None,
        "nomad.allocs_unknown": None,
        "nomad.allocs_complete": None,
        "nomad.allocs_placed": None,
        "nomad.heartbeat_age": Duration,
        "nomad.nodes_ready": None,
        "nomad.nodes_down": None,
        "nomad.nodes_ineligible": None,
    }
    panels: ClassVar[Sequence[Panel]] = ()
    lanes: ClassVar[Sequence[Lane]] = (
        Lane("nomad.leader", "Nomad leader", bad="no leader", names=True, term="nomad.raft_term"),
    )
    moments: ClassVar[Mapping[str, str]] = {
        LEADER_ELECTED: "nomad.raft_term",
        BEHIND: "nomad.commit_index",
        SNAPSHOT_BEGINS: "nomad.snapshots",
        SNAPSHOT_INSTALLED: "nomad.installs",
    }
    undrawn: ClassVar[frozenset[str]] = frozenset({"nomad.raft_state", "nomad.raft_term", "nomad.commit_index"})
    probed: ClassVar[Sequence[Sampled]] = (
        Sampled(frozenset({"nomad.leader"}), "nomad.leader"),
        Sampled(frozenset({"nomad.heartbeat_age"}), "nomad.heartbeat_age"),
        Sampled(frozenset({"nomad.raft_state", "nomad.raft_term", "nomad.commit_index"}), "nomad.raft_state"),
        Sampled(frozenset({"nomad.nodes_ready", "nomad.nodes_down", "nomad.nodes_ineligible"}), "nomad.nodes_ready"),
        Sampled(frozenset({"nomad.evals_blocked", "nomad.evals_pending", "nomad.evals_failed"}), "nomad.evals_blocked"),
        # one look at all allocations gives these counts, also those of each node
        Sampled(
            frozenset(
                {
                    "nomad.allocs_running",
                    "nomad.allocs_pending",
                    "nomad.allocs_failed",
                    "nomad.allocs_lost",
                    "nomad.allocs_unknown",
                    "nomad.allocs_complete",
                    "nomad.allocs_placed",
                }
            )
        ),
        Sampled(
            frozenset({"nomad.commit_time", "nomad.last_contact", "nomad.plan_submit", "nomad.plan_rejections"}),
            "nomad.plan_rejections",
        ),
    )
    address_variable: ClassVar[str] = "NOMAD_ADDR"
    look: ClassVar[str] = "nomad node status"

    def places(self) -> Sequence[AgentPlace]:
        """`nomad-1`, ... for servers; `node-1`, ... for clients, which Nomad calls nodes."""
        servers = [AgentPlace(f"nomad-{n}", "server", beside=("consul",)) for n in range(1, self.spec.servers + 1)]
        return [
            *servers,
            *(AgentPlace(f"node-{n}", "client", beside=("consul",)) for n in range(1, self.spec.clients + 1)),
        ]

    def impossible(self, role: str) -> str:
        if role in {"clients", "one-client"}:
            return "the datacenter has no Nomad clients (datacenter.nomad.clients is 0)"
        return f"a single Nomad server has no followers (datacenter.nomad.servers is {self.spec.servers})"

    def check(self, experiment: Experiment, note: Note) -> None:
        """Also refuses a driver that local clients cannot run, because its jobs would wait for ever."""
        super().check(experiment, note)
        for key in ("config", "client_config"):
            if wanted := impossible(getattr(self.spec, key)):
                from hashidrill.lab.provision.products import NEED_ROOT  # noqa: PLC0415 - see above

                asked = " and ".join(sorted(wanted))
                note(("datacenter", "nomad", key), f"{asked} cannot be used: {NEED_ROOT}; use raw_exec")

    def binaries(self) -> Sequence[Wanted]:
        return [Wanted("nomad", self.spec.version, self.spec.binary)]

    def parts(self, host: Host) -> Mapping[type[Any], Any]:
        """A client's tasks are processes on its host."""
        from hashidrill.products.nomad.tasks import ProcTasks, TaskProcesses  # noqa: PLC0415 - see above

        return {TaskProcesses: ProcTasks(host)} if host.roles.get(self.name) == "client" else {}

    def agent(self, site: Site) -> AgentPlan:
        from hashidrill.products.nomad import settings  # noqa: PLC0415 - see above

        servers = [site.addresses[place.host] for place in self.places() if place.role == "server"]
        return AgentPlan(
            settings.nomad_config(self.spec, site, servers),
            settings.nomad_command(site.binaries["nomad"], site.config_file),
            f"http://{site.address}:{settings.HTTP_PORT}",
            "/v1/agent/health",
            environment={"TMPDIR": str(site.data)},  # its sockets: they end with the host
            as_root=False,
        )

    async def leader(self, hosts: Hosts) -> str | None:
        from hashidrill.products.nomad import readiness  # noqa: PLC0415 - see above

        return await readiness.leader(self._hosts(hosts, "server"), self.transport)

    async def wait_ready(self, hosts: Hosts, *, within_s: float, agents_run: Callable[[], Awaitable[None]]) -> None:
        """Waits for a leader, all servers in Raft, a signing key and ready clients. Raises WaitTimeoutError.

        Gives up only after `within_s` without progress: many agents on few cores start one after the other.
        """
        from hashidrill.core.util.wait import wait_while_it_moves  # noqa: PLC0415
        from hashidrill.products.nomad import readiness  # noqa: PLC0415 - see above

        servers, clients = self._hosts(hosts, "server"), self._hosts(hosts, "client")

        async def ready() -> tuple[bool | None, str, int | None]:
            await agents_run()
            return await readiness.look(servers, clients, self.transport)

        await wait_while_it_moves("Nomad to be ready", ready, still_s=within_s, within_s=READY_PATIENCE * within_s)

    def probes(self, hosts: Hosts) -> Sequence[Probe]:
        from hashidrill.products.nomad.probes import nomad_probes  # noqa: PLC0415 - see above

        of = {role: Addresses(self._hosts(hosts, role)) for role in ("server", "client")}
        return nomad_probes(of["server"], of["client"], self.transport)

    def moment_probes(self, hosts: Hosts) -> Sequence[Probe]:
        from hashidrill.core.probes.agents import AgentsApi  # noqa: PLC0415 - see above
        from hashidrill.products.nomad.probes import RaftProbe, SnapshotLogProbe  # noqa: PLC0415
        from hashidrill.products.nomad.settings import HTTP_PORT  # noqa: PLC0415

        servers = Addresses(self._hosts(hosts, "server"))
        api = AgentsApi(port=HTTP_PORT, transport=self.transport)
        return [kind(host, servers, api=api) for host in servers for kind in (RaftProbe, SnapshotLogProbe)]
