"""Which services a datacenter has, and the order of their start; its hosts where it is attached; local disks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field, field_validator

from hashidrill.core.errors import UsageError
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.service import AgentPlace, OnEveryHost, after, standing
from hashidrill.core.units import Size

if TYPE_CHECKING:
    from hashidrill.core.protocols.service import Service


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


def running(written: Mapping[str, Any]) -> list[str]:
    """The services of a datacenter that says so: those that it names and does not leave out (`consul: null`).

    Where it names none, those that run by default; all of them where it is attached: which are there is seen there.
    """
    services = registry.services()
    named = [name for name in services if name in written]
    pods = written.get("kubernetes")
    if isinstance(pods, Mapping) and not named:
        return [name for name in services if name in pods] or list(services)
    others = registry.default_services() if written.get("attach") is None else list(services)
    return [name for name in named if written[name] is not None] if named else others


def together(
    parts: Mapping[str, Any], *, spares: int = 0, placed: Mapping[str, Sequence[AgentPlace]] | None = None
) -> list[Service]:
    """Services by their parts of `datacenter:`, in the order of their start, with the guests that others asked for.

    `placed` has the agents of a datacenter that stands already. Raises UsageError where some wait for each other.
    """
    known = {name: registry.services()[name] for name in parts}
    if placed is not None:
        known = {name: standing(cls, placed.get(name, ())) for name, cls in known.items()}
    in_order = sorted(parts, key=lambda name: isinstance(known[name], OnEveryHost))
    alone = [known[name](parts[name], spares=spares) for name in in_order]
    asked = {name: _hosts_of_guests(known[name], alone) for name in parts}
    built = [known[s.name](s.spec, spares=spares, guests=asked[s.name]) if asked[s.name] else s for s in alone]
    ordered: list[Service] = []
    while built:
        waiting = {service.name for service in built}
        ready = [service for service in built if not waiting & after(service)]
        if not ready:
            raise UsageError(f"the services {', '.join(sorted(waiting))} each start after another of them (`after`)")
        ordered += ready
        built = [service for service in built if service not in ready]
    return ordered


def _hosts_of_guests(cls: type[Service], services: Sequence[Service]) -> list[str]:
    """Where others asked for an agent of it; every host of others where it wants to be on each."""
    everywhere = isinstance(cls, OnEveryHost)
    wanted = [
        place.host
        for service in services
        for place in service.places()
        if cls.name in place.beside or (everywhere and service.name != cls.name)
    ]
    return list(dict.fromkeys(wanted)) if everywhere else wanted


LEAST_DISK, LARGEST_DISK = Size("1MB"), Size("64GB")
"""It lies in memory: no machine for drills has more of it for one host."""


class Disk(Strict):
    """The disk of each host. With a size, it is a small file system in memory that can really fill up."""

    size: Size | None = Field(default=None, description="Size of the file system, like 64MiB; 1MB to 64GB")

    @field_validator("size")
    @classmethod
    def _limited(cls, value: Size | None) -> Size | None:
        if value is not None and value < LEAST_DISK:
            raise ValueError(f"a disk needs at least {LEAST_DISK} (to the kernel, a size of 0 means no limit)")
        if value is not None and value > LARGEST_DISK:
            raise ValueError(f"a disk of limited size lies in memory: give it at most {LARGEST_DISK}")
        return value
