"""Which services a datacenter has, by what is written of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hashidrill.core.protocols import registry


def running(written: Mapping[str, Any]) -> list[str]:
    """The services of a datacenter that says so: those that it names and does not leave out (`consul: null`).

    Where it names none, those that run by default; all of them where it is attached: which are there is seen there.
    """
    services = registry.services()
    named = [name for name in services if name in written]
    pods = written.get("kubernetes")
    if isinstance(pods, Mapping) and not named:
        return [name for name in services if name in pods] or list(services)
    others = by_default() if written.get("attach") is None else list(services)
    return [name for name in named if written[name] is not None] if named else others


def by_default() -> list[str]:
    """The services that run where none is named."""
    return [name for name, service in registry.services().items() if service.runs_by_default]
