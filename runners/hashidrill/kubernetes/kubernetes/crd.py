"""What a cluster would make of a manifest: the schema of its own CustomResourceDefinition, read strictly.

An API server drops fields that the schema does not know and says nothing, so that a typo, or a field that is newer than
the cluster's definition, becomes a fault that does less. Here both are problems.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from hashidrill.core.protocols.registry import near
from hashidrill.core.units import shown

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (Mapping,),
    "array": (list, tuple),
}


def schema_of(definition: Mapping[str, Any], version: str) -> Mapping[str, Any] | None:
    """The schema of a version that is served; None when that version is not."""
    for one in definition.get("spec", {}).get("versions", ()):
        if one.get("name") == version and one.get("served"):
            found: Mapping[str, Any] = one.get("schema", {}).get("openAPIV3Schema", {})
            return found
    return None


def problems(value: Any, schema: Mapping[str, Any], at: str = "spec", *, closed: bool = False) -> Iterator[str]:
    """Everything that the server would refuse or drop, with its place; nothing for what the schema leaves open.

    `closed`: where a schema names fields, no other one is open, though the server would keep it: nobody reads it.
    """
    if schema.get("x-kubernetes-int-or-string"):
        if not isinstance(value, int | str):
            yield f"{at}: expected a number or a text, got {shown(value)}"
        return
    wanted = schema.get("type", "")
    if wanted in _TYPES and (
        not isinstance(value, _TYPES[wanted]) or (isinstance(value, bool) != (wanted == "boolean"))
    ):
        yield f"{at}: expected {_a(wanted)}, got {shown(value)}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at}: {shown(value)} is not one of them: {near(str(value), map(str, schema['enum']))}"
    yield from _out_of_bounds(value, schema, at)
    if isinstance(value, Mapping):
        yield from _of_fields(value, schema, at, closed=closed)
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from problems(item, schema.get("items", {}), f"{at}[{number}]", closed=closed)


def _out_of_bounds(value: Any, schema: Mapping[str, Any], at: str) -> Iterator[str]:
    if "pattern" in schema and isinstance(value, str) and not _matches(schema["pattern"], value):
        yield f"{at}: {shown(value)} does not match {schema['pattern']}"
    if "minimum" in schema and value < schema["minimum"]:
        yield f"{at}: must be at least {schema['minimum']}, got {value}"
    if "maximum" in schema and value > schema["maximum"]:
        yield f"{at}: must be at most {schema['maximum']}, got {value}"


def _of_fields(value: Mapping[str, Any], schema: Mapping[str, Any], at: str, *, closed: bool) -> Iterator[str]:
    known: Mapping[str, Any] = schema.get("properties", {})
    others = schema.get("additionalProperties")
    kept = schema.get("x-kubernetes-preserve-unknown-fields") and not (closed and known)
    left_open = bool(others) or kept or not schema
    for name, item in value.items():
        if name in known:
            yield from problems(item, known[name], f"{at}.{name}", closed=closed)
        elif isinstance(others, Mapping):
            yield from problems(item, others, f"{at}.{name}", closed=closed)
        elif not left_open:
            then = "nobody would read it" if schema.get("x-kubernetes-preserve-unknown-fields") else "would drop it"
            yield f"{at}.{name}: the cluster's definition does not have it, and {then}: {near(name, known)}"
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{at}.{name}: is missing"


def dropped(sent: Any, kept: Any, at: str = "spec") -> Iterator[str]:
    """The places of what was sent and is not in what the server kept; what it added does not count."""
    if isinstance(sent, Mapping):
        for name, value in sent.items():
            if not isinstance(kept, Mapping) or name not in kept:
                yield f"{at}.{name}"
            else:
                yield from dropped(value, kept[name], f"{at}.{name}")
    elif isinstance(sent, list | tuple):
        for number, value in enumerate(sent):
            if not isinstance(kept, list) or len(kept) <= number:
                yield f"{at}[{number}]"
            else:
                yield from dropped(value, kept[number], f"{at}[{number}]")


def _matches(pattern: str, value: str) -> bool:
    """Of a pattern that Python cannot read, whether it matches is for the server to say."""
    try:
        return re.search(pattern, value) is not None
    except re.error:
        return True


def _a(wanted: str) -> str:
    return f"an {wanted}" if wanted[0] in "aio" else f"a {wanted}"
