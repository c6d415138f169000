"""Consul's configuration: what local agents get, what a reload can change, what an agent reports, and `consul
validate`.

The tables follow the sources of 1.10.3 and 1.22.2 (agent.reloadConfigInternal and its callees), because the
documentation names only some of the keys.
"""

import json
import re
import resource
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hashidrill.core import units
from hashidrill.core.protocols.abc import Host
from hashidrill.core.util.commands import ask
from hashidrill.core.util.nested import Keys, dotted, leaves, merge
from hashidrill.products.consul.api import agent_self
from hashidrill.products.consul.model import Consul

_RELOADABLE: dict[str, tuple[int, ...]] = {
    "log_level": (1, 10),
    "raft_snapshot_threshold": (1, 10),
    "raft_snapshot_interval": (1, 10),
    "raft_trailing_logs": (1, 10),
    "limits.http_max_conns_per_client": (1, 10),
    "limits.rpc_rate": (1, 10),
    "limits.rpc_max_burst": (1, 10),
    "limits.rpc_max_conns_per_client": (1, 10),
    "cache": (1, 10),
    "dns_config": (1, 10),
    "recursors": (1, 10),
    "telemetry.prefix_filter": (1, 10),
    "telemetry.filter_default": (1, 10),
    "discard_check_output": (1, 10),
    "node_meta": (1, 10),
    "services": (1, 10),
    "service": (1, 10),
    "checks": (1, 10),
    "check": (1, 10),
    "watches": (1, 10),
    "acl.tokens": (1, 10),
    "config_entries.bootstrap": (1, 10),
    "limits.request_limits": (1, 16),
    "limits.rpc_client_timeout": (1, 17),
    "enable_debug": (1, 17),
}
"""Keys, each with all keys below it, and the first version in which a reload is known to suffice."""

FIXED = frozenset(
    {
        "node_name",
        "node_id",
        "data_dir",
        "datacenter",
        "server",
        "bootstrap",
        "bootstrap_expect",
        "bind_addr",
        "client_addr",
        "addresses",
        "advertise_addr",
        "ports",
        "retry_join",
        "encrypt",
    }
)
"""Settings that the datacenter under test relies on: another value would remove the agent from it."""

_SHOWN_AS = {
    "limits.rpc_rate": "RPCRateLimit",
    "leave_on_terminate": "LeaveOnTerm",
    "skip_leave_on_interrupt": "SkipLeaveOnInt",
    "performance.raft_multiplier": "ConsulRaftElectionTimeout",
    "telemetry.filter_default": "Telemetry.FilterDefault",
    "log_level": "Logging.LogLevel",
}
"""Settings that Consul shows under a name that differs from their key."""

_NAMELESS = frozenset({"limits", "performance"})
"""Groups of keys whose own name Consul leaves out when it shows their settings."""
_MODES = {"disabled": 0, "permissive": 1, "enforcing": 2}
_NO_LIMIT = 1e300
_RAFT_ELECTION_S = 1.0
"""Consul's election timeout at raft_multiplier 1."""


def needs_restart(settings: Mapping[str, Any], version: tuple[int, ...] | None = None) -> list[str]:
    """The keys for which a reload is not enough in that version; without a version, in every version."""
    return [dotted(path) for path, _ in leaves(settings) if not _reloads(dotted(path), version)]


def _reloads(key: str, version: tuple[int, ...] | None) -> bool:
    return any(
        (key == known or key.startswith(f"{known}.")) and (version is None or version >= since)
        for known, since in _RELOADABLE.items()
    )


def shown(debug_config: Mapping[str, Any], path: Keys, *, whole: bool = False) -> Any:
    """The value that `DebugConfig` of /v1/agent/self shows for that key; None unless exactly one setting matches.

    `whole` matches only the full name: `audit.enabled` must not match another setting called Enabled.

    Consul names `rpc.enable_streaming` RPCConfig.EnableStreaming, `limits.http_max_conns_per_client`
    HTTPMaxConnsPerClient, `log_level` Logging.LogLevel.
    """
    there = list(leaves(debug_config))
    if (name := _SHOWN_AS.get(dotted(path))) is not None:
        return _only([value for at, value in there if dotted(at) == name])
    wanted = _plain("".join(path[1:] if len(path) > 1 and path[0] in _NAMELESS else path))
    exact = [value for at, value in there if _plain("".join(at)) == wanted]
    return _only(exact if exact or whole else [value for at, value in there if _plain(at[-1]) == wanted])


