"""What a document is made of: values that know where they were written, and how two trees of them become one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection


@dataclass(slots=True)
class Node:
    """A value, where it starts, and what it holds. `size` and `text` count everything in it, aliases expanded.

    `file` counts the files of a document; the key of a value stands in the same file as the value.
    """

    offset: int
    file: int = 0
    value: Any = None
    items: list[Node] | dict[str, Node] | None = None
    keys: dict[str, int] = field(default_factory=dict)
    size: int = 1
    text: int = 0
    height: int = 1
    complete: bool = True

    @property
    def data(self) -> Any:
        """Plain lists, dicts, texts, numbers, booleans and None."""
        if isinstance(self.items, dict):
            return {key: node.data for key, node in self.items.items()}
        if isinstance(self.items, list):
            return [node.data for node in self.items]
        return self.value


def child_of(node: Node, part: str | int) -> Node | None:
    if isinstance(node.items, dict) and isinstance(part, str):
        return node.items.get(part)
    if isinstance(node.items, list) and isinstance(part, int) and part < len(node.items):
        return node.items[part]
    return None


def numbered(node: Node, first: int) -> Node:
    """The same, its files counted from `first`."""
    items: Any = node.items
    if isinstance(items, dict):
        items = {key: numbered(child, first) for key, child in items.items()}
    elif isinstance(items, list):
        items = [numbered(child, first) for child in items]
    return replace(node, file=node.file + first, items=items)


def merged(over: Node, base: Node) -> Node:
    """Two mappings as one, key by key; elsewhere `over` alone. A key that is null in `over` is left out."""
    if not (isinstance(over.items, dict) and isinstance(base.items, dict)):
        return over
    items, keys = dict(base.items), {**base.keys, **over.keys}
    for key, node in over.items.items():
        under = items.get(key)
        if under is None:
            items[key] = node
        elif node.items is None and node.value is None:
            del items[key]
        else:
            items[key] = merged(node, under)
    return replace(over, items=items, keys=keys)


def overlaid(base: Node, over: Node) -> Node:
    """Like `merged`. What is wrong with the whole stands where `base` does."""
    return replace(merged(over, base), offset=base.offset, file=base.file)


def stripped(node: Node, keys: Collection[str]) -> Node:
    """A mapping without some of its keys; anything else as it is."""
    if not isinstance(node.items, dict):
        return node
    return replace(node, items={key: child for key, child in node.items.items() if key not in keys})
