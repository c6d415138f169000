"""Resolves selectors to hosts and agents, in a local and in an attached datacenter."""

from collections.abc import Mapping, Sequence
from typing import Any

import anyio

from hashidrill.core.errors import SelectorError
from hashidrill.core.experiment.selectors import CLIENT_PREFIX
from hashidrill.core.protocols.abc import Host, Hosts, Target
from hashidrill.core.protocols.capabilities import Processes
from hashidrill.core.protocols.service import Service, roles_of


class HostSelection(Hosts):
    """Base of datacenters with `hosts` by name and `services`; messages use the name `called`."""

    called = "this datacenter"
    hosts: Mapping[str, Any]
    services: Sequence[Service]
    _turns: dict[str, anyio.Lock]

    def host(self, name: str) -> Host:
        try:
            found: Host = self.hosts[name]
        except KeyError:
            raise SelectorError(f"there is no host {name!r}; there are: {', '.join(self.hosts)}") from None
        return found

    def all_hosts(self) -> Sequence[Host]:
        return list(self.hosts.values())

    def turn(self, what: str) -> anyio.Lock:
        return self._turns.setdefault(what, anyio.Lock())

    def client_target(self, selector: str) -> Target:
        """The target of `client:NAME`. Raises SelectorError if the datacenter has no taps."""
        raise SelectorError(f"{selector}: an attached datacenter has no taps")

    async def select(self, selector: str) -> Sequence[Target]:
        """The hosts a selector means now, with their agents' processes if the host can show them.

        `client:NAME` means that client's tap; `host:NAME` the host's first agent. Raises SelectorError for no host.
        """
        if selector.startswith(CLIENT_PREFIX):
            return [self.client_target(selector)]
        chosen, _, agent = selector.partition("/")
        kind, _, name = chosen.partition(":")
        hosts = [self.host(name)] if kind == "host" else await roles_of(self.service(kind)).select(name, self)
        able = [host for host in hosts if not agent or agent in host.roles]
        if not able:
            raise SelectorError(f"{selector}: there is no {agent} on {', '.join(host.name for host in hosts)}")
        own = agent or ("" if kind == "host" else kind)
        return [await self._target(host, own or next(iter(host.roles))) for host in able]

    @staticmethod
    async def _target(host: Host, agent: str) -> Target:
        process = await host.use(Processes).agent_process(agent) if host.can(Processes) else None
        return Target(host.name, host.address, agent, process.reference if process is not None else "")

    def service(self, name: str) -> Service:
        """Raises SelectorError."""
        for service in self.services:
            if service.name == name:
                return service
        raise SelectorError(f"{self.called} has no {name}")

    async def agents(self, via: str) -> list[tuple[Any, str]]:
        """The agents that a load goes through, each as (host, service). Raises SelectorError."""
        chosen, _, agent = via.partition("/")
        kind, _, name = chosen.partition(":")
        if kind == "host":
            host = self.host(name)
            return [(host, agent or next(iter(host.roles)))]
        serving = await roles_of(self.service(kind)).serving(name, self)
        return [(self.hosts[host.name], agent or kind) for host in serving]

    def service_of(self, via: str) -> str:
        """The service that a load goes through. Raises SelectorError for an unknown host."""
        chosen, _, agent = via.partition("/")
        kind, _, name = chosen.partition(":")
        return agent or (next(iter(self.host(name).roles)) if kind == "host" else kind)

    def described_hosts(self) -> list[dict[str, Any]]:
        """The hosts as run.json lists them."""
        return [
            {"name": host.name, "address": host.address, "role": host.role, "agents": dict(host.roles)}
            for host in self.hosts.values()
        ]
