"""What an experiment keeps of a datacenter that stands already: its hosts, and the agents on them."""

from __future__ import annotations

from pydantic import Field

from hashidrill.core.experiment.strict import Strict
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.service import AgentPlace


class AttachedHost(Strict):
    """A host of an attached datacenter, as it was found."""

    address: str
    agents: dict[str, str]
    """The role of each of its agents, by service."""


class Attached(Strict):
    """A datacenter that stands already. Nobody writes this: `--attach` puts what it found in the place of ours."""

    name: str
    hosts: dict[str, AttachedHost] = Field(min_length=1)
    left_out: list[str] = Field(default=[])
    """What the experiment says about a datacenter of its own, and what this one does not follow: `consul.version`."""

    def places(self) -> dict[str, list[AgentPlace]]:
        """The agents of each service, at their hosts.

        An agent that another one brings along, like Consul's client beside Nomad, is a guest: `host:NAME` means the
        other one.
        """
        brought = {name: _beside(name) for host in self.hosts.values() for name in host.agents}
        placed: dict[str, list[AgentPlace]] = {}
        for host, one in self.hosts.items():
            for service, role in one.agents.items():
                guest = any(service in brought[other] for other in one.agents)
                placed.setdefault(service, []).append(AgentPlace(host, role, guest=guest))
        return placed


def _beside(service: str) -> frozenset[str]:
    """The services that put an agent on the hosts of this one, in a datacenter of ours."""
    cls = registry.services()[service]
    return frozenset(name for place in cls(cls.Spec()).places() for name in place.beside)
