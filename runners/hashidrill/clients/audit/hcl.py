"""Reads HCL version 2, the language of Nomad's jobs, with the position of each element.

Expressions are parsed but not evaluated. A body is parsed like an object, so this reader accepts a few things that
Nomad refuses, for instance commas between attributes. python-hcl2 does not give the positions of values; tests compare
this reader with it. Agents read version 1 of the language: see `hcl1`.
"""

import re

from hashidrill.clients.audit.tree import (
    MAX_DEPTH,
    Comment,
    Entry,
    Expression,
    Lines,
    MalformedError,
    Mapping,
    Place,
    Scalar,
    Sequence,
    Value,
)

_SPACE = re.compile(r"[ \t\r]+")
_NAME = re.compile(r"[^\W\d][\w-]*(?:\.[^\W\d][\w-]*)*")
_NUMBER = re.compile(r"0[xX][0-9a-fA-F]+|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_HEREDOC = re.compile(r"<<(?P<trim>[-~]?)(?P<mark>[^\W\d][\w.-]*)[ \t]*\r?\n")
_OPERATOR = re.compile(r"==|!=|<=|>=|&&|\|\||[<>+*/%-]")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\"}
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_FOR = re.compile(r"\s*for\s+[\w-]+\s*(?:,\s*[\w-]+\s*)?in\s")
_AFTER = re.compile(r"\.(?:[\w-]+|\*)|::[\w-]+")
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None}


def read_hcl(text: str) -> tuple[Mapping, list[Comment]]:
    """The file as a Mapping, and its comments. Raises MalformedError."""
    reader = _Reader(text.removeprefix("\ufeff"))
    return reader.file(), list(reader.comments.values())


