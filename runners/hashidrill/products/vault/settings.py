"""Vault's configuration: what local servers get, what a server reports, and Vault's own refusals.

A report is the answer of sys/config/state/sanitized (1.21.0), which has the keys of the server's file. Vault 1.21 only
warns of an unknown key; hashidrill refuses it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hashidrill.core.protocols.abc import Host
from hashidrill.core.protocols.service import Site
from hashidrill.core.units import seconds
from hashidrill.core.util.commands import ask
from hashidrill.core.util.nested import merge
from hashidrill.core.util.safe_json import parse
from hashidrill.products.vault.api import CLUSTER_PORT, PORT
from hashidrill.products.vault.model import Vault
from hashidrill.products.vault.operator import VaultOperator


async def reported(host: Host) -> Mapping[str, Any]:
    """The active server's report: a standby forwards the query to it. Raises FaultError."""
    said = (await host.use(VaultOperator).ask("GET", "sys/config/state/sanitized")).data.get("data")
    return said if isinstance(said, Mapping) else {}


def reported_as(report: Mapping[str, Any], key: str) -> Any:
    """The value of a top-level key; blocks are not reported as in the file."""
    return report.get(key)


def agrees_with(key: str, asked: Any, seen: Any) -> bool | None:  # noqa: ARG001 - Consul's uses the key
    """Compares durations in seconds, as Vault reports them."""
    if isinstance(asked, str) and isinstance(seen, int) and not isinstance(seen, bool):
        return seconds(asked) == seen
    if isinstance(asked, str) and isinstance(seen, str):
        return asked.lower() == seen.lower()
    return bool(asked == seen) if type(asked) is type(seen) else None


_CONSUL_PORT = 8500


def consul_for(site: Site) -> str:
    """The Consul agent on this server's own host, as Vault's documentation advises; "" without one."""
    return f"127.0.0.1:{_CONSUL_PORT}" if "consul" in site.roles else ""


def vault_config(
    spec: Vault, *, name: str, address: str, peers: Sequence[str], data: Path, consul: str = ""
) -> dict[str, Any]:
    """The whole configuration of one server; `peers` are the addresses of the others. Keys from the YAML override
    hashidrill's.

    `performance_multiplier` 1 gives the fastest elections; with the default they take five times as long. Autopilot
    checks ten times as often as by default; otherwise the servers would become voters 20 s after their start at the
    earliest.
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
                "telemetry": {"unauthenticated_metrics_access": True},  # a sealed server cannot check a token
                "profiling": {"unauthenticated_pprof_access": True},  # as above
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


_REACHES_OUT = ("ha_storage", "seal", "service_registration", "backend", "ha_backend")
"""Blocks that `diagnose` must not see: to parse a configuration, it must not open or call the user's systems."""
_PARSED = "Parse Configuration"
_STAND_INS: dict[str, Any] = {"storage": {"inmem": {}}, "disable_mlock": True}


def refusal(binary: Path, files: Sequence[Path], settings: Mapping[str, Any], work: Path) -> str:
    """Vault's own message if it refuses these files, read in this order, or ignores some of their keys; else "".

    An additional last file, below `work`, keeps Vault from opening the storage that the other files name.
    """
    if any(key in settings for key in _REACHES_OUT):
        kept = work / "kept.json"
        kept.write_text(json.dumps({key: value for key, value in settings.items() if key not in _REACHES_OUT}))
        files = [kept]
    more = work / "stand-ins.json"
    more.write_text(json.dumps(_STAND_INS))
    skip = [f"-skip={part}" for part in ("listener", "storage", "autounseal")]
    configs = [f"-config={file}" for file in [*files, more]]
    answer = ask([str(binary), "operator", "diagnose", "-format=json", *skip, *configs])
    try:
        found = parse(answer.output)
        [parsed] = [part for part in found["children"] if part["name"] == _PARSED]
    except (ValueError, KeyError, TypeError):
        return answer.words or f"vault operator diagnose ended with code {answer.code} and said nothing"
    said = [*([parsed["message"]] if parsed.get("status") == "fail" else []), *(parsed.get("warnings") or [])]
    return "\n".join(re.sub(r"^Could not parse configuration: ", "", line) for line in said)
