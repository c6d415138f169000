"""A YAML file as plain data in which every key and value knows its place in the file.

hashidrill reads a small, safe part of YAML 1.2: one document, text keys, only the core tags, no merge keys. Anchors
and aliases work. Limits keep a hostile or broken file from costing time or memory; they apply to the parser's
events, before anything is built.
"""

from __future__ import annotations

import copy
import re
import textwrap
import unicodedata
import warnings
from collections.abc import Collection, Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from hashidrill.core.errors import ExperimentError

Loc = tuple[str | int, ...]
"""A place in a document: `("load", "kv-writes", "rate")`, `("method", 0, "for")`."""

MOST_PROBLEMS = 10
MOST_LINES = 38  # fills one screen, with the last line, which counts the rest
COLUMNS = 150
_EXCERPT = 120


@dataclass(frozen=True)
class File:
    """A file: its name as the user wrote it, and its content."""

    name: str
    text: str


@dataclass(frozen=True, order=True)
class Problem:
    """One problem, at `offset` characters into the text. `at` is its path for a person.

    `file` is the index of the file: 0 for the experiment, 1 for the one that it extends, and so on.
    """

    file: int
    offset: int
    at: str
    text: str


def path_text(loc: Iterable[str | int]) -> str:
    """The path for a person: `load.kv-writes.rate`, `method[0].for`. Unprintable keys are escaped."""
    parts: list[str] = []
    for part in loc:
        if isinstance(part, int):
            parts.append(f"[{part}]")
        else:
            parts.append(f"{'.' if parts else ''}{_clipped(printable(part), 60)}")
    return "".join(parts)


def message(files: Sequence[File], problems: Iterable[Problem]) -> str:
    """One screen: at most MOST_PROBLEMS problems, in the order of the files, and how many more there are."""
    from hashidrill.core.util.redaction import Redactor  # noqa: PLC0415 - most files have no problem

    redactor = Redactor()
    masked = [replace(file, text=redactor.masked(file.text)) for file in files]
    ordered = [replace(problem, text=redactor.text(problem.text)) for problem in sorted(set(problems))]
    lines: list[str] = []
    for count, problem in enumerate(ordered):
        file = masked[problem.file]
        block = _block(file.name, file.text, problem)
        if count == MOST_PROBLEMS or len(lines) + len(block) > MOST_LINES:
            lines.append(f"{printable(file.name)}: ... and {len(ordered) - count} more")
            break
        lines += block
    return "\n".join(lines)


def wrapped(text: str) -> str:
    """The text in lines that fit the screen, without terminal control characters."""
    return "\n".join(textwrap.wrap(printable(text), COLUMNS, subsequent_indent="    ", break_on_hyphens=False))


def line_and_column(text: str, offset: int) -> tuple[int, int]:
    """Line and column of an offset, both counted from 1, as editors do."""
    offset = min(offset, len(text))
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


def _block(name: str, text: str, problem: Problem) -> list[str]:
    line, column = line_and_column(text, problem.offset)
    at = f"{problem.at}: " if problem.at else ""
    head = f"{printable(name)}:{line}:{column}: {at}{_clipped(printable(problem.text), 400)}"
    return [*wrapped(head).split("\n"), *_excerpt(text, problem.offset, column)]


