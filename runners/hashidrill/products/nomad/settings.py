"""Nomad's configuration: what local agents get, what an agent shows, and Nomad's own refusals.

A local client runs as an ordinary user: it uses no cgroups and mounts nothing, several clients share one machine, and
raw_exec is the only driver that runs tasks. Keys are those of the file and of `config` in /v1/agent/self (1.10.5).
Nomad 1.10.5 silently ignores unknown keys: `serve = 3` at the top, `heartbeat_grac` in a block. Nomad's binary contains
the known keys, as the tags of the Go structures that it decodes into.
"""

import json
import mmap
import re
import resource
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hashidrill.core.protocols.abc import Host
from hashidrill.core.protocols.registry import near
from hashidrill.core.protocols.service import Site
from hashidrill.core.units import seconds
from hashidrill.core.util.commands import ask
from hashidrill.core.util.nested import Keys, dotted, leaves, merge
from hashidrill.products.nomad.api import call
from hashidrill.products.nomad.model import Nomad

FIXED = frozenset(
    {
        "name",
        "region",
        "datacenter",
        "data_dir",
        "bind_addr",
        "advertise",
        "addresses",
        "ports",
        "tls",
        "acl",
        "server.enabled",
        "server.bootstrap_expect",
        "server.server_join",
        "server.encrypt",
        "client.enabled",
        "client.server_join",
        "client.network_interface",
    }
)
"""Settings that the datacenter under test relies on: another value would remove the agent from it."""
_NS = 1_000_000_000


def fixed(settings: Mapping[str, Any]) -> list[str]:
    keys = {dotted(path) for path, _ in leaves(settings)}
    return sorted(one for one in FIXED if any(key == one or key.startswith(f"{one}.") for key in keys))


def shown(about: Mapping[str, Any], path: Keys) -> Any:
    """The agent's own value for a key, `Server.HeartbeatGrace` for `server.heartbeat_grace`; None if not shown."""
    here: Any = about
    for key in path:
        if not isinstance(here, Mapping):
            return None
        name = next((one for one in here if _plain(one) == _plain(key)), None)
        if name is None:
            return None
        here = here[name]
    return here


async def reported(host: Host) -> Mapping[str, Any]:
    """`config` of the agent of this host. Raises FaultError."""
    said: Mapping[str, Any] = (await call(host, "GET", "/v1/agent/self")).json()["config"]
    return said


def reported_as(report: Mapping[str, Any], key: str) -> Any:
    return shown(report, tuple(key.split(".")))


def agrees_with(key: str, asked: Any, seen: Any) -> bool | None:  # noqa: ARG001 - Consul's uses the key
    return agrees(asked, seen)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def agrees(asked: Any, seen: Any) -> bool | None:
    """Whether the shown value is the configured one; None if the two cannot be compared."""
    if seen is None:
        return None
    if isinstance(asked, bool) or isinstance(seen, bool):
        return asked == seen if isinstance(asked, bool) and isinstance(seen, bool) else None
    lengths = _seconds(asked), _seconds(seen)
    if isinstance(asked, str) and None not in lengths:
        return lengths[0] == lengths[1]
    if isinstance(asked, (int, float)) and isinstance(seen, (int, float)):
        return asked == seen
    return str(asked).lower() == str(seen).lower() if isinstance(asked, str) and isinstance(seen, str) else None


def _seconds(value: Any) -> float | None:
    """A duration in seconds; Go shows a duration as a number of nanoseconds."""
    if isinstance(value, str):
        return seconds(value)
    return round(value / _NS, 9) if isinstance(value, int) else None


HTTP_PORT, RPC_PORT, SERF_PORT = 4646, 4647, 4648

