"""Reads Python, and answers what the rules ask of it: which calls are made of what, and what stands around them."""

from __future__ import annotations

import ast
import io
import tokenize
import warnings
from dataclasses import dataclass, field
from functools import cached_property

from hashidrill.clients.audit.python_clients import Clients
from hashidrill.clients.audit.python_names import CLIENTS, STARS, dotted
from hashidrill.clients.audit.tree import Comment, MalformedError, Place

_CLIENTS = ("consul", "hvac", "nomad", "requests", "tenacity", "urllib3")
"""What the rules ask about: a module that holds none of these words is parsed, but not looked into."""


@dataclass
class Module:
    """What the rules need of a module, from one walk over its tree."""

    names: dict[str, str] = field(default_factory=dict)
    """What each name that imports bind stands for: `Retry` -> `urllib3.util.retry.Retry`."""

    calls: list[tuple[ast.Call, str]] = field(default_factory=list)
    """All calls of something imported, with its full name, in the order of the file."""

    decorators: list[ast.expr] = field(default_factory=list)
    subclasses: list[tuple[ast.ClassDef, str]] = field(default_factory=list)
    """Classes of the module's own that are clients, each with the full name of the client that it extends."""

    tree: ast.Module | None = None
    """None for a module that is not looked into."""

    @cached_property
    def clients(self) -> Clients | None:
        return None if self.tree is None else Clients(self.tree, self.names)


def read_python(text: str) -> tuple[Module, list[Comment]]:
    """The module, and its comments. Raises MalformedError for what this Python cannot parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a caller's invalid escapes are not the question
            tree = ast.parse(text)
    except SyntaxError as error:
        place = Place(error.lineno or 1, max(error.offset or 1, 1))
        raise MalformedError(place, f"not Python 3: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError):
        raise MalformedError(Place(1, 1), "not Python 3, or nested too deep") from None
    module = _look_into(tree) if any(word in text for word in _CLIENTS) else Module()
    # splitting a file into tokens takes longer than all the rest
    return module, _comments(text) if "hashidrill" in text else []


def _look_into(tree: ast.Module) -> Module:
    module, calls, classes = Module(tree=tree), [], []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module.names |= _bound(node)
        elif isinstance(node, ast.Call):
            calls.append(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            module.decorators += node.decorator_list
        elif isinstance(node, ast.ClassDef):
            classes.append(node)
    for made in classes:
        bases = [dotted(base, module.names) for base in made.bases]
        if extended := next((base for base in bases if base in CLIENTS or (base and _adds_nothing(made))), ""):
            module.names[made.name] = extended  # a call of it makes what its base would
            module.subclasses += [(made, extended)] if extended in CLIENTS else []
    named = [(call, dotted(call.func, module.names)) for call in calls]
    module.calls = sorted((each for each in named if each[1]), key=lambda each: (each[0].lineno, each[0].col_offset))
    return module


def _adds_nothing(made: ast.ClassDef) -> bool:
    return all(isinstance(part, ast.Pass | ast.Expr) for part in made.body)


def _bound(node: ast.Import | ast.ImportFrom) -> dict[str, str]:
    if isinstance(node, ast.Import):
        roots = {alias.name.partition(".")[0]: alias.name.partition(".")[0] for alias in node.names if not alias.asname}
        return roots | {alias.asname: alias.name for alias in node.names if alias.asname}
    if node.module is None or node.level:
        return {}
    plain = [alias for alias in node.names if alias.name != "*"]
    named = {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in plain}
    if len(plain) < len(node.names):
        named |= {name: f"{node.module}.{name}" for name in STARS.get(node.module, ())}
    return named


def _comments(text: str) -> list[Comment]:
    found = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                trailing = bool(token.line[: token.start[1]].strip())
                found.append(Comment(token.string.lstrip("#").strip(), token.start[0], trailing))
    except (tokenize.TokenError, SyntaxError):
        pass  # ast has parsed it: only the comments after this are lost
    return found


def place_of(node: ast.expr | ast.stmt) -> Place:
    return Place(node.lineno, node.col_offset + 1)