def _excerpt(text: str, offset: int, column: int) -> list[str]:
    start = min(offset, len(text)) - (column - 1)
    end = text.find("\n", start)
    line = text[start : len(text) if end < 0 else end].rstrip("\r")
    if not line.strip():
        return []
    left = max(0, column - 1 - _EXCERPT // 2) if len(line) > _EXCERPT else 0
    shown = printable(line[left : left + _EXCERPT])
    before = shown[: column - 1 - left]
    prefix = "  ..." if left else "  "
    suffix = "..." if left + _EXCERPT < len(line) else ""
    return [f"{prefix}{shown}{suffix}", " " * (len(prefix) + _cells(before)) + "^"]


def printable(text: str) -> str:
    """The text on one line, with the same length, without terminal control characters."""
    return "".join(char if char.isprintable() else " " if char.isspace() else "?" for char in text)


def _cells(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def _clipped(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def listed(names: Sequence[str]) -> str:
    """`a`, `a or b`, `a, b or c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


@dataclass(slots=True)
class Node:
    """A value with its place and its content. `size` and `text` count everything in it, with aliases expanded.

    `file` is the index of the file; a value's key is in the same file as the value.
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
        """The value as plain lists, dicts, texts, numbers, booleans and None."""
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
    """A copy of the node, with file numbers starting at `first`."""
    items: Any = node.items
    if isinstance(items, dict):
        items = {key: numbered(child, first) for key, child in items.items()}
    elif isinstance(items, list):
        items = [numbered(child, first) for child in items]
    return replace(node, file=node.file + first, items=items)


def merged(over: Node, base: Node) -> Node:
    """Merges two mappings key by key; otherwise returns `over`. A key that is null in `over` is left out."""
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
    """Like `merged`, but problems of the whole value are reported at the place of `base`."""
    return replace(merged(over, base), offset=base.offset, file=base.file)


def stripped(node: Node, keys: Collection[str]) -> Node:
    """A mapping without some of its keys; anything else unchanged."""
    if not isinstance(node.items, dict):
        return node
    return replace(node, items={key: child for key, child in node.items.items() if key not in keys})


def placed(node: Node, loc: Loc, value: Node) -> Node:
    """A copy of the node with another value at `loc`, which leads through mappings only."""
    if not loc:
        return value
    items, key = dict(node.items) if isinstance(node.items, dict) else {}, str(loc[0])
    items[key] = placed(items.get(key, value), loc[1:], value)
    return replace(node, items=items, keys={**node.keys, key: node.keys.get(key, node.offset)})


MAX_DEPTH = 30
MAX_NODES = 10_000
MAX_TEXT = 1024 * 1024  # characters, after aliases have been expanded: aliases may repeat one long text many times

UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")
"""The characters that YAML calls unprintable. The complement `[^...]` takes 15 times as long to compile."""
_CORE = "tag:yaml.org,2002:"
_NULLS = {"", "~", "null", "Null", "NULL"}
_BOOLS = {name: value for value in (True, False) for name in (str(value), str(value).lower(), str(value).upper())}
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_MAX_INT = 2**63
_MOST_KEPT, _MOST_KEPT_CHARS = 256, 16 * 1024
_READ: dict[str, Node] = {}
"""The latest texts without a problem, and their nodes. Parsing takes most of the time of loading an experiment, and
many experiments extend the same base or are loaded again for each variant. Complete nodes never change.
"""


class Document:
    """One file. `problem()` notes a problem; `raise_problems()` raises all of them at once."""

    def __init__(self, name: str, text: str) -> None:
        """Parses the text. Raises ExperimentError if it is not YAML at all; notes other problems in `problems`."""
        self.files = [File(name, text)]
        self.problems: list[Problem] = []
        self.variant = ""
        self.root = _READ.get(text) or _Composer(self).compose()
        self.data: Any = self.root.data
        if not self.problems and len(text) <= _MOST_KEPT_CHARS:
            _keep(text, self.root)

    @property
    def name(self) -> str:
        """The file's name as the user wrote it."""
        return self.files[0].name

    @property
    def text(self) -> str:
        """The file's text, without the files that it extends."""
        return self.files[0].text

    def over(self, base: Document, *, without: Collection[str]) -> Document:
        """Merges this document over `base`, key by key; this document wins, and null removes a key.

        Top-level keys of `base` that are in `without` are left out.
        """
        root = stripped(numbered(base.root, len(self.files)), without)
        both = self._with(merged(self.root, root))
        both.files = [*self.files, *base.files]
        both.problems = [*self.problems, *(replace(each, file=each.file + len(self.files)) for each in base.problems)]
        return both

    def with_value(self, loc: Loc, other: Document) -> Document:
        """A copy of the document in which another document is the value at `loc`."""
        changed = self._with(placed(self.root, loc, numbered(other.root, len(self.files))))
        changed.files = [*self.files, *other.files]
        return changed

    def file_of(self, loc: Loc) -> str:
        """The name of the file in which the value at `loc` is written."""
        return self.files[self._place(loc, key=False)[0]].name

    def without(self, *keys: str) -> Document:
        """A copy of the document without some of its top-level keys."""
        return self._with(stripped(self.root, keys))

    def under(self, overlay: Document, *, without: Collection[str], variant: str) -> Document:
        """Merges `overlay` over this document as `over` does. Every problem names the variant.

        Top-level keys of this document that are in `without` are left out.
        """
        over = numbered(overlay.root, len(self.files))
        return self._varied(over, [*self.files, *overlay.files], without, variant)

    def variant_of(self, loc: Loc, *, without: Collection[str], variant: str) -> Document:
        """Like `under`, with the value at `loc` of this document as the overlay."""
        over = self.root
        for part in loc:
            over = child_of(over, part) or over
        if over.items is None and over.value is None:
            over = replace(over, items={})
        return self._varied(over, self.files, without, variant)

    def _varied(self, over: Node, files: list[File], without: Collection[str], variant: str) -> Document:
        both = self._with(overlaid(stripped(self.root, without), over))
        both.files, both.problems, both.variant = files, [], variant
        return both

    def unmarked(self) -> Document:
        """A copy of the document without the problems noted so far."""
        clean = self._with(self.root)
        clean.problems = []
        return clean

    def _with(self, root: Node) -> Document:
        other = copy.copy(self)
        other.root, other.data = root, root.data
        return other

    def problem(self, loc: Loc, text: str, *, key: bool = False) -> None:
        """Notes a problem with the value at `loc`, or with its key. A missing path is reported at its nearest existing
        part.
        """
        file, offset = self._place(loc, key=key)
        text = f"{text} (in the variant {self.variant})" if self.variant else text
        self.problems.append(Problem(file, offset, path_text(loc[:-1] if key else loc), text))

    def problem_at(self, offset: int, text: str) -> None:
        self.problems.append(Problem(0, offset, "", text))

    def fail(self, offset: int, text: str) -> NoReturn:
        """Raises all problems with this one at once, because reading on would be useless."""
        self.problem_at(offset, text)
        raise self._error()

    def raise_problems(self) -> None:
        """Raises ExperimentError if any problem was noted."""
        if self.problems:
            raise self._error()

    def message(self) -> str:
        """All noted problems, on one screen."""
        return message(self.files, self.problems)

    def _error(self) -> ExperimentError:
        return ExperimentError(self.message())

    def _place(self, loc: Loc, *, key: bool) -> tuple[int, int]:
        node, offset = self.root, self.root.offset
        for count, part in enumerate(loc, start=1):
            child = child_of(node, part)
            if child is None:
                break
            # the parser places an empty value at the next token
            nothing = child.value is None and child.items is None
            as_key = nothing or (key and count == len(loc))
            offset = node.keys[part] if as_key and isinstance(part, str) else child.offset
            node = child
        return node.file, offset


class _Composer:
    def __init__(self, document: Document) -> None:
        self._document = document
        self._anchors: dict[str, Node] = {}
        self._nodes = 0
        self._chars = 0
        self._at = 0
        self._events = self._parse()

    def compose(self) -> Node:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the parser warns about harmless things: directives, anchors used twice
            try:
                return self._compose()
            finally:
                self._events.close()

    def _compose(self) -> Node:
        root: Node | None = None
        for event in self._events:
            kind = _kind(event)
            if kind == "DocumentStart" and root is not None:
                self._document.fail(self._at, "a second document starts here; write one experiment per file")
            if kind in {"Scalar", "MappingStart", "SequenceStart", "Alias"}:
                root = self._node(event, depth=1)
        if root is None or (root.items is None and root.value is None):
            self._document.fail(0, "the file is empty; `hashidrill new` writes an experiment to start from")
        return root

    def _parse(self) -> Generator[Any, None, None]:
        from ruamel.yaml import YAML  # noqa: PLC0415 - a tenth of a second that not every command needs
        from ruamel.yaml.error import MarkedYAMLError  # noqa: PLC0415 - as above

        try:
            for event in YAML(typ="safe", pure=True).parse(self._document.text):
                self._at = event.start_mark.index
                yield event
        except MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            self._document.fail(mark.index if mark else self._at, _syntax(error, self._document.text))
        except Exception as error:  # noqa: BLE001 - the parser also fails with ValueError, IndexError and the like
            self._document.fail(self._at, f"from here on this is not readable as YAML ({type(error).__name__})")

    def _node(self, event: Any, depth: int) -> Node:
        offset = event.start_mark.index
        if depth > MAX_DEPTH:
            self._document.fail(offset, f"nested deeper than {MAX_DEPTH} levels")
        kind = _kind(event)
        if kind == "Alias":
            return self._alias(event, depth)
        node = Node(offset, complete=False)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        self._count(1, 0, offset)
        if kind == "Scalar":
            node.value = self._scalar(event)
            node.text = len(event.value)
            self._count(0, node.text, offset)
        else:
            self._check_tag(event, "map" if kind == "MappingStart" else "seq")
            children = self._mapping(node, depth) if kind == "MappingStart" else self._sequence(node, depth)
            for child in children:
                node.size += child.size
                node.text += child.text
                node.height = max(node.height, child.height + 1)
        node.complete = True
        return node

    def _alias(self, event: Any, depth: int) -> Node:
        offset = event.start_mark.index
        node = self._anchors.get(event.anchor)
        if node is None:
            self._document.fail(offset, f"the alias *{event.anchor} has no anchor: write &{event.anchor} above it")
        if not node.complete:
            self._document.fail(offset, f"the alias *{event.anchor} is inside its own anchor, so it would never end")
        if depth + node.height - 1 > MAX_DEPTH:
            self._document.fail(offset, f"nested deeper than {MAX_DEPTH} levels when *{event.anchor} is expanded")
        self._count(node.size, node.text, offset)
        return node

    def _count(self, nodes: int, chars: int, offset: int) -> None:
        self._nodes += nodes
        self._chars += chars
        if self._nodes > MAX_NODES or self._chars > MAX_TEXT:
            self._document.fail(
                offset, f"too large: over {MAX_NODES} values or {MAX_TEXT // 1024} kB of text, aliases expanded"
            )

    def _sequence(self, node: Node, depth: int) -> Iterable[Node]:
        items: list[Node] = []
        while _kind(event := next(self._events)) != "SequenceEnd":
            items.append(self._node(event, depth + 1))
        node.items = items
        return items

    def _mapping(self, node: Node, depth: int) -> Iterable[Node]:
        items: dict[str, Node] = {}
        while _kind(event := next(self._events)) != "MappingEnd":
            key, offset = self._key(event), event.start_mark.index
            value = self._node(next(self._events), depth + 1)
            if key in items:
                line, _ = line_and_column(self._document.text, node.keys[key])
                self._document.problem_at(offset, f"line {line} already has the key {_short(key)}; keep one of the two")
            items[key], node.keys[key] = value, offset
        node.items = items
        return items.values()

    def _key(self, event: Any) -> str:
        offset = event.start_mark.index
        if _kind(event) != "Scalar":
            self._document.fail(offset, "a key must be text, not a list, a mapping or an alias")
        self._count(1, len(event.value), offset)
        value = self._scalar(event)
        if event.value == "<<" and event.implicit[0]:
            self._document.fail(
                offset, "merge keys (<<) exist only in YAML 1.1, and this is YAML 1.2; write the keys out"
            )
        if not isinstance(value, str):
            self._document.problem_at(offset, f'a key must be text: put {_short(event.value)} in quotes, like "name"')
        return str(event.value)

    def _check_tag(self, event: Any, plain: str) -> None:
        if event.tag not in {None, "!", _CORE + plain}:
            self._document.problem_at(
                event.start_mark.index, f"the tag {_short(str(event.tag))} does not fit; leave it out"
            )

    def _scalar(self, event: Any) -> str | float | bool | None:
        text: str = event.value
        tag = event.tag
        if tag in {"!", _CORE + "str"} or (tag is None and not event.implicit[0]):
            value: str | float | bool | None = text
        else:
            value = _plain(text)
            noun = "null" if value is None else type(value).__name__
            self._check_tag(event, noun)
        if isinstance(value, float) and not abs(value) < float("inf"):
            self._document.problem_at(event.start_mark.index, f"{_short(text)} is not a finite number")
            return 0.0
        if isinstance(value, int) and abs(value) >= _MAX_INT:
            self._document.problem_at(event.start_mark.index, f"the number {_short(text)} is too large")
            return 0
        if isinstance(value, str) and UNPRINTABLE.search(value):  # by escapes: "\0", "\ud800"
            self._document.problem_at(event.start_mark.index, "contains a character that is not text")
            return UNPRINTABLE.sub("?", value)
        return value


def _keep(text: str, root: Node) -> None:
    _READ.pop(text, None)  # the newest ones are last
    while len(_READ) >= _MOST_KEPT:
        del _READ[next(iter(_READ))]
    _READ[text] = root


def _plain(text: str) -> str | float | bool | None:
    """The value of unquoted text in YAML 1.2: `no`, `on` and `2021-10-28` stay text."""
    if text in _NULLS:
        return None
    if text in _BOOLS:
        return _BOOLS[text]
    if _INT.fullmatch(text):
        base = {"0o": 8, "0x": 16}.get(text[:2], 10)
        return int(text, base) if len(text) < 100 else _MAX_INT  # Python itself refuses to read thousands of digits
    return float(text.replace(".inf", "inf").replace(".nan", "nan")) if _FLOAT.fullmatch(text.lower()) else text


def _kind(event: Any) -> str:
    return type(event).__name__.removesuffix("Event")


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}...")


_HINTS = (
    (r"'\\t'.*cannot start any token", "this line is indented with a tab; YAML needs spaces"),
    (
        r"mapping values are not allowed here",
        "a ': ' where no key can be: quote the text, or fix its indentation",
    ),
    (r"could not find expected ':'", "a key without ': ' after it, or wrong indentation"),
    (r"expected <block end>", "the indentation does not match the lines above, or a quote above is not closed"),
    (r"unexpected end of stream.*|found unexpected end of stream", "a quote is opened but never closed"),
    (r"expected ',' or '(\]|\})'", "a bracket is opened but not closed, or a comma is missing"),
)


def _syntax(error: Any, text: str) -> str:
    problem = str(error.problem or error.context or "not YAML")
    problem = problem.replace("found '\\x00'", "found the end of the file")
    said = next((hint for pattern, hint in _HINTS if re.search(pattern, problem)), f"this is not YAML: {problem}")
    if error.context and error.context_mark:
        line, _ = line_and_column(text, error.context_mark.index)
        return f"{said} ({error.context} that began in line {line})"
    return said
