"""Vault as a service of a datacenter: its servers, their keys, roles, readiness, probes, faults and loads.

It is light to import: the command line finds Vault's kinds and roles here, and most commands start no datacenter.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from hashidrill.core.errors import DatacenterError, SelectorError
from hashidrill.core.protocols.abc import Host, Hosts, Probe
from hashidrill.core.protocols.service import (
    AgentPlace,
    AgentPlan,
    Lane,
    Panel,
    Sampled,
    Site,
    Standing,
    Wanted,
    Workspace,
)
from hashidrill.core.units import Duration
from hashidrill.core.util.addresses import Addresses
from hashidrill.products.services import ProductService
from hashidrill.products.vault.model import Vault

if TYPE_CHECKING:
    from hashidrill.core.experiment.checks import Note
    from hashidrill.core.experiment.model import Experiment
    from hashidrill.core.units import Quantity
    from hashidrill.products.vault.operator import KeyRing, Sealed

PORT = 8200
_TIMES_SILENT_S = 30.0
"""Vault sums up its timers over 10 s, and only an active server has them: a takeover can take two intervals."""
_NO_CONSUL = (
    "`storage: consul` keeps Vault's data in the Consul of the same datacenter, but the datacenter has no Consul: "
    "add datacenter.consul, or use `storage: raft`"
)


class VaultService(ProductService):
    """The Vault servers of a datacenter (hashidrill.core.protocols.service.Service)."""

    name: ClassVar[str] = "vault"
    profiles: ClassVar[str] = "/v1/sys/pprof/"
    Spec: ClassVar[type[Vault]] = Vault
    agent_bytes: ClassVar[int] = 100_000_000  # idle, 55 to 89 MB of its own (PSS); at work, about 100 MB (2026-11)
    after: ClassVar[tuple[str, ...]] = ("consul",)
    roles: ClassVar[tuple[str, ...]] = ("active", "standbys", "one-standby", "servers")
    many: ClassVar[tuple[str, ...]] = ("standbys", "servers")
    served: ClassVar[tuple[str, ...]] = ()
    signals: ClassVar[Mapping[str, type[Quantity] | None]] = {
        "vault.active": None,  # 1 while one server is active, otherwise 0
        "vault.sealed": None,  # of each server: 1 or 0
        "vault.unsealed": None,  # how many servers are unsealed
        "vault.leases": None,
        "vault.storage_put": Duration,
        "vault.storage_get": Duration,
    }
    probed: ClassVar[Sequence[Sampled]] = (
        Sampled(frozenset({"vault.active", "vault.is_active", "vault.active_since"}), "vault.active"),
        Sampled(frozenset({"vault.unsealed", "vault.sealed"}), "vault.unsealed"),
        Sampled(frozenset({"vault.storage_put", "vault.storage_get", "vault.leases"}), silent_s=_TIMES_SILENT_S),
    )
    panels: ClassVar[Sequence[Panel]] = (
        Panel("vault.storage_put", "Vault's writes to its storage", "s"),
        Panel("vault.storage_get", "Vault's reads from its storage", "s"),
        Panel("vault.leases", "Leases that Vault keeps"),
        Panel("vault.unsealed", "Vault servers that are unsealed", worst=False),
    )
    undrawn: ClassVar[frozenset[str]] = frozenset({"vault.is_active", "vault.active_since", "vault.sealed"})
    lanes: ClassVar[Sequence[Lane]] = (
        Lane("vault.active", "Vault active", bad="no active server", names=True, term="vault.active_since"),
    )
    address_variable: ClassVar[str] = "VAULT_ADDR"
    look: ClassVar[str] = "vault status"

    _ring: KeyRing
    _sealed: Sealed

    def places(self) -> Sequence[AgentPlace]:
        """`vault-1`, ...; if the datacenter has Consul, with an agent of Consul on each host."""
        return [AgentPlace(f"vault-{n}", "server", beside=("consul",)) for n in range(1, self.spec.servers + 1)]

    def candidates(self, role: str) -> frozenset[str]:
        if role in {"standbys", "one-standby"} and self.spec.servers < 2:
            return frozenset()
        return frozenset(place.host for place in self.places())

    def most(self, role: str) -> int:
        return self.spec.servers - (role == "standbys") if role in self.many else 1

    def impossible(self, role: str) -> str:  # noqa: ARG002 - only roles of standbys can be impossible
        return f"a single server has no standbys (datacenter.vault.servers is {self.spec.servers})"

    def check(self, experiment: Experiment, note: Note) -> None:
        if (
            not isinstance(self, Standing)
            and self.spec.storage == "consul"
            and "consul" not in experiment.datacenter.services
        ):
            note(("datacenter", "vault", "storage"), _NO_CONSUL)

    def unprofiled(self) -> str:
        return ""

    def binaries(self) -> Sequence[Wanted]:
        return [Wanted("vault", self.spec.version, self.spec.binary)]

    def open(self, workspace: Workspace) -> None:
        from hashidrill.products.vault.operator import KeyRing, Sealed  # noqa: PLC0415 - see above

        self._ring = KeyRing(workspace.folder, workspace.hide)
        self._sealed = Sealed()

    def parts(self, host: Host) -> Mapping[type[Any], Any]:
        from hashidrill.products.vault.operator import OF_OURS, HostOperator  # noqa: PLC0415 - see above

        return dict.fromkeys(OF_OURS, HostOperator(host, self._ring, self._sealed))

    def agent(self, site: Site) -> AgentPlan:
        """Raises DatacenterError for `storage: consul` without Consul."""
        from hashidrill.products.vault import settings  # noqa: PLC0415 - see above

        consul = settings.consul_for(site)
        if self.spec.storage == "consul" and not consul:
            raise DatacenterError(_NO_CONSUL)
        peers = [site.addresses[place.host] for place in self.places() if place.host != site.host]
        config = settings.vault_config(
            self.spec, name=site.host, address=site.address, peers=peers, data=site.data, consul=consul
        )
        command = settings.vault_command(site.binaries["vault"], site.config_file)
        return AgentPlan(config, command, f"http://{site.address}:{PORT}", "/v1/sys/seal-status")

    async def select(self, role: str, hosts: Hosts) -> Sequence[Host]:
        """The standbys are all servers that are not active, in any state. Raises SelectorError if no host matches."""
        servers = self._hosts(hosts, "server")
        if role == "servers":
            return servers
        from hashidrill.products.vault.api import VaultApi  # noqa: PLC0415 - see above

        async with VaultApi(transport=self.transport) as api:
            active = await api.active(servers)
        if active is None:
            raise SelectorError(f"{self.name}:{role}: no server is active just now")
        if role == "active":
            return [active]
        standbys = [host for host in servers if host.name != active.name]
        if not standbys:
            raise SelectorError(f"{self.name}:{role} matches no host of this datacenter")
        return standbys[:1] if role == "one-standby" else standbys

    async def serving(self, role: str, hosts: Hosts) -> Sequence[Host]:
        return await self.select(role, hosts)

    async def wait_ready(self, hosts: Hosts, *, within_s: float, agents_run: Callable[[], Awaitable[None]]) -> None:
        """Waits for an unsealed Vault with one active server, standbys that could take over, and an accepted secret.

        Raises WaitTimeoutError with the missing condition.
        """
        from hashidrill.products.vault.ready import make_ready  # noqa: PLC0415 - see above

        raft = self.spec.storage == "raft"
        await make_ready(self._hosts(hosts, "server"), self._ring, raft=raft, within_s=within_s, agents_run=agents_run)

    async def keep(self, hosts: Hosts, tell: Callable[[str], None]) -> None:
        """Unseals servers that start sealed, unless `unseal: never`."""
        if self.spec.unseal == "never":
            return
        from hashidrill.products.vault.api import VaultApi  # noqa: PLC0415 - see above
        from hashidrill.products.vault.operator import keep_unsealed  # noqa: PLC0415 - see above

        async with VaultApi() as api:
            await keep_unsealed(api, self._hosts(hosts, "server"), self._ring, self._sealed, tell)

    def access(self) -> Mapping[str, str]:
        """The token of hashidrill's loads, not Vault's root token."""
        return {"VAULT_TOKEN": self._ring.keys.load}

    def login(self) -> Mapping[str, str]:
        """Vault's root token, and the key that unseals its servers."""
        return {"VAULT_TOKEN": self._ring.keys.root, "VAULT_UNSEAL_KEY": self._ring.keys.unseal}

    def probes(self, hosts: Hosts) -> Sequence[Probe]:
        from hashidrill.products.vault.probes import vault_probes  # noqa: PLC0415 - see above

        return vault_probes(Addresses(self._hosts(hosts, "server")), self.transport)
