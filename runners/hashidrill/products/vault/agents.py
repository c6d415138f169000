"""How a Vault server of the local datacenter is configured and started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hashidrill.core.protocols.service import Site
from hashidrill.core.util.nested import merge
from hashidrill.products.vault.model import Vault

PORT, CLUSTER_PORT = 8200, 8201
_CONSUL_PORT = 8500


def consul_for(site: Site) -> str:
    """The Consul agent on this server's own host, where Vault's documentation wants it; "" where there is none."""
    return f"127.0.0.1:{_CONSUL_PORT}" if "consul" in site.roles else ""


def vault_config(
    spec: Vault, *, name: str, address: str, peers: Sequence[str], data: Path, consul: str = ""
) -> dict[str, Any]:
    """The whole configuration of one server; `peers` are the addresses of the others. Keys from the YAML win over ours.

    `performance_multiplier` 1 is Consul's default timing; without it Vault elects five times as slowly. Autopilot looks
    ten times as often as by default, or the servers would be voters 20 s after their start at the earliest.
    """
    config: dict[str, Any] = {
        "disable_mlock": True,  # Vault's advice for integrated storage; and the sandbox may not lock memory
        "ui": True,
        "log_level": "info",
        "api_addr": f"http://{address}:{PORT}",
        "cluster_addr": f"https://{address}:{CLUSTER_PORT}",
        "listener": {
            "tcp": {
                "address": f"0.0.0.0:{PORT}",
                "cluster_address": f"0.0.0.0:{CLUSTER_PORT}",
                "tls_disable": True,
                "telemetry": {"unauthenticated_metrics_access": True},  # a sealed server knows no token
            }
        },
        "telemetry": {"disable_hostname": True},
        "storage": _storage(spec, name=name, peers=peers, data=data, consul=consul),
    }
    return merge(config, spec.config)


def _storage(spec: Vault, *, name: str, peers: Sequence[str], data: Path, consul: str) -> Mapping[str, Any]:
    if spec.storage == "consul":
        return {"consul": {"address": consul, "path": "vault/"}}
    join = [{"leader_api_addr": f"http://{peer}:{PORT}"} for peer in peers]
    raft = {
        "path": str(data),
        "node_id": name,
        "performance_multiplier": 1,
        "autopilot_reconcile_interval": "1s",
        "autopilot_update_interval": "500ms",
    }
    return {"raft": raft | ({"retry_join": join} if join else {})}


def vault_command(binary: Path, config_file: Path) -> list[str]:
    return [str(binary), "server", f"-config={config_file}"]
