"""How a Consul agent of the local datacenter is configured and started."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hashidrill.core.util.nested import merge
from hashidrill.products.consul.model import Consul

HTTP_PORT = 8500

_BASE: dict[str, Any] = {
    "datacenter": "drill",
    "client_addr": "0.0.0.0",  # noqa: S104 - inside the sandbox's own network
    "disable_update_check": True,
    "retry_interval": "250ms",
    "log_level": "INFO",
    "telemetry": {"disable_hostname": True},
    # One load generator stands for many clients: the default of 200 connections an address would shed what it sends
    # as soon as the datacenter stalls. More than the limit on open files makes the agent exit.
    "limits": {"http_max_conns_per_client": min(8_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1] // 2)},
    "ports": {"grpc": -1},
}


def consul_config(
    spec: Consul, *, name: str, role: str, address: str, servers: Sequence[str], data: Path
) -> dict[str, Any]:
    """The whole configuration of one agent. Keys from the YAML win over ours, deep down."""
    config = merge(
        _BASE,
        {"node_name": name, "bind_addr": address, "retry_join": list(servers), "data_dir": str(data)},
    )
    if role == "server":
        config = merge(config, {"server": True, "bootstrap_expect": len(servers), "ui_config": {"enabled": True}})
    elif role == "spare":  # it joins a datacenter that has bootstrapped
        config = merge(config, {"server": True, "ui_config": {"enabled": True}})
    config = merge(config, spec.config)
    return merge(config, spec.client_config if role == "client" else spec.server_config)


def consul_command(binary: Path, config_file: Path) -> list[str]:
    return [str(binary), "agent", f"-config-file={config_file}"]
