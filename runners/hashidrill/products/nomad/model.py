"""Nomad's part of `datacenter:`."""

from typing import Any

from pydantic import Field

from hashidrill.core.experiment.strict import VERSION_PATTERN, Strict


class Nomad(Strict):
    """The Nomad agents of a local datacenter."""

    version: str = Field(default="1.10.5", pattern=VERSION_PATTERN, description="Nomad version, like 1.10.5")
    binary: str | None = Field(default=None, description="Path of a nomad binary to use instead of PATH and cache")
    servers: int = Field(default=3, ge=1, le=9, description="Number of servers")
    clients: int = Field(default=1, ge=0, le=20, description="Number of client agents, each on a host of its own")
    config: dict[str, Any] = Field(default={}, description="Nomad's own configuration keys, for all agents")
    server_config: dict[str, Any] = Field(default={}, description="Nomad's own configuration keys, for servers only")
    client_config: dict[str, Any] = Field(default={}, description="Nomad's own configuration keys, for clients only")
