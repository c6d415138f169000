"""What the services of Consul, Nomad and Vault share: hosts by role, servers and clients, and rights.

It is light to import: the command line finds kinds and roles here, and most commands start no datacenter.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from hashidrill.core.errors import SelectorError
from hashidrill.core.protocols.service import AgentPlace, BaseService

if TYPE_CHECKING:
    from hashidrill.core.experiment.checks import Note
    from hashidrill.core.experiment.model import Experiment
    from hashidrill.core.protocols.abc import Host, Hosts
    from hashidrill.core.protocols.rights import Right
    from hashidrill.core.protocols.service import Calls

READY_PATIENCE = 3
"""Upper bound for readiness, as a multiple of `ready_within`, even while progress continues."""


class _OwnHosts(BaseService):
    name: ClassVar[str]

    def _hosts(self, hosts: Hosts, *roles: str) -> list[Host]:
        return [host for host in hosts.all_hosts() if host.roles.get(self.name) in roles]


class ProductService(_OwnHosts):
    """A product with an HTTP API, a web UI and ACLs (`rights.py` in its folder)."""

    ui: ClassVar[str] = "/ui/"
    transport: Any = None

    @property
    def _rights(self) -> Any:
        return import_module(f"hashidrill.products.{self.name}.rights")

    def rights(self) -> Sequence[Right]:
        return tuple(self._rights.READS)

    def policy(self, rights: Iterable[Right], why: Mapping[Right, str]) -> str:
        return str(self._rights.policy(rights, why))

    async def lacking(self, calls: Calls, rights: Iterable[Right]) -> Sequence[Right]:
        found: Sequence[Right] = await self._rights.lacking(calls, rights)
        return found


OF_LEADER = ("leader", "followers", "one-follower")
_ONE = {"one-follower": "followers", "one-client": "clients"}
_AGENTS = {"clients": ("client",), "all": ("server", "client")}


class LedServers(_OwnHosts):
    """A service of servers, one of which leads; it may have client agents."""

    many: ClassVar[tuple[str, ...]] = ("followers", "servers", "clients", "all")
    served: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def places(self) -> Sequence[AgentPlace]: ...

    @abstractmethod
    async def leader(self, hosts: Hosts) -> str | None:
        """The host that a majority of the servers names as the leader."""

    def candidates(self, role: str) -> frozenset[str]:
        if role in {"followers", "one-follower"} and self.spec.servers < 2:
            return frozenset()
        wanted = _AGENTS.get(_ONE.get(role, role), ("server",))
        return frozenset(place.host for place in self.places() if place.role in wanted)

    def most(self, role: str) -> int:
        return len(self.candidates(role)) - (role == "followers")

    def unprofiled(self) -> str:
        config = {**self.spec.config, **self.spec.server_config}
        return f"datacenter.{self.name} sets enable_debug: false" if config.get("enable_debug") is False else ""

    async def select(self, role: str, hosts: Hosts) -> Sequence[Host]:
        if role in OF_LEADER:
            leader = await self.leader(hosts)
            if leader is None:
                raise SelectorError(f"{self.name}:{role}: no server is known to a majority as the leader just now")
            chosen = [host for host in self._hosts(hosts, "server") if (host.name == leader) == (role == "leader")]
        else:
            chosen = self._hosts(hosts, *_AGENTS.get(_ONE.get(role, role), ("server",)))
        if not chosen:
            raise SelectorError(f"{self.name}:{role} matches no host of this datacenter")
        return chosen[:1] if role in _ONE else chosen

    async def serving(self, role: str, hosts: Hosts) -> Sequence[Host]:
        fallback = role == "clients" and not self._hosts(hosts, "client")
        return await self.select("servers" if fallback else role, hosts)


class ServersAndClients(LedServers, ProductService):
    """A product of servers, one of which leads, and of client agents."""

    served: ClassVar[tuple[str, ...]] = ("clients",)

    def check(self, experiment: Experiment, note: Note) -> None:
        """Notes a snapshot that is restored before it is saved: parameters alone cannot show that."""
        if any(step.fault.startswith(f"{self.name}.snapshot.") for step in experiment.faults):
            from hashidrill.core.faults.saved_first import check_snapshots  # noqa: PLC0415 - see above

            save, restore = f"{self.name}.snapshot.save", f"{self.name}.snapshot.restore"
            check_snapshots(experiment, note, save=save, restore=restore)
