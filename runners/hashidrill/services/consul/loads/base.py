"""What all loads on Consul share: the agents that they ask."""

from __future__ import annotations

from hashidrill.loads.base import AgentLoad


class ConsulLoad(AgentLoad):
    """A load on Consul's agents."""
