"""Reads Python, and answers what the rules ask of it: which calls are made of what, and what stands around them."""

from __future__ import annotations

import ast
import io
import tokenize
import warnings
from collections.abc import Iterator

from hashidrill.audit.tree import Comment, MalformedError, Place


def read_python(text: str) -> tuple[ast.Module, list[Comment]]:
    """The module, and its comments. Raises MalformedError for what this Python cannot parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a caller's invalid escapes are not the question
            module = ast.parse(text)
    except SyntaxError as error:
        place = Place(error.lineno or 1, max(error.offset or 1, 1))
        raise MalformedError(place, f"not Python 3: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError):
        raise MalformedError(Place(1, 1), "not Python 3, or nested too deep") from None
    return module, _comments(text)


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


def imported_names(module: ast.Module) -> dict[str, str]:
    """What each name that imports bind stands for: `Retry` -> `urllib3.util.retry.Retry`."""
    names = {}
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def dotted(node: ast.expr, names: dict[str, str]) -> str:
    """The full name of what an expression names, through the imports; an empty string when it names nothing."""
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    if isinstance(node, ast.Attribute):
        start = dotted(node.value, names)
        return f"{start}.{node.attr}" if start else ""
    return ""


def calls(module: ast.Module) -> Iterator[tuple[ast.Call, str]]:
    """All calls of something imported, with its full name, in the order of the file."""
    names = imported_names(module)
    found = [(node, dotted(node.func, names)) for node in ast.walk(module) if isinstance(node, ast.Call)]
    yield from sorted(
        ((node, name) for node, name in found if name), key=lambda each: (each[0].lineno, each[0].col_offset)
    )


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
