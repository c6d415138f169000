"""Nested configurations: keys by their path from the top, merged configurations, and differences."""

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

Keys = tuple[str, ...]
ABSENT = object()
"""Stands for the value in a place that a document lacks."""


def leaves(settings: Mapping[str, Any], above: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    """Each key whose value is not a map, with the keys above it."""
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
    """`base` with the values of `over` on top; maps are merged key by key. Changes neither argument."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def differing(one: Any, other: Any, at: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Each place where two documents differ, written like `method[0].for`, with both values there."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in dict.fromkeys([*one, *other]):
            yield from differing(one.get(key, ABSENT), other.get(key, ABSENT), f"{at}.{key}".lstrip("."))
    elif isinstance(one, list) and isinstance(other, list):
        for index, (here, there) in enumerate(zip_longest(one, other, fillvalue=ABSENT)):
            yield from differing(here, there, f"{at}[{index}]")
    elif one != other:
        yield at, one, other


def in_words(value: Any, longest: int = 100) -> str:
    """A document's value on one line, for people; `nothing` for an absent value."""
    text = "nothing" if value is ABSENT else str(value)
    return text if len(text) <= longest else f"{text[:longest]}…"
