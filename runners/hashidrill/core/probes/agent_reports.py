"""The settings that running agents report. They may differ from the files: by a default, or by an ignored key."""

import contextlib
from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol

from hashidrill.core.errors import FaultError
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.abc import Host, Hosts
from hashidrill.core.util.redaction import MARK, is_secret_name
from hashidrill.core.util.wait import all_at_once

SETTINGS = "hashidrill.settings"
_HIDDEN = ("hidden", "<redacted>", MARK)
"""How Consul, Nomad and a recording show a secret."""


class Settings(Protocol):
    """The protocol of the entry points in the group SETTINGS, one for each product."""

    async def reported(self, host: Host) -> Mapping[str, Any]:
        """The settings that the host's agent reports. Raises FaultError."""

    def reported_as(self, report: Mapping[str, Any], key: str) -> Any:
        """The reported value of a configuration key; None if the report does not clearly contain the key."""

    def agrees_with(self, key: str, asked: Any, seen: Any) -> bool | None:
        """Whether the reported value equals the configured value; None if the two cannot be compared."""


def settings_of(product: str) -> Settings:
    """The reader of that product's reports."""
    found: Settings = registry.plugin(SETTINGS, product)
    return found


async def reports(hosts: Hosts) -> dict[str, dict[str, Mapping[str, Any]]]:
    """Reported settings by product and host; agents that do not answer are left out."""
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
    """The value that two agents both report for a key, for people; None unless both surely report the same value.

    `said` has the configured values, None for a missing key. "" means that both report the same value, but not the
    configured one: the agent may ignore the key, so this alone proves nothing.
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
