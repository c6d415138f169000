"""How a Nomad agent of the local datacenter is configured and started.

A client runs as an ordinary user: then it uses no cgroups and mounts nothing, and several of them share one machine. So
the one driver that runs tasks is raw_exec.
"""

from __future__ import annotations

import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hashidrill.core.protocols.service import Site
from hashidrill.core.util.nested import merge
from hashidrill.products.nomad.model import Nomad

HTTP_PORT, RPC_PORT, SERF_PORT = 4646, 4647, 4648

_BASE: dict[str, Any] = {
    "datacenter": "drill",
    "bind_addr": "0.0.0.0",  # noqa: S104 - inside the sandbox's own network
    "disable_update_check": True,
    "log_level": "INFO",
    "telemetry": {"disable_hostname": True, "collection_interval": "1s"},
    # see services.consul.agents: one load generator stands for many clients
    "limits": {"http_max_conns_per_client": min(8_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1] // 2)},
    # a Consul agent on the same host is used where there is one; Nomad's servers are known without it
    "consul": {"server_auto_join": False, "client_auto_join": False},
}
_SERVER: dict[str, Any] = {
    "enabled": True,
    "raft_multiplier": 1,
    # A lab's: a node that says nothing counts as down after 5 to 7 s, with Nomad's own values after 20 to 30 s.
    "heartbeat_grace": "3s",
    "min_heartbeat_ttl": "2s",
    # The same after a change of leaders (Nomad: 5 min). Every node must have found the new leader by then.
    "failover_heartbeat_ttl": "15s",
}
_CLIENT: dict[str, Any] = {
    "enabled": True,
    "network_interface": "eth0",
    # A host has a part of the machine. Nothing holds tasks to it: it is what the scheduler places by.
    "cpu_total_compute": 4_000,
    "memory_total_mb": 4_096,
    "cpu_disable_dmidecode": True,
    # the machine's disk is not the host's: allocations are not collected because others have filled it
    "gc_disk_usage_threshold": 99,
    "gc_inode_usage_threshold": 99,
    # nobody answers for a cloud's metadata in here, and asking takes seconds
    "options": {
        "fingerprint.denylist": "env_aws,env_azure,env_digitalocean,env_gce,cni,plugins_cni,bridge",
        "driver.allowlist": "raw_exec",
    },
}
_RAW_EXEC: dict[str, Any] = {"raw_exec": [{"config": {"enabled": True}}]}


def nomad_config(spec: Nomad, site: Site, servers: Sequence[str]) -> dict[str, Any]:
    """The whole configuration of one agent. Keys from the YAML win over ours, deep down."""
    addresses = dict.fromkeys(("http", "rpc", "serf"), site.address)
    config = merge(_BASE, {"name": site.host, "data_dir": str(site.data), "advertise": addresses})
    if site.role == "client":
        join = {"retry_join": [f"{server}:{RPC_PORT}" for server in servers], "retry_interval": "250ms"}
        config |= {"client": _CLIENT | {"server_join": join}, "plugin": _RAW_EXEC}
    else:
        join = {"retry_join": [f"{server}:{SERF_PORT}" for server in servers], "retry_interval": "250ms"}
        config |= {"server": _SERVER | {"bootstrap_expect": len(servers), "server_join": join}}
    config = merge(config, spec.config)
    return merge(config, spec.client_config if site.role == "client" else spec.server_config)


def data_dir(disk: Path) -> Path:
    """Where an agent keeps its state, on its host's disk: `Site.data` of the agent."""
    return disk / "nomad"


def nomad_command(binary: Path, config_file: Path) -> list[str]:
    return [str(binary), "agent", f"-config={config_file}"]
