"""The elements of HTML and of Markdown, and sections of a page, which are written once and rendered as both.

Nothing can inject HTML: everything that is not `Html` is text, and is escaped.

The texts come from people, files and clusters that were broken on purpose, so both renderers escape all of them. Empty
parts (a text, a list, a table, a section) are left out.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hashidrill.reports.text import NOTHING, one_line, printable

_LONGEST, _MOST_ROWS = 4000, 5000
_VOID = {"meta", "br", "hr"}
LONGEST_TEXT = 20_000


class Html(str):
    """Text that is markup already. Only `el`, `joined`, `raw_style` and `raw_script` make it."""

    __slots__ = ()


Content = Html | str | int | None


def escaped(content: Content) -> Html:
    """`content` in the form that a document may contain; None is empty."""
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


def section(title: str, *children: Content | Iterable[Content], id: str | None = None) -> Html:  # noqa: A002 - HTML's word
    return el("section", el("h2", title), *children, id=id)


def table(headings: Sequence[str], rows: Sequence[Sequence[Content]], *, numbers_from: int | None = None) -> Html:
    """A table; on a phone each row is a list of its cells. Cells from column `numbers_from` on are aligned right."""

    def kind(column: int) -> str | None:
        return "number" if numbers_from is not None and column >= numbers_from else None

    head = el("tr", [el("th", title, scope="col", class_=kind(n)) for n, title in enumerate(headings)])
    body = [
        # a cell of the phone's grid is one element, whatever is in it
        el("tr", [el("td", el("div", cell), class_=kind(n), data_of=headings[n] or None) for n, cell in enumerate(row)])
        for row in rows
    ]
    return el(
        "div",
        el("table", el("thead", head), el("tbody", body)),
        class_="scroll",
        tabindex="0",
        role="group",
        aria_label=f"table: {', '.join(headings)}",
    )


def plain(text: str, limit: int = 600) -> str:
    """`text` on one line, with everything escaped that Markdown, a table or HTML would interpret."""
    escaped = re.sub(r"([\\`*_\[\]|~])", r"\\\1", one_line(text, limit))
    escaped = escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"@(?=\w)", "@\N{WORD JOINER}", escaped)  # a log line must not notify a person


def code(text: str) -> str:
    """`text` as code; a pipe is escaped there too, since tables are split before code is read."""
    return f"`{one_line(text, 300).replace('`', chr(39)).replace('|', chr(92) + '|')}`" if text.strip() else NOTHING


def row_table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numbers_from: int | None = None,
    most: int = 50,
) -> str:
    """A table, empty text for no rows; rows beyond `most` are counted below it."""
    if not rows:
        return ""
    first = len(headings) if numbers_from is None else numbers_from
    lines = [headings, ["---" if n < first else "---:" for n in range(len(headings))], *rows[:most]]
    more = f"\n\nand {len(rows) - most} more" if len(rows) > most else ""
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + more


@dataclass(frozen=True)
class Badge:
    """A word in the colour of a finding: held, broken, invalid or known."""

    text: str
    tone: str


@dataclass(frozen=True)
class Code:
    """A name in code style. With `href`, a link on the HTML page."""

    text: str
    href: str = ""


@dataclass(frozen=True)
class Bullets:
    """A list with a title of its own."""

    lines: Sequence[str]
    title: str = ""


@dataclass(frozen=True)
class Table:
    """Cells from column `numbers_from` on are aligned right."""

    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    numbers_from: int | None = None


@dataclass(frozen=True)
class Folded:
    """Tables of minor importance, folded until the reader opens them."""

    title: str
    tables: Sequence[Table]


Cell = str | Badge | Code
Part = str | tuple[Cell, ...] | Bullets | Table | Folded
"""A tuple is a paragraph: its cells, separated by spaces."""


@dataclass(frozen=True)
class Section:
    """The section's parts follow one another below the title."""

    title: str
    parts: Sequence[Part]

    @property
    def filled(self) -> Iterator[Part]:
        for part in self.parts:
            match part:
                case Bullets(lines):
                    full: object = lines
                case Table(rows=rows):
                    full = rows
                case Folded(tables=tables):
                    full = any(table.rows for table in tables)
                case _:
                    full = part
            if full:
                yield part


def to_html(sections: Iterable[Section]) -> list[Html]:
    return [section(each.title, *map(_html, parts)) for each in sections if (parts := [*each.filled])]


def _html(part: Part) -> Html:
    match part:
        case Bullets(lines, title):
            return joined([_heading(title), el("ul", [el("li", line) for line in lines])])
        case Table(headings, rows, title, numbers_from):
            cells = [[_html_cell(cell) for cell in row] for row in rows]
            return joined([_heading(title), table(headings, cells, numbers_from=numbers_from)])
        case Folded(title, tables):
            return el("details", el("summary", title), *(_html(each) for each in tables if each.rows))
        case str():
            return el("p", part)
        case _:
            return el("p", *(content for cell in part for content in (_html_cell(cell), " ")))


def _heading(title: str) -> Html | None:
    return el("h3", title) if title else None


def _html_cell(cell: Cell) -> Content:
    match cell:
        case Badge(text, tone):
            return el("span", text, class_=f"badge {tone}")
        case Code(text, href):
            return el("a", text, href=href) if href else el("code", text)
        case _:
            return cell


def to_markdown(sections: Iterable[Section]) -> list[str]:
    """The blocks of Markdown, to be joined by blank lines."""
    return [
        block
        for each in sections
        if (parts := [*each.filled])
        for block in (f"## {plain(each.title)}", *map(_markdown, parts))
    ]


def _markdown(part: Part) -> str:
    match part:
        case Bullets(lines, title):
            return _titled(title, "\n".join(f"- {plain(line, _LONGEST)}" for line in lines))
        case Table(headings, rows, title, numbers_from):
            cells = [[_markdown_cell(cell) for cell in row] for row in rows]
            return _titled(title, row_table(headings, cells, numbers_from=numbers_from, most=_MOST_ROWS))
        case Folded(title, tables):
            inside = "\n\n".join(_markdown(each) for each in tables if each.rows)
            return f"<details><summary>{plain(title, _LONGEST)}</summary>\n\n{inside}\n\n</details>"
        case str():
            return plain(part, _LONGEST)
        case _:
            return " ".join(map(_markdown_cell, part))


def _titled(title: str, text: str) -> str:
    return f"### {title}\n\n{text}" if title else text


def _markdown_cell(cell: Cell) -> str:
    return code(cell.text) if isinstance(cell, Code) else plain(cell if isinstance(cell, str) else cell.text, _LONGEST)
