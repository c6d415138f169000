"""The task drivers that a Nomad configuration asks for."""

from collections.abc import Iterator, Mapping
from typing import Any

ALWAYS = "raw_exec"
_OF_ROOT = frozenset({"exec", "exec2", "java", "docker", "podman"})
_LISTS = ("driver.allowlist", "driver.whitelist")


def impossible(config: Mapping[str, Any]) -> set[str]:
    """The drivers in an agent's configuration that need a client that runs as root."""
    return set(_asked(config)) & _OF_ROOT


def _asked(config: Mapping[str, Any]) -> Iterator[str]:
    for block in _blocks(config.get("plugin")):
        yield from block
    for client in _blocks(config.get("client")):
        for options in _blocks(client.get("options")):
            for name in _LISTS:
                yield from (driver.strip() for driver in str(options.get(name, "")).split(","))


def _blocks(part: Any) -> Iterator[Mapping[str, Any]]:
    for one in part if isinstance(part, list) else [part]:
        if isinstance(one, Mapping):
            yield one
