"""Which client calls are retried, according to the caller's code: each call by itself, and why.

A call is retried where it stands in a function with a retrying decorator, in a loop that goes on after it failed and
ends after it succeeded, in a loop of a retrying library, or in what such a library is given to call; or in a function
that is called in such places alone. An import of tenacity retries nothing, and a `try` in a loop over keys goes on to
the next key.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from hashidrill.clients.audit.python_loops import tries_again
from hashidrill.clients.audit.python_names import constant, dotted, keywords, last

LIBRARIES = frozenset({"aiohttp_retry", "backoff", "opnieuw", "retry", "retrying", "riprova", "stamina", "tenacity"})
_BY_NAME = ("retry", "retries", "retrying", "backoff")
_DEEPEST = 5
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Retries:
    """A module's tree, read for what retries what. Build it once for a module."""

    tree: ast.Module
    names: dict[str, str]
    _parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    _functions: dict[str, list[Function]] = field(default_factory=dict)
    _classes: dict[str, list[ast.ClassDef]] = field(default_factory=dict)
    _own: set[str] = field(default_factory=set)
    """Names bound to what a retrying library made: `retryer = Retrying(...)`."""

    _keyed: dict[str, list[ast.AST]] = field(default_factory=dict)
    """All nodes by what `_key` says of them: a large module is walked over once."""
    _asked_about: list[Function] = field(default_factory=list)

    def __post_init__(self) -> None:
        for node in ast.walk(self.tree):
            for child in ast.iter_child_nodes(node):
                self._parents[child] = node
            if key := key_of(node):
                self._keyed.setdefault(key, []).append(node)
            if isinstance(node, FUNCTIONS):
                self._functions.setdefault(node.name, []).append(node)
            elif isinstance(node, ast.ClassDef):
                self._classes.setdefault(node.name, []).append(node)
            elif isinstance(node, ast.Assign) and self._library(node.value):
                self._own |= {target.id for target in node.targets if isinstance(target, ast.Name)}

    def _handed(self, value: ast.AST, parent: ast.AST) -> list[tuple[str, Function]]:
        """The parameter that it becomes, of a function or of a class of this module."""
        call = self._parents.get(parent) if isinstance(parent, ast.keyword) else parent
        if not isinstance(call, ast.Call) or value is call.func:
            return []
        target = self._target(call.func)
        if target is None:
            return []
        plain = [*target.args.posonlyargs, *target.args.args]
        if isinstance(parent, ast.keyword):
            return [(parent.arg, target)] if parent.arg else []
        place = next((index for index, each in enumerate(call.args) if each is value), 0)
        place += bool(plain and plain[0].arg in {"self", "cls"})
        return [(plain[place].arg, target)] if place < len(plain) else []

    def _target(self, func: ast.expr) -> Function | None:
        name = last(func) if key_of(func) else ""
        functions = self._functions.get(name, [])
        for node in self._classes.get(name, []):
            functions = [each for each in node.body if isinstance(each, FUNCTIONS) and each.name == "__init__"]
        return functions[0] if len(functions) == 1 else None

    def _chain(self, node: ast.AST) -> ast.AST:
        """The longest `node.a.b` that begins with this."""
        while isinstance(parent := self._parents.get(node), ast.Attribute):
            node = parent
        return node

    def _use_of(self, node: ast.AST) -> ast.AST | None:
        """The call of an attribute of this, or the attribute itself where it is handed to somebody to call."""
        chain = self._chain(node)
        if chain is node:
            return None
        parent = self._parents.get(chain)
        if isinstance(parent, ast.Call):
            return parent if parent.func is chain else chain
        return chain if isinstance(parent, ast.keyword) else None

    # what retries

    def why(self, node: ast.AST, depth: int = 0) -> str:
        """Why this expression is retried; an empty string when it is not."""
        function = self._function(node)
        return self._around(node, function) or (self._of_function(function, depth) if function is not None else "")

    def _around(self, node: ast.AST, function: ast.AST | None) -> str:
        """What retries it between it and the function that it stands in."""
        child, parent = node, self._parents.get(node)
        tried: ast.Try | None = None
        while parent is not None and parent is not function:
            if isinstance(parent, ast.Call) and child is not parent.func and self._retrying(parent.func):
                return f"by {ast.unparse(parent.func)[:40]} in line {parent.lineno}"
            if isinstance(parent, ast.Call | ast.keyword) and (by := self._called_again(child, parent)):
                return by
            if isinstance(parent, ast.Try) and child in parent.body:
                tried = tried or parent
            elif isinstance(parent, _LOOPS):
                looped = child in parent.body
                if looped and isinstance(parent, ast.For | ast.AsyncFor) and self._attempts(parent.iter):
                    return f"in the loop of line {parent.lineno}"
                if looped and tried is not None and tries_again(parent, tried):
                    return f"in the loop of line {parent.lineno}"
            child, parent = parent, self._parents.get(parent)
        return ""

    def _called_again(self, handed: ast.AST, parent: ast.AST) -> str:
        """Whether a function of this module is handed this, a function too, and calls it where that is retried."""
        for name, function in self._handed(handed, parent):
            if function in self._asked_about:  # it hands it to itself
                continue
            calls = [
                node
                for node in ast.walk(function)
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
            ]
            self._asked_about.append(function)
            again = bool(calls) and all(self._around(call, self._function(call)) for call in calls)
            self._asked_about.pop()
            if again:
                return f"by {function.name} (line {function.lineno})"
        return ""

    def _of_function(self, function: Function, depth: int) -> str:
        """Why all of a function is retried: its decorators, or each place in which it is called."""
        for decorator in function.decorator_list:
            if self._retrying(decorator):
                return f"under @{ast.unparse(decorator)[:40]} on {function.name} (line {function.lineno})"
        if depth >= _DEEPEST or len(self._functions[function.name]) > 1:
            return ""
        named = [*self._keyed.get(function.name, []), *self._keyed.get(f"self.{function.name}", [])]
        places = [node for node in named if self._names(node, function) and self._outside(node, function)]
        reasons = [self.why(place, depth + 1) for place in places]
        return f"in {function.name}, called {reasons[0]}" if reasons and all(reasons) else ""

    def _names(self, node: ast.AST, function: Function) -> bool:
        """Whether this is a call of the function, or hands it to somebody."""
        named = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id == function.name
        return named or (isinstance(node, ast.Attribute) and key_of(node) == f"self.{function.name}")

    def _outside(self, node: ast.AST, function: Function) -> bool:
        return self._function(node) is not function

    def _retrying(self, node: ast.expr) -> bool:
        """Whether this is something that retries what it is given: of a library, or by its name."""
        if isinstance(node, ast.Call) and _gives_up_at_once(node):
            return False
        if self._library(node):
            return True
        while isinstance(node, ast.Call | ast.Attribute) and not self._library(node):
            if isinstance(node, ast.Attribute) and _says_so(node.attr):
                return True
            node = node.func if isinstance(node, ast.Call) else node.value
        return isinstance(node, ast.Name) and (node.id in self._own or (_says_so(node.id) and not self._urllib3(node)))

    def _attempts(self, node: ast.expr) -> bool:
        """Whether going over this is trying again: `for attempt in Retrying(...)`. A name alone does not say so."""
        return self._library(node) or last(node.func if isinstance(node, ast.Call) else node) in self._own

    def _urllib3(self, node: ast.Name) -> bool:
        """urllib3's Retry retries what a session sends, and nothing that it is given to call."""
        return self.names.get(node.id, "").endswith(".Retry")

    def _library(self, node: ast.AST) -> bool:
        """Whether this is, or comes from, what one of the libraries calls retrying."""
        while isinstance(node, ast.Call):
            if _gives_up_at_once(node):
                return False
            node = node.func
        name = dotted(node, self.names) if isinstance(node, ast.expr) else ""
        root, _, rest = name.partition(".")
        return root in LIBRARIES and not rest.rpartition(".")[2].startswith(("stop_", "wait_", "before_", "after_"))

    def _within(self, node: ast.AST, scope: ast.AST) -> bool:
        above: ast.AST | None = node
        while above is not None and above is not scope:
            above = self._parents.get(above)
        return above is scope

    def _class(self, node: ast.AST) -> ast.ClassDef | None:
        above = self._parents.get(node)
        while above is not None and not isinstance(above, ast.ClassDef):
            above = self._parents.get(above)
        return above

    def _function(self, node: ast.AST) -> Function | None:
        above = self._parents.get(node)
        while above is not None and not isinstance(above, FUNCTIONS):
            above = self._parents.get(above)
        return above


def _gives_up_at_once(call: ast.Call) -> bool:
    """`stop=stop_after_attempt(1)`, `tries=1`, `max_tries=1`: one attempt is no retry."""
    given = keywords(call)
    stop = given.get("stop")
    if isinstance(stop, ast.Call) and last(stop.func) == "stop_after_attempt" and stop.args:
        return constant(stop.args[0]) == 1
    return any(constant(given.get(name)) == 1 for name in ("tries", "max_tries", "attempts"))


def _says_so(name: str) -> bool:
    return any(word in name.lower() for word in _BY_NAME)


def key_of(node: ast.AST) -> str:
    """How a client is called in this place: `client`, `self.client`, `client()` for a function that returns it."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}:
        return f"self.{node.attr}"
    if isinstance(node, ast.Call):
        name = key_of(node.func)
        return f"{name.removeprefix('self.')}()" if name else ""
    return ""
