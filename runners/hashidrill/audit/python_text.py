"""Reads Python, and answers what the rules ask of it: which calls are made of what, and what stands around them."""

from __future__ import annotations

import ast
import io
import tokenize
import warnings
from dataclasses import dataclass, field

from hashidrill.audit.tree import Comment, MalformedError, Place

_CLIENTS = ("consul", "hvac", "nomad", "requests", "tenacity", "urllib3")
"""What the rules ask about: a module that holds none of these words is parsed, but not looked into."""

_LOOPS = (ast.For, ast.AsyncFor, ast.While)


@dataclass
class Module:
    """What the rules need of a module, from one walk over its tree."""

    names: dict[str, str] = field(default_factory=dict)
    """What each name that imports bind stands for: `Retry` -> `urllib3.util.retry.Retry`."""

    calls: list[tuple[ast.Call, str]] = field(default_factory=list)
    """All calls of something imported, with its full name, in the order of the file."""

    decorators: list[ast.expr] = field(default_factory=list)
    tries_in_a_loop: bool = False


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
    module, calls = Module(), []
    waiting: list[tuple[ast.AST, bool]] = [(tree, False)]
    while waiting:
        node, in_loop = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            module.names |= _bound(node)
        elif isinstance(node, ast.Call):
            calls.append(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            module.decorators += node.decorator_list
        elif isinstance(node, ast.Try) and in_loop:
            module.tries_in_a_loop = True
        in_loop = in_loop or isinstance(node, _LOOPS)
        waiting += [(child, in_loop) for child in ast.iter_child_nodes(node)]
    named = [(call, dotted(call.func, module.names)) for call in calls]
    module.calls = sorted((each for each in named if each[1]), key=lambda each: (each[0].lineno, each[0].col_offset))
    return module


def _bound(node: ast.Import | ast.ImportFrom) -> dict[str, str]:
    if isinstance(node, ast.Import):
        roots = {alias.name.partition(".")[0]: alias.name.partition(".")[0] for alias in node.names if not alias.asname}
        return roots | {alias.asname: alias.name for alias in node.names if alias.asname}
    if node.module is None or node.level:
        return {}
    return {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}


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


def dotted(node: ast.expr, names: dict[str, str]) -> str:
    """The full name of what an expression names, through the imports; an empty string when it names nothing."""
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    if isinstance(node, ast.Attribute):
        start = dotted(node.value, names)
        return f"{start}.{node.attr}" if start else ""
    return ""


def keywords(call: ast.Call) -> dict[str, ast.expr]:
    return {each.arg: each.value for each in call.keywords if each.arg}


def spreads(call: ast.Call) -> bool:
    """Whether it is called with `*args` or `**options`, whose content is not known."""
    return any(each.arg is None for each in call.keywords) or any(isinstance(each, ast.Starred) for each in call.args)


def constant(node: ast.expr | None) -> object:
    """A literal's value; Ellipsis when it is none, or not known."""
    if node is None:
        return ...
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        pass
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"frozenset", "set", "tuple"}:
        return constant(node.args[0]) if len(node.args) == 1 else ()
    return ...


def place_of(node: ast.expr | ast.stmt) -> Place:
    return Place(node.lineno, node.col_offset + 1)
