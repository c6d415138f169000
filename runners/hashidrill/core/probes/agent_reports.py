"""What agents report of the settings that they run with: what a file says may be their default already, or ignored."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from hashidrill.core.errors import FaultError
from hashidrill.core.protocols import registry
from hashidrill.core.util.redaction import MARK, is_secret_name
from hashidrill.core.util.wait import all_at_once

if TYPE_CHECKING:
    from hashidrill.core.protocols.abc import Host, Hosts

SETTINGS = "hashidrill.settings"
_HIDDEN = ("hidden", "<redacted>", MARK)
"""How Consul, Nomad and a recording show a secret."""


class Settings(Protocol):
    """What the entry points of SETTINGS stand for, by product."""

    async def reported(self, host: Host) -> Mapping[str, Any]:
        """What the agent of this host reports. Raises FaultError."""

    def reported_as(self, report: Mapping[str, Any], key: str) -> Any:
        """What a report says of a key of the configuration; None where it says nothing that is surely meant."""

    def agrees_with(self, key: str, asked: Any, seen: Any) -> bool | None:
        """Whether what a report says is what was asked for; None where the two cannot be compared."""


def settings_of(product: str) -> Settings:
    """How that product's reports are read."""
    found: Settings = registry.plugin(SETTINGS, product)
    return found


async def reports(hosts: Hosts) -> dict[str, dict[str, Mapping[str, Any]]]:
    """By product and host; without those of agents that do not answer."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}

    async def ask(product: str, host: Host) -> None:
        with contextlib.suppress(FaultError, ValueError, KeyError, TypeError):
            found.setdefault(product, {})[host.name] = await settings_of(product).reported(host)

    await all_at_once(
        partial(ask, product, host)
        for host in hosts.all_hosts()
        for product in registry.entries(SETTINGS)
        if product in host.roles
    )
    return found


def alike(
    product: str, key: str, said: tuple[Any, Any], one: Mapping[str, Any], other: Mapping[str, Any]
) -> str | None:
    """What two agents both report of a key, for a person; None unless both surely report the same of it.

    `said`: what their configurations say, None for nothing. "": both report the same, and it is not what was asked
    for. It may be of something else, or that agent takes no such key: alone it proves nothing.
    """
    settings = settings_of(product)
    seen = [settings.reported_as(report, key) for report in (one, other)]
    if any(map(is_secret_name, key.split("."))) or None in seen or any(_hidden(each) for each in seen):
        return None
    if seen[0] != seen[1] or isinstance(seen[0], bool) != isinstance(seen[1], bool):
        return None
    asked = [value for value in said if value is not None]
    return str(seen[0]) if all(settings.agrees_with(key, value, seen[0]) is True for value in asked) else ""


def _hidden(value: Any) -> bool:
    return any(mark in str(value) for mark in _HIDDEN)
