"""Nomad's configuration keys, as its file has them and as an agent shows them (`config` of /v1/agent/self, 1.10.5)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hashidrill.core.util.nested import Keys, dotted, leaves
from hashidrill.products.nomad.api import call
from hashidrill.products.nomad.durations import seconds

if TYPE_CHECKING:
    from hashidrill.core.protocols.abc import Host

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
"""What the datacenter under test is built on: another value would take the agent out of it."""
_NS = 1_000_000_000


def fixed(settings: Mapping[str, Any]) -> list[str]:
    """Those of FIXED that it would change."""
    keys = {dotted(path) for path, _ in leaves(settings)}
    return sorted(one for one in FIXED if any(key == one or key.startswith(f"{one}.") for key in keys))


def shown(about: Mapping[str, Any], path: Keys) -> Any:
    """What the agent shows for that key, `Server.HeartbeatGrace` for `server.heartbeat_grace`; None for nothing."""
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
    """As `shown`."""
    return shown(report, tuple(key.split(".")))


def agrees_with(key: str, asked: Any, seen: Any) -> bool | None:  # noqa: ARG001 - Consul's is by the key
    """As `agrees`."""
    return agrees(asked, seen)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def agrees(asked: Any, seen: Any) -> bool | None:
    """Whether what is shown is what was asked for; None where the two cannot be compared."""
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
    """A length of time, in seconds: Go shows a number of nanoseconds."""
    if isinstance(value, str):
        return seconds(value)
    return round(value / _NS, 9) if isinstance(value, int) else None
