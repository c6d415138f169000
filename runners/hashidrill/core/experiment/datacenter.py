"""A datacenter's services and their start order, its hosts if it is attached, and local disks."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field, field_validator

from hashidrill.core.errors import UsageError
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.service import AgentPlace, OnEveryHost, Service, after, standing
from hashidrill.core.units import Size


class AttachedHost(Strict):
    """A discovered host of an attached datacenter."""

    address: str
    agents: dict[str, str]
    """The role of each of its agents, by service."""


class Attached(Strict):
    """An existing datacenter. Users do not write this: `--attach` replaces the experiment's datacenter with it."""

    name: str
    hosts: dict[str, AttachedHost] = Field(min_length=1)
    left_out: list[str] = Field(default=[])
    """Settings of the experiment that this datacenter ignores, like `consul.version`."""

    def places(self) -> dict[str, list[AgentPlace]]:
        """The agents of each service, at their hosts.

        An agent that another service brings along, like Consul's client next to Nomad, is a guest: `host:NAME` then
        means the other service's agent.
        """
        brought = {name: _beside(name) for host in self.hosts.values() for name in host.agents}
        placed: dict[str, list[AgentPlace]] = {}
        for host, one in self.hosts.items():
            for service, role in one.agents.items():
                guest = any(service in brought[other] for other in one.agents)
                placed.setdefault(service, []).append(AgentPlace(host, role, guest=guest))
        return placed


def _beside(service: str) -> frozenset[str]:
    cls = registry.services()[service]
    return frozenset(name for place in cls(cls.Spec()).places() for name in place.beside)


def running(written: Mapping[str, Any]) -> list[str]:
    """The names of the services that run: those that `written` names, without those set to null (`consul: null`).

    If it names no service, the default services run. In an attached datacenter, every service that can be attached may
    run then, because discovery finds them.
    """
    services = registry.services()
    named = [name for name in services if name in written]
    pods = written.get("kubernetes")
    existing = [name for name in services if name in registry.entries(registry.ATTACH)]
    if isinstance(pods, Mapping) and not named:
        return [name for name in services if name in pods] or existing
    others = registry.default_services() if written.get("attach") is None else existing
    return [name for name in named if written[name] is not None] if named else others


def together(
    parts: Mapping[str, Any], *, spares: int = 0, placed: Mapping[str, Sequence[AgentPlace]] | None = None
) -> list[Service]:
    """The services by their parts of `datacenter:`, in start order, with the guests that other services need.

    `placed` has the agents of an existing datacenter. Raises UsageError if services wait for each other in a circle.
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
    everywhere = isinstance(cls, OnEveryHost)
    wanted = [
        place.host
        for service in services
        for place in service.places()
        if cls.name in place.beside or (everywhere and service.name != cls.name)
    ]
    return list(dict.fromkeys(wanted)) if everywhere else wanted


LEAST_DISK, LARGEST_DISK = Size("1MB"), Size("64GB")
"""Limits of a disk's size. The disk is in memory, and machines have no more than this for one host."""


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
