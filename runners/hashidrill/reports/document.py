"""Sections of a page, written once: as HTML (for `hashidrill.reports.html.page`) and as Markdown.

Their texts come from people, files and clusters that were broken on purpose: both renderers escape all of them. What is
empty (a text, a list, a table, a section) is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from hashidrill.reports.html import Content, Html, el, joined, section, table
from hashidrill.reports.markdown import code, plain, row_table

_LONGEST, _MOST_ROWS = 4000, 5000


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
    """Tables that matter less: a reader opens them."""

    title: str
    tables: Sequence[Table]


Cell = str | Badge | Code
Part = str | tuple[Cell, ...] | Bullets | Table | Folded
"""A tuple is a paragraph: its cells, with a space between two."""


@dataclass(frozen=True)
class Section:
    """Its parts follow one another below the title."""

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
    """Blocks, for blank lines between them."""
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
