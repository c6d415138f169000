"""Keys of nested configurations, by their path from the top."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Path = tuple[str, ...]


def leaves(settings: Mapping[str, Any], above: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Each key that holds no map, with the keys above it."""
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, (*above, key))
        else:
            yield (*above, key), value


def dotted(path: Path) -> str:
    return ".".join(path)


def holds(config: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Whether the configuration has all these settings."""
    return all(_at(config, path) == value for path, value in leaves(settings))


def _at(config: Any, path: Path) -> Any:
    for key in path:
        config = config.get(key) if isinstance(config, Mapping) else None
    return config
