"""HTML that cannot be injected into: whatever is not `Html` is text, and is escaped.

Titles, keys, errors and log lines come from YAML and from a cluster that is being broken on purpose; none of them may
become markup. Escaping is the default here, so that forgetting it is not possible.
"""

from __future__ import annotations

import html
import json
from typing import TYPE_CHECKING, Any

from hashidrill.reports.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

_VOID = {"meta", "br", "hr"}
LONGEST_TEXT = 20_000


class Html(str):
    """Text that is markup already. Only `el`, `joined`, `raw_style` and `raw_script` make it."""

    __slots__ = ()


Content = Html | str | int | None


def escaped(content: Content) -> Html:
    """`content` as it may stand in a document; None is nothing."""
    if content is None:
        return Html()
    return (
        content if isinstance(content, Html) else Html(html.escape(printable(str(content), LONGEST_TEXT), quote=True))
    )


def joined(parts: Iterable[Content]) -> Html:
    return Html("".join(escaped(part) for part in parts))


def el(tag: str, *children: Content | Iterable[Content], **attributes: str | bool | None) -> Html:
    """One element. A trailing `_` of an attribute is dropped (`class_`), other `_` become `-`; None leaves it out."""
    texts = []
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        written = name.rstrip("_").replace("_", "-")
        texts.append(f" {written}" if value is True else f' {written}="{escaped(value)}"')
    opening = f"<{tag}{''.join(texts)}>"
    if tag in _VOID:
        return Html(opening)
    inside = "".join(
        escaped(child) if child is None or isinstance(child, (str, int)) else joined(child) for child in children
    )
    return Html(f"{opening}{inside}</{tag}>")


def raw_style(css: str) -> Html:
    return Html(f"<style>{css}</style>")


def raw_script(javascript: str) -> Html:
    return Html(f"<script>{javascript}</script>")


def data_script(name: str, data: Any) -> Html:
    """JSON for the page's script. No text in it can close the element: `<`, `>` and `&` are written as escapes."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Html(f'<script type="application/json" id="{escaped(name)}">{text}</script>')
