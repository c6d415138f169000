"""Nested configurations: keys by their path from the top, and one configuration on top of another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Keys = tuple[str, ...]


def leaves(settings: Mapping[str, Any], above: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    """Each key that holds no map, with the keys above it."""
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, (*above, key))
        else:
            yield (*above, key), value


def dotted(path: Keys) -> str:
    return ".".join(path)


def holds(config: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Whether the configuration has all these settings."""
    return all(_at(config, path) == value for path, value in leaves(settings))


def _at(config: Any, path: Keys) -> Any:
    for key in path:
        config = config.get(key) if isinstance(config, Mapping) else None
    return config


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` on top of `base`, maps merged key by key; neither is changed."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged
