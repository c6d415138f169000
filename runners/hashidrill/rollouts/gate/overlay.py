"""One side of a gate as an overlay of an experiment's datacenter: the configuration that its agents get there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hashidrill.core.util.nested import Keys, leaves, merge

SECTIONS = {
    "consul": {"all": "config", "server": "server_config", "client": "client_config"},
    "nomad": {"all": "config", "server": "server_config", "client": "client_config"},
    "vault": {"all": "config", "server": "config"},
}
"""Where the configuration of which agents stands in the product's part of `datacenter:`."""
_DEFAULTS: dict[str, dict[str, Any]] = {
    "consul": {"telemetry": {"disable_hostname": False}},
    "nomad": {
        "telemetry": {"disable_hostname": False},
        "server": {"heartbeat_grace": "10s", "min_heartbeat_ttl": "10s", "failover_heartbeat_ttl": "5m"},
    },
    "vault": {
        "telemetry": {"disable_hostname": False},
        "storage": {
            "raft": {
                "performance_multiplier": 5,
                "autopilot_reconcile_interval": "10s",
                "autopilot_update_interval": "2s",
            }
        },
    },
}
"""The agents' own defaults of keys that the datacenter under test sets otherwise (`services.PRODUCT.agents`), from the
documentation of Consul 1.22, Nomad 1.10 and Vault 1.21.
"""


def role_of(product: str, settings: Mapping[str, Any], *, alone: bool = True) -> str:
    """Whose configuration this is: `server = true` is Consul's servers', `false` its clients', nothing is everybody's.

    Nomad's has a block for each role, and Vault has servers alone. One that is not `alone` is that of one agent of
    several: then Consul's default counts, and which of Nomad's blocks is enabled.
    """
    said = settings.get("server")
    if product == "consul" and (isinstance(said, bool) or not alone):
        return "server" if said else "client"
    if product == "nomad" and not alone:
        enabled = [
            role for role in ("server", "client") if _has(settings, (role, "enabled")) and settings[role]["enabled"]
        ]
        return enabled[0] if len(enabled) == 1 else "all"
    return "all"


def overlay(
    product: str,
    kept: Mapping[str, Any],
    other: Mapping[str, Any],
    written: Mapping[str, Any],
    *,
    role: str = "all",
    version: str | None = None,
) -> dict[str, Any]:
    """What `experiment.variants.varied` lays over an experiment whose part for this product is `written`.

    `kept` is this side's configuration, `other` that of the other side. Where either of them says something of a key,
    the experiment's own value of it is taken away: a key that only the other side has falls back to the agents' own
    default here, and not to what the experiment, or the datacenter under test, happens to set.
    """
    for path, value in leaves(_DEFAULTS.get(product, {})):
        if _has(other, path) and not _has(kept, path):
            kept = merge(kept, _nested(path, value))
    sections = SECTIONS[product]
    part: dict[str, Any] = {}
    for path in [path for side in (kept, other) for path, _ in leaves(side)]:
        for section in sections.values() if role == "all" else {sections["all"], sections[role]}:
            if _has(written.get(section), path):
                part = merge(part, _nested((section, *path), None))
    if kept:
        part = merge(part, {sections[role]: dict(kept)})
    if version is not None:
        part["version"] = version
    return {"datacenter": {product: part}} if part else {}


def _has(config: Any, path: Keys) -> bool:
    for key in path:
        if not isinstance(config, Mapping) or key not in config:
            return False
        config = config[key]
    return True


def _nested(path: Keys, value: Any) -> dict[str, Any]:
    for key in reversed(path):
        value = {key: value}
    return dict(value)