class _Reader:
    """A recursive-descent parser of `text`; `at` is the offset of the next character."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.depth = 0
        self.lines = Lines(text)
        self.comments: dict[int, Comment] = {}  # by offset, because the end of an expression is scanned twice

    # bodies

    def file(self) -> Mapping:
        entries = self.entries(closing="")
        return Mapping(entries, Place(1, 1))

    def entries(self, closing: str) -> tuple[Entry, ...]:
        """Parses attributes and blocks up to and including `closing`."""
        opened = self.here().line
        found: list[Entry] = []
        while True:
            self.blank(newlines=True)
            if self.at >= len(self.text):
                if closing:
                    raise self.wrong(f"a }} is missing: the block opened in line {opened} does not end")
                return tuple(found)
            if closing and self.text[self.at] == closing:
                self.at += 1
                return tuple(found)
            found.append(self.entry())
            self.blank(newlines=False)
            if self.next_is(","):
                self.at += 1

    def entry(self) -> Entry:
        place = self.here()
        key = self.key()
        self.blank(newlines=False)
        if self.next_is("=", ":") and not self.next_is("=="):
            self.at += 1
            self.blank(newlines=True)
            return Entry(key, (), self.expression(newlines=False), place)
        labels = []
        while not self.next_is("{"):
            if not (self.next_is('"') or _NAME.match(self.text, self.at)):
                raise self.wrong(f"after {key!r}, =, {{ or a label was expected")
            labels.append(self.key())
            self.blank(newlines=False)
        return Entry(key, tuple(labels), self.body(place), place)

    def key(self) -> str:
        if self.next_is('"'):
            value = self.string()
            return str(value.value) if isinstance(value, Scalar) else value.text
        if self.next_is("("):
            return self.balanced()
        found = _NAME.match(self.text, self.at) or _NUMBER.match(self.text, self.at)
        if found is None:
            raise self.wrong(f"a name was expected, not {self.shown()}")
        self.at = found.end()
        return found[0]

    def body(self, place: Place) -> Mapping:
        self.deeper()
        self.at += 1
        entries = self.entries(closing="}")
        self.depth -= 1
        return Mapping(entries, place)

    # expressions

    def expression(self, *, newlines: bool) -> Value:
        """Parses one expression. `newlines` is true inside brackets, where a line end does not end the expression."""
        start, value = self.at, self.operand(newlines=newlines)
        simple = True
        while True:
            end = self.at
            self.blank(newlines=newlines)
            if operator := _OPERATOR.match(self.text, self.at):
                self.at = operator.end()
                self.blank(newlines=True)
                self.operand(newlines=newlines)
            elif self.next_is("?"):
                self.at += 1
                self.blank(newlines=True)
                self.nested(newlines=newlines)
                self.blank(newlines=True)
                if not self.next_is(":"):
                    raise self.wrong("a ? needs a :")
                self.at += 1
                self.blank(newlines=True)
                self.nested(newlines=newlines)
            else:
                self.at = end
                return value if simple else Expression(self.text[start:end].strip(), self.lines.place(start))
            simple = False

    def nested(self, *, newlines: bool) -> Value:
        self.deeper()
        value = self.expression(newlines=newlines)
        self.depth -= 1
        return value

    def operand(self, *, newlines: bool) -> Value:
        start, place = self.at, self.here()
        if self.next_is("-", "!"):
            return self.unary(newlines=newlines)
        if self.next_is("(") or (self.next_is("[", "{") and _FOR.match(self.text, self.at + 1)):
            self.balanced()
            return self.traversal(start, Expression(self.text[start : self.at], place))
        if self.next_is('"', "[", "{"):
            return self.bracketed()
        return self.word(start, place)

    def bracketed(self) -> Value:
        if self.next_is('"'):
            return self.string()
        if self.next_is("{"):
            return self.body(self.here())
        start = self.at
        return self.traversal(start, self.sequence())

    def word(self, start: int, place: Place) -> Value:
        """Parses a heredoc, a number, a literal, or a name with the calls or indexes after it."""
        if heredoc := _HEREDOC.match(self.text, self.at):
            return self.heredoc(heredoc)
        if number := _NUMBER.match(self.text, self.at):
            self.at = number.end()
            return Scalar(self.number(number[0]), place)
        name = _NAME.match(self.text, self.at)
        if name is None:
            raise self.wrong(f"a value was expected, not {self.shown()}")
        self.at = name.end()
        if name[0] in _WORDS and not self.next_is(".", "[", "("):
            return Scalar(_WORDS[name[0]], place)
        return self.traversal(start, Expression(name[0], place))

    def number(self, text: str) -> float:
        """The number; an integer stays an integer, because people see it."""
        if text[:2] in {"0x", "0X"}:
            return int(text, 16)
        return int(text) if text.isdigit() and len(text) < 20 else float(text)

    def unary(self, *, newlines: bool) -> Value:
        place, sign = self.here(), self.text[self.at]
        self.deeper()
        self.at += 1
        self.blank(newlines=newlines)
        value = self.operand(newlines=newlines)
        self.depth -= 1
        if sign == "-" and isinstance(value, Scalar) and isinstance(value.value, int | float):
            return Scalar(-value.value, place)
        return Expression("", place)

    def traversal(self, start: int, value: Value) -> Value:
        """Parses the part after a name: calls, indexes, attributes, splats."""
        simple = True
        while True:
            if self.next_is("[", "("):
                self.balanced()
            elif self.next_is("...") or not (after := _AFTER.match(self.text, self.at)):
                return value if simple else Expression(self.text[start : self.at], self.lines.place(start))
            else:
                self.at = after.end()
            simple = False

    def sequence(self) -> Sequence:
        place = self.here()
        items: list[Value] = []
        self.deeper()
        self.at += 1
        while True:
            self.blank(newlines=True)
            if self.next_is("]"):
                self.at += 1
                self.depth -= 1
                return Sequence(tuple(items), place)
            if self.at >= len(self.text):
                raise self.wrong(f"a ] is missing: the list opened in line {place.line} does not end")
            items.append(self.expression(newlines=True))
            self.blank(newlines=True)
            if self.next_is(","):
                self.at += 1
            elif self.at < len(self.text) and not self.next_is("]"):
                raise self.wrong(f"in a list, a comma or ] was expected, not {self.shown()}")

    # strings

    def string(self) -> Scalar | Expression:
        start, place = self.at, self.here()
        known = self.skip_string()
        inner = self.text[start + 1 : self.at - 1]
        if not known:
            return Expression(inner, place)
        return Scalar(_ESCAPE.sub(_unescape, inner).replace("$${", "${").replace("%%{", "%{"), place)

    def skip_string(self) -> bool:
        """Skips a quoted string; returns whether it is free of interpolation."""
        opened, known = self.here(), True
        self.deeper()
        self.at += 1
        while self.at < len(self.text):
            if self.next_is('"'):
                self.at += 1
                self.depth -= 1
                return known
            if self.next_is("\n"):
                break
            if self.next_is("$${", "%%{"):
                self.at += 3
            elif self.next_is("${", "%{"):
                known = False
                self.at += 1
                self.balanced()
            else:
                self.at += 2 if self.text[self.at] == "\\" else 1
        raise MalformedError(opened, "a string is not closed on its line")

    def heredoc(self, opening: re.Match[str]) -> Scalar | Expression:
        place = self.here()
        closing = re.compile(rf"^[ \t]*{re.escape(opening['mark'])}[ \t]*\r?$", re.MULTILINE)
        end = closing.search(self.text, opening.end())
        if end is None:
            raise MalformedError(place, f"a heredoc lacks its closing {opening['mark']}")
        self.at = end.end()
        content = self.text[opening.end() : end.start()]
        if re.search(r"(?<![$%])[$%]\{", content):
            return Expression(content, place)
        return Scalar(content, place)

    def balanced(self) -> str:
        """Skips from a bracket to its closing bracket, past strings and comments; returns the skipped text."""
        start, opened, stack = self.at, self.here(), [_CLOSING[self.text[self.at]]]
        self.at += 1
        while stack:
            self.blank(newlines=True)
            if self.at >= len(self.text):
                raise MalformedError(opened, f"{self.text[start]} is never closed")
            character = self.text[self.at]
            if character == '"':
                self.skip_string()
                continue
            if heredoc := _HEREDOC.match(self.text, self.at):
                self.heredoc(heredoc)
                continue
            if character in _CLOSING:
                stack.append(_CLOSING[character])
            elif character in ")]}" and character != stack.pop():
                raise self.wrong(f"{character} does not close an open bracket")
            self.at += 1
        return self.text[start : self.at]

    # between things

    def blank(self, *, newlines: bool) -> None:
        """Skips spaces and comments; with `newlines`, line ends too."""
        while self.at < len(self.text):
            if space := _SPACE.match(self.text, self.at):
                self.at = space.end()
            elif newlines and self.next_is("\n"):
                self.at += 1
            elif self.next_is("#", "//"):
                end = self.text.find("\n", self.at)
                self.comment(len(self.text) if end < 0 else end, self.text[self.at : self.at + 2])
            elif self.next_is("/*"):
                end = self.text.find("*/", self.at + 2)
                if end < 0:
                    raise self.wrong("a comment is never closed")
                self.comment(end + 2, "/*")
            else:
                return

    def comment(self, end: int, mark: str) -> None:
        line_start = self.text.rfind("\n", 0, self.at) + 1
        trailing = bool(self.text[line_start : self.at].strip())
        said = self.text[self.at : end].removeprefix(mark if mark in {"//", "/*"} else "#").removesuffix("*/")
        self.comments[self.at] = Comment(said.strip(), self.here().line, trailing)
        self.at = end

    def next_is(self, *what: str) -> bool:
        return self.text.startswith(what, self.at)

    def here(self) -> Place:
        return self.lines.place(self.at)

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.wrong(f"nested deeper than {MAX_DEPTH}")

    def shown(self) -> str:
        """The text at this place, for a message."""
        line = self.text[self.at : self.at + 20].splitlines() or [""]
        return repr(line[0]) if line[0].strip() else "the end of the line"

    def wrong(self, what: str) -> MalformedError:
        return MalformedError(self.here(), what)


def _unescape(found: re.Match[str]) -> str:
    code = found[1]
    if len(code) > 1:
        number = int(code[1:], 16)
        return chr(number) if number <= 0x10FFFF else code
    return _ESCAPES.get(code, found[0])
