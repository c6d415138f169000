"""Vault's configuration as a server reports it (sys/config/state/sanitized, 1.21.0): by the keys of its file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hashidrill.products.nomad.durations import seconds
from hashidrill.products.vault.operator import VaultOperator

if TYPE_CHECKING:
    from hashidrill.core.protocols.abc import Host


async def reported(host: Host) -> Mapping[str, Any]:
    """Of the active server: a standby passes the question on to it. Raises FaultError."""
    said = (await host.use(VaultOperator).ask("GET", "sys/config/state/sanitized")).data.get("data")
    return said if isinstance(said, Mapping) else {}


def reported_as(report: Mapping[str, Any], key: str) -> Any:
    """Of a key at the top; blocks are not reported as they stand in the file."""
    return report.get(key)


def agrees_with(key: str, asked: Any, seen: Any) -> bool | None:  # noqa: ARG001 - Consul's is by the key
    """Lengths of time are reported in seconds."""
    if isinstance(asked, str) and isinstance(seen, int) and not isinstance(seen, bool):
        return seconds(asked) == seen
    if isinstance(asked, str) and isinstance(seen, str):
        return asked.lower() == seen.lower()
    return bool(asked == seen) if type(asked) is type(seen) else None
