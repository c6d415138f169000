r"""Reads HCL version 1 like the agents Consul, Nomad, Vault and consul-template, with the position of each element.

This follows hashicorp/hcl v1.0.1 token by token (hcl/scanner, hcl/parser, json/scanner, json/parser, hcl/strconv),
including its oddities: it accepts and refuses the same texts. A text whose first character is `{` is in a dialect of
JSON: trailing commas are accepted, comments and `\/` are not, and anything after a missing comma is silently dropped.
Strings with `${...}` are Expressions: the agents keep them as written, but templates may fill them in before an agent
sees them.
"""

import re
from dataclasses import dataclass

from hashidrill.clients.audit.tree import (
    BYTE_ORDER_MARK,
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

_SPACE = re.compile(r"[ \t\r\n]+")
_NUMBER = re.compile(r"-?(?:0[xX][0-9a-fA-F]*|\d+(?:\.\d*)?(?:[eE][+-]?\d*)?)|\.\d+[eE]?", re.ASCII)
_HEREDOC = re.compile(r"<<(?P<trim>-?)(?P<mark>\w+)\r?\n")
_ESCAPE = re.compile(r'\\(?:[abfnrtv\\"]|[0-7]{3}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})')
_ESCAPES = dict(zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True))
_UNCOUNTED = re.compile(r'[^"\\$\n{}]+')
_LITERALS = frozenset({"number", "string", "heredoc", "bool", "null"})
_NOTHING = Place(1, 1)


@dataclass(frozen=True)
class Dialect:
    """The differences between the agents, which embed different versions of the HCL library."""

    duplicates: bool = True
    """Whether an attribute may be given twice; Nomad 1.10.5 and Vault 1.21 refuse that."""


CONSUL = Dialect()
NOMAD = Dialect(duplicates=False)
VAULT = Dialect(duplicates=False)


@dataclass(frozen=True)
class _Token:
    """For punctuation, `kind` is the character itself; at the end of the text, it is ""."""

    kind: str
    text: str
    place: Place
    value: Scalar | Expression


def read_hcl1(text: str, dialect: Dialect = CONSUL) -> tuple[Mapping, list[Comment]]:
    """The file as a Mapping, and its comments. Raises MalformedError."""
    if text.startswith("\ufeff"):
        raise MalformedError(_NOTHING, BYTE_ORDER_MARK)
    is_json = text.lstrip().startswith("{")
    scanner = _Scanner(text if is_json else text.replace("\r\n", "\n"), is_json=is_json)
    return (_Json if is_json else _Hcl)(scanner, dialect).file(), scanner.comments