def _only(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else None


def _plain(name: str) -> str:
    """Normalises names: `RPCConfig` and `rpc`, `UIConfig` and `ui_config`, `dns_config` and `DNS` are the same."""
    return re.sub(r"[^a-z0-9]", "", re.sub(r"config|settings", "", name.lower()))


async def reported(host: Host) -> Mapping[str, Any]:
    """`DebugConfig` of the agent of this host, without its random id. Raises FaultError."""
    return {name: value for name, value in (await agent_self(host))["DebugConfig"].items() if name != "NodeID"}


def reported_as(report: Mapping[str, Any], key: str) -> Any:
    """Like `shown`, matched only by the full name: `audit.enabled` must not match another setting called Enabled."""
    return shown(report, tuple(key.lower().split(".")), whole=True)


def agrees(key: str, asked: Any, seen: Any) -> bool | None:
    """Whether the shown value is the configured one; None when the two cannot be compared."""
    if key == "performance.raft_multiplier" and isinstance(seen, str):
        asked = f"{(asked or 5) * _RAFT_ELECTION_S}s"
    if isinstance(asked, str) and asked in _MODES and isinstance(seen, int):
        asked = _MODES[asked]
    if isinstance(asked, bool) or isinstance(seen, bool):
        return asked == seen if isinstance(asked, bool) and isinstance(seen, bool) else None
    if isinstance(asked, (int, float)) and isinstance(seen, (int, float)):
        return asked == seen or (_unlimited(asked) and _unlimited(seen))
    if isinstance(asked, str) and isinstance(seen, str):
        lengths = units.seconds(asked), units.seconds(seen)
        return lengths[0] == lengths[1] if None not in lengths else asked.lower() == seen.lower()
    return asked == seen if _texts(asked) and _texts(seen) else None


agrees_with = agrees


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _unlimited(number: float) -> bool:
    return number < 0 or number > _NO_LIMIT


HTTP_PORT = 8500

_BASE: dict[str, Any] = {
    "datacenter": "drill",
    "client_addr": "0.0.0.0",  # noqa: S104 - inside the sandbox's own network
    "disable_update_check": True,
    "retry_interval": "250ms",
    "log_level": "INFO",
    "enable_debug": True,  # serves profiles; it changes nothing else in an agent without ACLs
    "telemetry": {"disable_hostname": True},
    # One load generator stands for many clients: the default of 200 connections an address would shed what it sends
    # as soon as the datacenter stalls. More than the limit on open files makes the agent exit.
    "limits": {"http_max_conns_per_client": min(8_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1] // 2)},
    "ports": {"grpc": -1},
}


def consul_config(
    spec: Consul, *, name: str, role: str, address: str, servers: Sequence[str], data: Path
) -> dict[str, Any]:
    """The whole configuration of one agent. Keys from the YAML override hashidrill's, at each depth."""
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


_OF_THIS_MACHINE = ("bind_addr", "client_addr", "advertise_addr", "advertise_addr_wan", "serf_lan", "serf_wan")
"""Keys that may hold a template, `{{ GetInterfaceIP "eth1" }}`, that only the agent's own machine can fill in."""


def refusal(binary: Path, files: Sequence[Path], settings: Mapping[str, Any], work: Path) -> str:
    """Consul's own message if it refuses these files, read in this order; "" if it accepts them.

    The files may be only a part of a configuration: a further file, below `work`, adds what every agent needs.
    """
    stand_ins: dict[str, Any] = {} if settings.get("data_dir") else {"data_dir": str(work / "data")}
    stand_ins |= {key: "127.0.0.1" for key in _OF_THIS_MACHINE if "{{" in str(settings.get(key, ""))}
    more = work / "stand-ins.json"
    more.write_text(json.dumps(stand_ins))
    answer = ask([str(binary), "validate", *map(str, files), str(more)])
    return "" if answer.code == 0 else answer.words.replace("Config validation failed: ", "")