_BASE: dict[str, Any] = {
    "datacenter": "drill",
    "bind_addr": "0.0.0.0",  # noqa: S104 - inside the sandbox's own network
    "disable_update_check": True,
    "log_level": "INFO",
    "enable_debug": True,  # serves profiles
    "telemetry": {"disable_hostname": True, "collection_interval": "1s"},
    # see products.consul.settings: one load generator stands for many clients
    "limits": {"http_max_conns_per_client": min(8_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1] // 2)},
    # Nomad uses a Consul agent on the same host, if there is one, but finds its servers without Consul
    "consul": {"server_auto_join": False, "client_auto_join": False},
}
_SERVER: dict[str, Any] = {
    "enabled": True,
    "raft_multiplier": 1,
    # For a lab: a silent node counts as down after 5 to 7 s; with Nomad's own values, after 20 to 30 s.
    "heartbeat_grace": "3s",
    "min_heartbeat_ttl": "2s",
    # The time that nodes have to find a new leader before they count as down (Nomad's own value: 5 min).
    "failover_heartbeat_ttl": "15s",
}
_CLIENT: dict[str, Any] = {
    "enabled": True,
    "network_interface": "eth0",
    # A host has a part of the machine. Only the scheduler uses these values; tasks are not limited to them.
    "cpu_total_compute": 4_000,
    "memory_total_mb": 4_096,
    "cpu_disable_dmidecode": True,
    # the machine's disk is not the host's: others may fill it, so it must not cause garbage collection
    "gc_disk_usage_threshold": 99,
    "gc_inode_usage_threshold": 99,
    # there is no cloud metadata here, and asking takes seconds
    "options": {
        "fingerprint.denylist": "env_aws,env_azure,env_digitalocean,env_gce,cni,plugins_cni,bridge",
        "driver.allowlist": "raw_exec",
    },
}
_RAW_EXEC: dict[str, Any] = {"raw_exec": [{"config": {"enabled": True}}]}


def nomad_config(spec: Nomad, site: Site, servers: Sequence[str]) -> dict[str, Any]:
    """The whole configuration of one agent. Keys from the YAML override hashidrill's, at each depth."""
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
    """The folder of an agent's state on its host's disk: `Site.data` of the agent."""
    return disk / "nomad"


def nomad_command(binary: Path, config_file: Path) -> list[str]:
    return [str(binary), "agent", f"-config={config_file}"]


_TAG = re.compile(rb'hcl:"([a-z][a-z0-9_]*)')
_CHOSEN = frozenset(
    {
        "options",
        "meta",
        "host_volume",
        "host_network",
        "chroot_env",
        "plugin",
        "config",
        "http_api_response_headers",
        "vault",
        "consul",
        "template",
    }
)
"""Below these blocks, the author of the file or another program chooses the names."""
_WARNING = re.compile(r"^WARNING: .*$|^Configuration is (?:in)?valid!?$", re.MULTILINE)


def refusal(binary: Path, files: Sequence[Path], settings: Mapping[str, Any], work: Path) -> str:
    """Nomad's own message if it refuses these files, read in this order, or the keys that it would ignore; else "".

    The files may be only a part of a configuration: a further file, below `work`, adds what every agent needs.
    """
    stand_ins: dict[str, Any] = {} if settings.get("data_dir") else {"data_dir": str(work / "data")}
    if not any(_enabled(settings.get(role)) for role in ("server", "client")):
        stand_ins["server"] = {"enabled": True, "bootstrap_expect": 1}
    more = work / "stand-ins.json"
    more.write_text(json.dumps(stand_ins))
    answer = ask([str(binary), "config", "validate", *map(str, files), str(more)])
    if answer.code != 0:
        return "\n".join(line for line in _WARNING.sub("", answer.words).splitlines() if line.strip())
    return "\n".join(unknown_keys(settings, known_keys(binary)))


def known_keys(binary: Path) -> frozenset[str]:
    """The names of all keys that this Nomad decodes, of agents and of jobs."""
    with binary.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        return frozenset(found[1].decode() for found in _TAG.finditer(text))


def unknown_keys(settings: Mapping[str, Any], known: frozenset[str]) -> list[str]:
    """One line for each key that Nomad does not know; case is ignored, as in Nomad."""
    said = []
    for path, _ in leaves(settings):
        for depth, name in enumerate(path):
            if name.lower() not in known:
                key = ".".join(path[: depth + 1])
                said.append(f"Nomad does not know {key}, and would ignore it: {near(name, sorted(known))}")
                break
            if name in _CHOSEN:
                break
    return list(dict.fromkeys(said))


def _enabled(block: Any) -> bool:
    return isinstance(block, Mapping) and block.get("enabled") is True
