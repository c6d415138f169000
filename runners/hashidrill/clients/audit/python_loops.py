"""Whether a loop tries the same thing again after it failed, or goes on to the next one."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from hashidrill.clients.audit.python_names import constant, last

_TAKES = frozenset({"consume", "get_nowait", "next", "pop", "popleft", "readline", "receive", "recv", "get", "poll"})
_ENDS = (ast.Raise, ast.Return, ast.Break)


def tries_again(loop: ast.AST, tried: ast.Try) -> bool:
    """Whether a loop comes back to a `try` that failed, for the same thing, and ends when it succeeded."""
    if all(isinstance(handler.body[-1], _ENDS) for handler in tried.handlers) or not tried.handlers:
        return False
    asked_for = {node.id for part in tried.body for node in ast.walk(part) if isinstance(node, ast.Name)}
    if asked_for & _new_each_time(loop, tried):
        return False  # the next key, or the next message, is no second try for this one
    if not isinstance(loop, ast.While):
        return _leaves(loop, tried)
    if constant(loop.test) not in (..., False, None, 0):
        return True  # what runs for ever comes by again, whether it succeeded or not
    flags = {node.id for node in ast.walk(loop.test) if isinstance(node, ast.Name)}
    return bool(flags & set(_assigned((*tried.body, *tried.orelse)))) or _leaves(loop, tried)


def _new_each_time(loop: ast.AST, tried: ast.Try) -> set[str]:
    """Names that stand for something else each time: what is looped over, and what is taken from a queue."""
    found: set[str] = set()
    for node in ast.walk(loop):
        if isinstance(node, ast.For | ast.AsyncFor) and node.lineno < tried.lineno <= (node.end_lineno or 0):
            found |= {each.id for each in ast.walk(node.target) if isinstance(each, ast.Name)}
        elif isinstance(node, ast.Assign) and node.lineno < tried.lineno:
            value = node.value.value if isinstance(node.value, ast.Await) else node.value
            if isinstance(value, ast.Call) and last(value.func) in _TAKES:
                found |= set(_assigned([node]))
    return found


def _assigned(parts: Sequence[ast.stmt]) -> Iterator[str]:
    for node in (node for part in parts for node in ast.walk(part) if isinstance(node, ast.Assign)):
        yield from (each.id for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name))


def _leaves(loop: ast.AST, tried: ast.Try) -> bool:
    after = [part for part in getattr(loop, "body", []) if part.lineno > (tried.end_lineno or 0)]
    parts = (*tried.body, *tried.orelse, *after)
    return any(isinstance(node, ast.Return | ast.Break) for part in parts for node in ast.walk(part))