class _Scanner:
    """Scans the tokens of a text one at a time, because the JSON parser may stop before the end."""

    def __init__(self, text: str, *, is_json: bool) -> None:
        self.text = text
        self.is_json = is_json
        self.at = 0
        self.lines = Lines(text)
        self.comments: list[Comment] = []
        self.last = _Token("", "", _NOTHING, Scalar(None, _NOTHING))
        self._again = False

    def next(self) -> _Token:
        if not self._again:
            self.last = self._scan()
        self._again = False
        return self.last

    def peek(self) -> _Token:
        token = self.next()
        self._again = True
        return token

    def wrong(self, what: str, at: int | None = None) -> MalformedError:
        return MalformedError(self.lines.place(self.at if at is None else at), what)

    def _scan(self) -> _Token:
        self._blank()
        start, place = self.at, self.lines.place(self.at)
        first = self.text[start : start + 1]
        value: Scalar | Expression = Scalar(None, place)
        if first == '"':
            kind, value = "string", self._string(place)
        elif found := _NUMBER.match(self.text, start):
            self.at, kind = found.end(), "number"
            value = Scalar(self._number(found[0], start), place)
        elif _letter(first):
            while (here := self._here) and (_letter(here) or here.isdecimal() or here in "-."[: 2 - self.is_json]):
                self.at += 1
            kind, value = self._word(self.text[start : self.at], place)
        elif first == "<" and not self.is_json:
            kind, value = "heredoc", self._heredoc(place)
        elif first and first not in ("{}[],:" if self.is_json else "{}[],=+-."):
            raise self.wrong(f"the character {first!r} is not allowed here")
        else:
            self.at, kind = start + len(first), first
        return _Token(kind, self.text[start : self.at], place, value)

    @property
    def _here(self) -> str:
        return self.text[self.at : self.at + 1]

    def _word(self, word: str, place: Place) -> tuple[str, Scalar]:
        if word in {"true", "false"}:
            return "bool", Scalar(word == "true", place)
        if self.is_json and word != "null":
            raise MalformedError(place, f"not JSON: {word[:20]!r} is not a value")
        return "null" if self.is_json else "name", Scalar(None, place)

    def _blank(self) -> None:
        while True:
            if space := _SPACE.match(self.text, self.at):
                self.at = space.end()
            if self.is_json or not self.text.startswith(("#", "/"), self.at):
                return
            start, end = self.at, self.text.find("\n", self.at)
            end = len(self.text) if end < 0 else end
            if self.text.startswith("/*", start):
                end = self.text.find("*/", start + 2) + 2
                if end < 2:
                    raise self.wrong("a comment is never closed")
            elif not self.text.startswith(("#", "//"), start):
                raise self.wrong("a comment starts with #, // or /*")
            said = self.text[start:end].removeprefix("//").removeprefix("/*").removeprefix("#").removesuffix("*/")
            before = self.text[self.text.rfind("\n", 0, start) + 1 : start]
            self.comments.append(Comment(said.strip(), self.lines.place(start).line, bool(before.strip())))
            self.at = end

    def _number(self, text: str, at: int) -> float:
        digits = text.lstrip("-")
        try:
            if digits[:2].lower() == "0x" and not self.is_json:
                number: float = int(text, 16)
            elif digits.isdecimal():
                octal = digits[0] == "0" and len(digits) > 1
                if octal and self.is_json:
                    raise self.wrong("a JSON number must not start with 0", at)
                number = int(text, 8) if octal else int(text) if len(digits) < 20 else 1 << 63
            else:
                number = float(text)
        except ValueError:
            raise self.wrong(f"{text!r} is not a number", at) from None
        if abs(number) == float("inf") or (isinstance(number, int) and not -(1 << 63) <= number < 1 << 63):
            raise self.wrong(f"{text[:20]!r} is too large for a number", at)
        return number

    def _string(self, place: Place) -> Scalar | Expression:
        """A quoted string; in HCL, quotes and line ends within `${...}` are part of the string."""
        start, braces, parts, known = self.at, 0, [], True
        self.at += 1
        while True:
            here = self._here
            if not here or (here == "\n" and (self.is_json or not braces)):
                raise self.wrong("a string is not closed on its line", start)
            if here == '"' and (self.is_json or not braces):
                break
            if here == "\\":
                escape = _ESCAPE.match(self.text, self.at)
                if escape is None:
                    raise self.wrong(f"{self.text[self.at : self.at + 2]!r} is not an HCL escape sequence")
                parts.append(escape[0] if braces else self._unescape(escape[0]))
                self.at = escape.end()
                continue
            if not self.is_json and not braces and self.text.startswith("${", self.at):
                braces, known, here = 1, False, "${"
            elif braces:
                braces += {"{": 1, "}": -1}.get(here, 0)
            elif plain := _UNCOUNTED.match(self.text, self.at):
                here = plain[0]
            parts.append(here)
            self.at += len(here)
        self.at += 1
        return Scalar("".join(parts), place) if known else Expression(self.text[start + 1 : self.at - 1], place)

    def _unescape(self, escape: str) -> str:
        code = escape[1:]
        if code[0] in "xuU":
            number = int(code[1:], 16)
        elif code.isdecimal():
            number = int(code, 8)
        else:
            return _ESCAPES.get(code, code)
        if number >= 1 << 31 and not self.is_json:
            return "\ufffd"  # hcl/strconv counts in 32 bits with a sign
        surrogate = 0xD800 <= number < 0xE000
        if number > (0xFF if code.isdecimal() else 0x10FFFF) or (surrogate and self.is_json):
            raise self.wrong(f"{escape} is not a character")
        return "\ufffd" if surrogate else chr(number)

    def _heredoc(self, place: Place) -> Scalar | Expression:
        opening = _HEREDOC.match(self.text, self.at)
        if opening is None or not all(_letter(one) or one.isdecimal() for one in opening["mark"]):
            raise self.wrong("<< needs a name, followed by the end of the line")
        mark, trim = opening["mark"], opening["trim"]
        # the closing line is at least as long as the text after <<, including the -
        ends = re.finditer(rf"^[ \t\r\v\f]*{mark}\r*\n", self.text[opening.end() :], re.MULTILINE)
        end = next((each for each in ends if len(each[0].encode()) > len((trim + mark).encode())), None)
        if end is None:
            raise self.wrong(f"a heredoc lacks its closing {mark} on a separate line")
        self.at = opening.end() + end.end()
        indent, content = end[0].partition(mark)[0], self.text[opening.end() : opening.end() + end.start()]
        lines = content.split("\n")
        if trim and all(line.startswith(indent) for line in lines[:-1]):
            content = "\n".join(line.removeprefix(indent) for line in lines)
        return Expression(content, place) if "${" in content else Scalar(content, place)


class _UnexpectedError(MalformedError):
    """The parser found an unexpected token. The parser may ignore such errors; a scanner error always ends parsing."""


class _EndError(Exception):
    """Raised at the end of the text: the unfinished element is dropped, the earlier ones stay."""


