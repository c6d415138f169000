"""Nomad as a service of a datacenter: its hosts, agents, roles, readiness, endpoints and probes.

Light to import: the command line finds Nomad's kinds and roles here, and most commands start no datacenter.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from hashidrill.core.errors import SelectorError
from hashidrill.core.protocols.abc import Host, Hosts, Probe
from hashidrill.core.protocols.service import AgentPlace, AgentPlan, BaseService, Lane, Panel, Sampled, Site, Wanted
from hashidrill.core.units import Duration
from hashidrill.core.util.addresses import Addresses
from hashidrill.products.nomad import drivers
from hashidrill.products.nomad.model import Nomad

if TYPE_CHECKING:
    from hashidrill.core.experiment.checks import Note
    from hashidrill.core.experiment.model import Experiment
    from hashidrill.core.protocols.rights import Right
    from hashidrill.core.protocols.service import Calls
    from hashidrill.core.units import Quantity

_READY_PATIENCE = 3
"""Upper bound for readiness, as a multiple of `ready_within`, even while progress continues."""
_OF_LEADER = ("leader", "followers", "one-follower")
_ONE = {"one-follower": "followers", "one-client": "clients"}


class NomadService(BaseService):
    """The Nomad agents of a datacenter (hashidrill.core.protocols.service.Service)."""

    name: ClassVar[str] = "nomad"
    Spec: ClassVar[type[Nomad]] = Nomad
    agent_bytes: ClassVar[int] = 70_000_000  # idle, 32 to 39 MB of its own (PSS) and 93 MB resident (2026-11)
    after: ClassVar[tuple[str, ...]] = ("consul",)
    roles: ClassVar[tuple[str, ...]] = (*_OF_LEADER, "servers", "one-client", "clients", "all")
    many: ClassVar[tuple[str, ...]] = ("followers", "servers", "clients", "all")
    served: ClassVar[tuple[str, ...]] = ("clients",)
    signals: ClassVar[Mapping[str, type[Quantity] | None]] = {
        "nomad.leader": None,  # 1 while there is one, else 0
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
    undrawn: ClassVar[frozenset[str]] = frozenset({"nomad.raft_state", "nomad.raft_term", "nomad.commit_index"})
    probed: ClassVar[Sequence[Sampled]] = (
        Sampled(frozenset({"nomad.leader"}), "nomad.leader"),
        Sampled(frozenset({"nomad.heartbeat_age"}), "nomad.heartbeat_age"),
        Sampled(frozenset({"nomad.raft_state", "nomad.raft_term", "nomad.commit_index"}), "nomad.raft_state"),
        Sampled(frozenset({"nomad.nodes_ready", "nomad.nodes_down", "nomad.nodes_ineligible"}), "nomad.nodes_ready"),
        Sampled(frozenset({"nomad.evals_blocked", "nomad.evals_pending", "nomad.evals_failed"}), "nomad.evals_blocked"),
        # the load of one node is read from the same look at all of them
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
    ui: ClassVar[str] = "/ui/"
    look: ClassVar[str] = "nomad node status"
    transport: Any = None

    def places(self) -> Sequence[AgentPlace]:
        """`nomad-1`, ... for servers; `node-1`, ... for clients, which Nomad calls nodes."""
        servers = [AgentPlace(f"nomad-{n}", "server", beside=("consul",)) for n in range(1, self.spec.servers + 1)]
        return [
            *servers,
            *(AgentPlace(f"node-{n}", "client", beside=("consul",)) for n in range(1, self.spec.clients + 1)),
        ]

    def candidates(self, role: str) -> frozenset[str]:
        if role in {"followers", "one-follower"} and self.spec.servers < 2:
            return frozenset()
        wanted = {"clients": ("client",), "one-client": ("client",), "all": ("server", "client")}.get(role, ("server",))
        return frozenset(place.host for place in self.places() if place.role in wanted)

    def most(self, role: str) -> int:
        return len(self.candidates(role)) - (role == "followers")

    def impossible(self, role: str) -> str:
        if role in {"clients", "one-client"}:
            return "the datacenter has no Nomad clients (datacenter.nomad.clients is 0)"
        return f"a single Nomad server has no followers (datacenter.nomad.servers is {self.spec.servers})"

    def check(self, experiment: Experiment, note: Note) -> None:
        """Checks what parameters alone cannot show: a snapshot is saved before it is restored.

        It also refuses a driver that local clients cannot have, whose jobs would wait for ever.
        """
        if any(step.fault.startswith("nomad.snapshot.") for step in experiment.faults):
            from hashidrill.core.faults.saved_first import check_snapshots  # noqa: PLC0415 - see above

            check_snapshots(experiment, note, save="nomad.snapshot.save", restore="nomad.snapshot.restore")
        for key in ("config", "client_config"):
            if wanted := drivers.impossible(getattr(self.spec, key)):
                from hashidrill.lab.provision.products import NEED_ROOT  # noqa: PLC0415 - see above

                asked = " and ".join(sorted(wanted))
                note(("datacenter", "nomad", key), f"{asked} cannot be had: {NEED_ROOT}; use raw_exec")

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

    async def select(self, role: str, hosts: Hosts) -> Sequence[Host]:
        if role in _OF_LEADER:
            leader = await self.leader(hosts)
            if leader is None:
                raise SelectorError(f"{self.name}:{role}: no server is known to a majority as the leader just now")
            chosen = [host for host in self._hosts(hosts, "server") if (host.name == leader) == (role == "leader")]
        else:
            many = _ONE.get(role, role)
            wanted = {"servers": ("server",), "clients": ("client",), "all": ("server", "client")}[many]
            chosen = self._hosts(hosts, *wanted)
        if not chosen:
            raise SelectorError(f"{self.name}:{role} matches no host of this datacenter")
        return chosen[:1] if role in _ONE else chosen

    def _hosts(self, hosts: Hosts, *roles: str) -> list[Host]:
        return [host for host in hosts.all_hosts() if host.roles.get(self.name) in roles]

    async def serving(self, role: str, hosts: Hosts) -> Sequence[Host]:
        fallback = role == "clients" and not self._hosts(hosts, "client")
        return await self.select("servers" if fallback else role, hosts)

    async def leader(self, hosts: Hosts) -> str | None:
        """The host that a majority of the servers names as the leader."""
        from hashidrill.products.nomad import readiness  # noqa: PLC0415 - see above

        return await readiness.leader(self._hosts(hosts, "server"), self.transport)

    async def wait_ready(self, hosts: Hosts, *, within_s: float, agents_run: Callable[[], Awaitable[None]]) -> None:
        """A leader, all servers in Raft, a key to sign with, all clients ready. Raises WaitTimeoutError.

        Gives up after `within_s` without progress: many agents on few cores come up one after the other.
        """
        from hashidrill.core.util.wait import wait_while_it_moves  # noqa: PLC0415
        from hashidrill.products.nomad import readiness  # noqa: PLC0415 - see above

        servers, clients = self._hosts(hosts, "server"), self._hosts(hosts, "client")

        async def ready() -> tuple[bool | None, str, int | None]:
            await agents_run()
            return await readiness.look(servers, clients, self.transport)

        await wait_while_it_moves("Nomad to be ready", ready, still_s=within_s, within_s=_READY_PATIENCE * within_s)

    def probes(self, hosts: Hosts) -> Sequence[Probe]:
        from hashidrill.products.nomad.probes import nomad_probes  # noqa: PLC0415 - see above

        of = {role: Addresses(self._hosts(hosts, role)) for role in ("server", "client")}
        return nomad_probes(of["server"], of["client"], self.transport)

    def rights(self) -> Sequence[Right]:
        from hashidrill.products.nomad import rights  # noqa: PLC0415 - see above

        return rights.READS

    def policy(self, rights: Iterable[Right], why: Mapping[Right, str]) -> str:
        from hashidrill.products.nomad.rights import policy  # noqa: PLC0415 - see above

        return policy(rights, why)

    async def lacking(self, calls: Calls, rights: Iterable[Right]) -> Sequence[Right]:
        from hashidrill.products.nomad.rights import lacking  # noqa: PLC0415 - see above

        return await lacking(calls, rights)
