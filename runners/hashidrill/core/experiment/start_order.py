"""In which order services start, and which of them put an agent on the hosts of another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hashidrill.core.errors import UsageError
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.service import standing

if TYPE_CHECKING:
    from hashidrill.core.protocols.service import AgentPlace, Service


def together(
    parts: Mapping[str, Any], *, spares: int = 0, placed: Mapping[str, Sequence[AgentPlace]] | None = None
) -> list[Service]:
    """Services by their parts of `datacenter:`, in the order of their start, with the guests that others asked for.

    `placed` has the agents of a datacenter that stands already. Raises UsageError where some wait for each other.
    """
    known = registry.services()
    if placed is not None:
        known = {name: standing(cls, placed.get(name, ())) for name, cls in known.items()}
    alone = [known[name](part, spares=spares) for name, part in parts.items()]
    asked = {name: _hosts_of_guests(known[name], alone) for name in parts}
    built = [known[s.name](s.spec, spares=spares, guests=asked[s.name]) if asked[s.name] else s for s in alone]
    ordered: list[Service] = []
    while built:
        waiting = {service.name for service in built}
        ready = [service for service in built if not waiting & {*service.after}]
        if not ready:
            raise UsageError(f"the services {', '.join(sorted(waiting))} each start after another of them (`after`)")
        ordered += ready
        built = [service for service in built if service not in ready]
    return ordered


def _hosts_of_guests(cls: type[Service], services: Sequence[Service]) -> list[str]:
    """Where others asked for an agent of it; every host of others where it wants to be on each."""
    wanted = [
        place.host
        for service in services
        for place in service.places()
        if cls.name in place.beside or (cls.everywhere and service.name != cls.name)
    ]
    return list(dict.fromkeys(wanted)) if cls.everywhere else wanted