class _Hcl:
    def __init__(self, scanner: _Scanner, dialect: Dialect) -> None:
        self.scanner = scanner
        self.dialect = dialect
        self.depth = 0

    def file(self) -> Mapping:
        return Mapping(tuple(self.items([], within=False)), _NOTHING)

    def items(self, found: list[Entry], *, within: bool) -> list[Entry]:
        """Parses attributes and blocks up to the `}`, or to the end. If it raises, `found` has the elements so far."""
        given: dict[str, int] = {}
        try:
            while not (within and self.scanner.peek().kind == "}"):
                keys = self.keys()
                if self.scanner.last.kind == "{":
                    found.append(_entry(keys, self.body(keys[0].place)))
                else:
                    found.append(_entry(keys, self.value()))
                    if not self.dialect.duplicates and keys[0].text in given:
                        what = (
                            f"{_name(keys[0])} is already set in line {given[keys[0].text]}, and may be set only once"
                        )
                        raise MalformedError(keys[0].place, what)
                    given[keys[0].text] = keys[0].place.line
                if self.scanner.peek().kind == ",":
                    self.scanner.next()
        except _EndError:
            pass
        return found

    def keys(self) -> list[_Token]:
        """Parses the names before `=` or `{`, and that character."""
        keys: list[_Token] = []
        while (token := self.scanner.next()).kind in {"name", "string"}:
            keys.append(token)
        if not keys:
            if not token.kind:
                raise _EndError
            raise self.expected("a name")
        if token.kind == "=" and len(keys) > 1:
            raise MalformedError(token.place, f"a block with a label has no =: {_name(keys[0])} {_name(keys[1])}")
        if token.kind not in {"=", "{"}:
            raise MalformedError(token.place, f"after {_name(keys[-1])!r}, = or {{ was expected")
        return keys

    def value(self) -> Value:
        token = self.scanner.next()
        if not token.kind:
            raise _EndError
        if token.kind in _LITERALS:
            return token.value
        if token.kind == "{":
            return self.body(token.place)
        if token.kind == "[":
            return self.sequence(token.place)
        raise self.expected("a value")

    def body(self, place: Place) -> Mapping:
        self.deeper()
        entries: list[Entry] = []
        self.items(entries, within=True)
        if (end := self.scanner.next()).kind != "}":
            what = f"a }} is missing: the block opened in line {place.line} does not end"
            raise MalformedError(end.place, what)
        self.depth -= 1
        return Mapping(tuple(entries), place)

    def sequence(self, place: Place) -> Sequence:
        self.deeper()
        items: list[Value] = []
        comma = True
        while (token := self.scanner.next()).kind != "]":
            if token.kind == ",":
                comma = True
            elif not token.kind:
                raise MalformedError(token.place, f"a ] is missing: the list opened in line {place.line} does not end")
            elif not comma:
                raise self.expected("in a list, a comma or ]")
            elif token.kind == "[":
                items.append(self.sequence(token.place))  # no comma is needed after a nested list
            elif token.kind == "{" or token.kind in _LITERALS:
                items.append(self.body(token.place) if token.kind == "{" else token.value)
                comma = False
            else:
                raise self.expected("in a list, a value")
        self.depth -= 1
        return Sequence(tuple(items), place)

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise MalformedError(self.scanner.last.place, f"nested deeper than {MAX_DEPTH}")

    def expected(self, what: str) -> MalformedError:
        token = self.scanner.last
        shown = repr(token.text[:20]) if token.kind else "the end of the file"
        return _UnexpectedError(token.place, f"{what} was expected, not {shown}")


class _Json(_Hcl):
    def file(self) -> Mapping:
        return self.body(self.scanner.next().place)

    def body(self, place: Place) -> Mapping:
        """Parses entries until no comma follows one; an error at a `}` also ends the body."""
        self.deeper()
        entries: list[Entry] = []
        try:
            while True:
                keys = self.keys()
                entries.append(_entry(keys, self.value()))
                if self.scanner.next().kind != ",":
                    break
        except _EndError:
            pass
        except _UnexpectedError:
            if self.scanner.last.kind != "}":
                raise
        self.depth -= 1
        return Mapping(tuple(entries), place)

    def keys(self) -> list[_Token]:
        keys: list[_Token] = []
        while (token := self.scanner.next()).kind == "string":
            keys.append(token)
        if not token.kind:
            raise _EndError
        if token.kind != ":" or not keys:
            raise self.expected("a :" if keys else "a quoted name")
        return keys

    def sequence(self, place: Place) -> Sequence:
        """Parses a list of strings, numbers and objects; drops true, false and the [ of a nested list."""
        items: list[Value] = []
        while (token := self.scanner.next()).kind != "]":
            if token.kind in {"string", "number", "{"}:
                items.append(self.body(token.place) if token.kind == "{" else token.value)
            elif token.kind not in {",", "bool", "["}:
                raise self.expected("in a list, a value")
        return Sequence(tuple(items), place)


def _entry(keys: list[_Token], value: Value) -> Entry:
    return Entry(_name(keys[0]), tuple(map(_name, keys[1:])), value, keys[0].place)


def _name(key: _Token) -> str:
    if isinstance(key.value, Expression):
        return key.value.text
    return str(key.value.value) if key.kind == "string" else key.text


def _letter(character: str) -> bool:
    return character == "_" or character.isalpha()
