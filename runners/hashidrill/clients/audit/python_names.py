"""What expressions name, and what calls are given: by their syntax alone."""

from __future__ import annotations

import ast


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


def arguments(call: ast.Call, names: tuple[str, ...]) -> dict[str, ast.expr]:
    """What a call is given, by name; `names` are those of the positional ones. Nothing that comes by a star."""
    plain = [each for each in call.args if not isinstance(each, ast.Starred)]
    return dict(zip(names, plain, strict=False)) | keywords(call)


def last(node: ast.expr) -> str:
    """The last name of an expression: `c` of `a.b.c`; an empty string when it is no name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def retries_nothing(node: ast.expr, names: dict[str, str]) -> bool:
    """Whether this, given as `max_retries`, retries nothing: 0, None, `Retry(0)`, `Retry.from_int(0)`."""
    if isinstance(node, ast.Call) and dotted(node.func, names).removesuffix(".from_int").endswith(".Retry"):
        given = arguments(node, ("total",))
        return constant(given.get("total") or given.get("retries")) in (0, False)
    return constant(node) in (0, None)


def base_call(made: ast.ClassDef) -> ast.Call | None:
    """The `super().__init__(...)` of a class; None without."""
    calls = [node for node in ast.walk(made) if isinstance(node, ast.Call) and last(node.func) == "__init__"]
    return next((call for call in calls if isinstance(call.func, ast.Attribute) and _is_super(call.func.value)), None)


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and last(node.func) == "super"


STARS = {
    "consul": ("Consul",),
    "consul.std": ("Consul",),
    "consul.aio": ("Consul",),
    "hvac": ("Client",),
    "nomad": ("Nomad",),
    "requests": ("Session", "session"),
    "requests.adapters": ("HTTPAdapter", "Retry"),
    "tenacity": ("retry", "Retrying", "AsyncRetrying", "stop_after_attempt", "stop_never"),
    "urllib3": ("Retry",),
    "urllib3.util": ("Retry",),
    "urllib3.util.retry": ("Retry",),
}
"""What `from ... import *` brings of those names that the rules ask about."""

CLIENTS = frozenset(
    {
        "consul.Consul",
        "consul.aio.Consul",
        "consul.base.Consul",
        "consul.std.Consul",
        "hvac.Client",
        "hvac.v1.Client",
        "nomad.Nomad",
    }
)
SESSIONS = frozenset({"requests.Session", "requests.session", "requests.sessions.Session"})
ADAPTERS = frozenset({"requests.adapters.HTTPAdapter", "requests_toolbelt.adapters.HTTPAdapter"})
ADAPTER_ARGUMENTS = ("pool_connections", "pool_maxsize", "max_retries", "pool_block")
"""Of requests 2.34, in their order."""
