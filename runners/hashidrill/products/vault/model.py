"""Vault's part of `datacenter:`."""

from typing import Any, Literal

from pydantic import Field

from hashidrill.core.experiment.strict import VERSION_PATTERN, Strict


class Vault(Strict):
    """The Vault servers of a local datacenter."""

    version: str = Field(default="1.21.0", pattern=VERSION_PATTERN, description="Vault version, like 1.21.0")
    binary: str | None = Field(default=None, description="Path of a vault binary to use instead of PATH and cache")
    servers: int = Field(default=3, ge=1, le=9, description="Number of servers")
    storage: Literal["raft", "consul"] = Field(
        default="raft",
        description="Where Vault keeps its data: its own Raft, or the Consul of this datacenter, through an agent on "
        "each host",
    )
    unseal: Literal["auto", "never"] = Field(
        default="auto",
        description="Whether hashidrill unseals servers that restart during a run, as an auto-unseal would",
    )
    config: dict[str, Any] = Field(default={}, description="Vault's own configuration keys, for all servers")
