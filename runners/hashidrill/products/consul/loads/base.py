"""What all loads on Consul share: the agents that they ask, and where what they leave is."""

from __future__ import annotations

from hashidrill.core.loads.base import AgentLoad
from hashidrill.core.protocols.rights import Left
from hashidrill.products.consul.keys import BELOW, KEY, SERVICE


class ConsulLoad(AgentLoad):
    """A load on Consul's agents."""


def left(place: str) -> Left:
    """A key that a load leaves; or all of a folder, where `place` ends in a slash."""
    return Left(SERVICE, BELOW if place.endswith("/") else KEY, place)
