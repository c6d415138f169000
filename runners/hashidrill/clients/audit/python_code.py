"""Reads Python: the clients that a module creates, their calls, and which of these calls are retried, and why.

A call is retried in a function with a retrying decorator, in a loop that continues after a failure and ends after a
success, in a loop of a retrying library, in a function passed to such a library, or in a function that is called only
in such places. Importing tenacity does not retry, and a `try` in a loop over keys goes on to the next key.
"""

import ast
import io
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from hashidrill.clients.audit.tree import Comment, MalformedError, Place


def dotted(node: ast.expr, names: dict[str, str]) -> str:
    """The full name of an expression, through the imports; "" if it has none."""
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    if isinstance(node, ast.Attribute):
        start = dotted(node.value, names)
        return f"{start}.{node.attr}" if start else ""
    return ""


def keywords(call: ast.Call) -> dict[str, ast.expr]:
    return {each.arg: each.value for each in call.keywords if each.arg}


def spreads(call: ast.Call) -> bool:
    """Whether the call has `*args` or `**options`, whose content is unknown."""
    return any(each.arg is None for each in call.keywords) or any(isinstance(each, ast.Starred) for each in call.args)


def constant(node: ast.expr | None) -> object:
    """A literal's value; Ellipsis if the node is not a literal."""
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
    """A call's arguments by name; `names` names the positional ones. Starred arguments are ignored."""
    plain = [each for each in call.args if not isinstance(each, ast.Starred)]
    return dict(zip(names, plain, strict=False)) | keywords(call)


def last(node: ast.expr) -> str:
    """The last name of an expression: `c` of `a.b.c`; "" if it is not a name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def retries_nothing(node: ast.expr, names: dict[str, str]) -> bool:
    """Whether this value of `max_retries` disables retries: 0, None, `Retry(0)`, `Retry.from_int(0)`."""
    if isinstance(node, ast.Call) and dotted(node.func, names).removesuffix(".from_int").endswith(".Retry"):
        given = arguments(node, ("total",))
        return constant(given.get("total") or given.get("retries")) in (0, False)
    return constant(node) in (0, None)


def base_call(made: ast.ClassDef) -> ast.Call | None:
    """The `super().__init__(...)` call of a class; None if it has none."""
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
"""For each module, the names relevant for the rules that `from ... import *` imports."""

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
"""The arguments of HTTPAdapter in requests 2.34, in order."""


_TAKES = frozenset({"consume", "get_nowait", "next", "pop", "popleft", "readline", "receive", "recv", "get", "poll"})
_ENDS = (ast.Raise, ast.Return, ast.Break)


def tries_again(loop: ast.AST, tried: ast.Try) -> bool:
    """Whether a loop repeats a failed `try` for the same request, and ends when it succeeds."""
    if all(isinstance(handler.body[-1], _ENDS) for handler in tried.handlers) or not tried.handlers:
        return False
    asked_for = {node.id for part in tried.body for node in ast.walk(part) if isinstance(node, ast.Name)}
    if asked_for & _new_each_time(loop, tried):
        return False  # a loop over keys or messages does not retry: each iteration handles the next one
    if not isinstance(loop, ast.While):
        return _leaves(loop, tried)
    if constant(loop.test) not in (..., False, None, 0):
        return True  # an endless loop repeats whether the call succeeded or not
    flags = {node.id for node in ast.walk(loop.test) if isinstance(node, ast.Name)}
    return bool(flags & set(_assigned((*tried.body, *tried.orelse)))) or _leaves(loop, tried)


def _new_each_time(loop: ast.AST, tried: ast.Try) -> set[str]:
    """Names that are rebound in each iteration: loop variables, and items taken from a queue."""
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


LIBRARIES = frozenset({"aiohttp_retry", "backoff", "opnieuw", "retry", "retrying", "riprova", "stamina", "tenacity"})
_BY_NAME = ("retry", "retries", "retrying", "backoff")
_DEEPEST = 5
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Retries:
    """Finds in a module's syntax tree which code retries which calls. Create one per module."""

    tree: ast.Module
    names: dict[str, str]
    _parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    _functions: dict[str, list[Function]] = field(default_factory=dict)
    _classes: dict[str, list[ast.ClassDef]] = field(default_factory=dict)
    _own: set[str] = field(default_factory=set)
    """Names bound to an object of a retry library: `retryer = Retrying(...)`."""

    _keyed: dict[str, list[ast.AST]] = field(default_factory=dict)
    """All nodes, grouped by `key_of`, so that a large module is walked only once."""
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
        """The longest `node.a.b` that begins with this node."""
        while isinstance(parent := self._parents.get(node), ast.Attribute):
            node = parent
        return node

    def _use_of(self, node: ast.AST) -> ast.AST | None:
        chain = self._chain(node)
        if chain is node:
            return None
        parent = self._parents.get(chain)
        if isinstance(parent, ast.Call):
            return parent if parent.func is chain else chain
        return chain if isinstance(parent, ast.keyword) else None

    # what retries

    def why(self, node: ast.AST, depth: int = 0) -> str:
        """Why this expression is retried; "" if it is not."""
        function = self._function(node)
        return self._around(node, function) or (self._of_function(function, depth) if function is not None else "")

    def _around(self, node: ast.AST, function: ast.AST | None) -> str:
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
        for name, function in self._handed(handed, parent):
            if function in self._asked_about:  # a function that passes it to itself
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
        """Why the whole function is retried: by a decorator, or at each place that calls it; "" if it is not."""
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
        named = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id == function.name
        return named or (isinstance(node, ast.Attribute) and key_of(node) == f"self.{function.name}")

    def _outside(self, node: ast.AST, function: Function) -> bool:
        return self._function(node) is not function

    def _retrying(self, node: ast.expr) -> bool:
        """Whether this callable retries the function passed to it, judged by its library or its name."""
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
        """Whether a loop over this retries: `for attempt in Retrying(...)`. A name alone is no proof."""
        return self._library(node) or last(node.func if isinstance(node, ast.Call) else node) in self._own

    def _urllib3(self, node: ast.Name) -> bool:
        """Whether this is urllib3's Retry, which repeats only what a session sends, and not a function."""
        return self.names.get(node.id, "").endswith(".Retry")

    def _library(self, node: ast.AST) -> bool:
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
    """Whether there is only one attempt: `stop=stop_after_attempt(1)`, `tries=1`, `max_tries=1`."""
    given = keywords(call)
    stop = given.get("stop")
    if isinstance(stop, ast.Call) and last(stop.func) == "stop_after_attempt" and stop.args:
        return constant(stop.args[0]) == 1
    return any(constant(given.get(name)) == 1 for name in ("tries", "max_tries", "attempts"))


def _says_so(name: str) -> bool:
    return any(word in name.lower() for word in _BY_NAME)


def key_of(node: ast.AST) -> str:
    """A client's name at this node: `client`, `self.client`, or `client()` for a function that returns it."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}:
        return f"self.{node.attr}"
    if isinstance(node, ast.Call):
        name = key_of(node.func)
        return f"{name.removeprefix('self.')}()" if name else ""
    return ""


_CONNECTS = frozenset({"connect", "http_connect", "request"})
"""Methods of py-consul's and hvac's clients and transports that send requests, or create the sender."""
_LIBRARIES_OWN = ("consul.", "hvac.adapters.", "nomad.")


@dataclass(frozen=True)
class Client:
    """A client that a module creates. `calls`: the calls of its methods; `retried`: why each is retried, or ""."""

    made: ast.Call | ast.ClassDef
    name: str
    given: dict[str, ast.expr]
    """The client's arguments, from its call and its class."""
    transport: str = ""
    """Why the client's sender may retry, as far as this module shows; "" if it does not."""
    calls: tuple[ast.expr, ...] = ()
    retried: tuple[str, ...] = ()
    mounted: int = 0
    """The line that mounts a custom adapter on the client's session; 0 if there is none."""

    @property
    def bare(self) -> list[int]:
        """The lines of the calls that are not retried."""
        return sorted({call.lineno for call, why in zip(self.calls, self.retried, strict=True) if not why})

    @property
    def all_retried(self) -> str:
        """Why there is no finding to report; "" if there is one."""
        if self.mounted:
            return f"an adapter is mounted on its session in line {self.mounted}"
        if self.transport:
            return self.transport
        if not self.calls or not all(self.retried):
            return ""
        count = f"its {len(self.calls)} calls are" if len(self.calls) > 1 else "its only call is"
        return f"{count} retried {', '.join(dict.fromkeys(self.retried))}"


class Clients(Retries):
    """Finds in a module's syntax tree the clients that it creates, and the code that retries their calls."""

    def found(self, made: Sequence[tuple[ast.Call | ast.ClassDef, str]]) -> list[Client]:
        """The clients that these calls and classes create, each with the calls of its methods."""
        found = []
        for maker, name in made:
            its_class = maker if isinstance(maker, ast.ClassDef) else self._classes.get(key_of(maker.func), [None])[0]
            makers = [maker] if isinstance(maker, ast.Call) else []
            if its_class is not None and (base := base_call(its_class)) is not None:
                makers.append(base)
            given = {key: value for each in makers for key, value in keywords(each).items()}
            asked, replaced = self._asked(maker)
            mounts = [each for each in asked if isinstance(each, ast.Call) and last(each.func) == "mount"]
            calls = tuple(each for each in asked if each not in mounts)
            if name.startswith("nomad."):  # its APIs copy its session, so replacing the session has no effect
                replaced = [each for each in replaced if each[0] != "session"]
            replaced += [(key, given[key]) for key in ("session", "adapter") if key in given]
            why = [each for path, value in replaced if (each := self._transport_retries(path, value))]
            if any(map(spreads, makers)):
                why.append("it is created with * or **, which may contain a session that retries")
            if its_class is not None:
                methods = {part.name for part in its_class.body if isinstance(part, FUNCTIONS)}
                why += [f"its class makes its own connections in {each}" for each in sorted(methods & _CONNECTS)]
                calls = tuple(each for each in calls if _first(each) not in methods) + self._inside(its_class, methods)
            retried = tuple(self.why(each) for each in calls)
            mounted = [each.lineno for each in mounts if self._may_retry(each)]
            found.append(Client(maker, name, given, "".join(why[:1]), calls, retried, mounted[0] if mounted else 0))
        return found

    def _inside(self, made: ast.ClassDef, methods: set[str]) -> tuple[ast.expr, ...]:
        """The calls that the methods of the client's class make on the client itself, like `self.kv.get(...)`."""
        own = {
            node.attr for node in ast.walk(made) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        }
        uses = [self._use_of(node) for node in ast.walk(made) if isinstance(node, ast.Name) and node.id == "self"]
        return tuple(use for use in uses if isinstance(use, ast.Call) and _first(use) not in methods | own)

    def _transport_retries(self, path: str, value: ast.expr) -> str:
        """Why the value set as a client's `session`, `http` or `adapter` may retry; "" if it does not."""
        what = path.rpartition(".")[2]
        shown = f"its {what} ({ast.unparse(value)[:40]}) may retry, which is not seen here"
        if what == "session":
            return shown if constant(value) is not None and self.session_retries(value) else ""
        of_library = dotted(value.func if isinstance(value, ast.Call) else value, self.names).startswith(_LIBRARIES_OWN)
        return shown if what in {"http", "adapter", "_adapter"} and not of_library else ""

    def session_retries(self, session: ast.expr) -> bool:
        """Whether the given session may retry: it was made elsewhere, or has an adapter that may retry."""
        key, makers = key_of(session), [session]
        nodes = list(ast.walk(self.tree))
        if key and not isinstance(session, ast.Call):
            assigned = [node for node in nodes if isinstance(node, ast.Assign)]
            makers = [node.value for node in assigned if any(key_of(target) == key for target in node.targets)]
        if not makers or not all(self._is(maker, SESSIONS) for maker in makers) or self._adapter_is_set:
            return True
        mounts = [node for node in nodes if isinstance(node, ast.Call) and last(node.func) == "mount"]
        return any(
            isinstance(each.func, ast.Attribute) and key_of(each.func.value) == key and self._may_retry(each)
            for each in mounts
        )

    def _may_retry(self, mount: ast.Call) -> bool:
        """Whether the mounted adapter may retry, unlike requests' default adapter."""
        adapter = arguments(mount, ("prefix", "adapter")).get("adapter")
        if isinstance(adapter, ast.Name):
            made = [
                node.value
                for node in ast.walk(self.tree)
                if isinstance(node, ast.Assign) and any(key_of(target) == adapter.id for target in node.targets)
            ]
            adapter = made[0] if len(made) == 1 else None
        if not isinstance(adapter, ast.Call) or not self._is(adapter, ADAPTERS) or spreads(adapter):
            return True
        given = arguments(adapter, ADAPTER_ARGUMENTS).get("max_retries", ast.Constant(0))
        return self._adapter_is_set or not retries_nothing(given, self.names)

    @cached_property
    def _adapter_is_set(self) -> bool:
        """Whether the code sets an adapter's retries after creating it: `adapter.max_retries = Retry(3)`."""
        return any(
            last(target) == "max_retries" and not retries_nothing(node.value, self.names)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Assign)
            for target in node.targets
        )

    def _is(self, node: ast.expr, names: frozenset[str]) -> bool:
        return isinstance(node, ast.Call) and dotted(node.func, self.names) in names

    def _asked(self, made: ast.Call | ast.ClassDef) -> tuple[list[ast.expr], list[tuple[str, ast.expr]]]:
        """The method calls on the object that this node creates, under each name that the module gives the object.

        Also returns the values assigned to its attributes, by attribute: `http.session`.
        """
        known = [(key, scope) for key, scope in self._bound(made)]
        asked: list[ast.AST] = [use for use in [self._use_of(made)] if use is not None]
        replaced = []
        for key, scope in known:  # grows during the loop, because an alias may have aliases
            for node in self._keyed.get(key, []):
                if isinstance(getattr(node, "ctx", None), ast.Store) or not self._within(node, scope):
                    continue
                use, chain = self._use_of(node), self._chain(node)
                if use is not None:
                    asked.append(use)
                if isinstance(assigned := self._parents.get(chain), ast.Assign) and chain in assigned.targets:
                    replaced.append((ast.unparse(chain).removeprefix(f"{ast.unparse(node)}."), assigned.value))
                for more in self._bound(chain):
                    if more not in known and len(known) < 50:
                        known.append(more)
        return [each for each in dict.fromkeys(asked) if isinstance(each, ast.expr)], replaced

    def _bound(self, value: ast.AST) -> list[tuple[str, ast.AST]]:
        """(name, scope) of each name that a value gets: assigned, returned, or passed to a function of this module."""
        parent = self._parents.get(value)
        while isinstance(parent, ast.BoolOp | ast.IfExp | ast.Await):
            value, parent = parent, self._parents.get(parent)
        targets: list[ast.expr] = []
        if isinstance(parent, ast.Assign):
            targets = parent.targets
        elif isinstance(parent, ast.AnnAssign | ast.NamedExpr):
            targets = [parent.target]
        elif isinstance(parent, ast.withitem) and parent.optional_vars is not None:
            targets = [parent.optional_vars]
        elif isinstance(parent, ast.Return | ast.Yield):
            return self._returned(parent)
        elif isinstance(parent, ast.Call | ast.keyword):
            return list(self._handed(value, parent))
        found: list[tuple[str, ast.AST]] = []
        for key, target in ((key_of(target), target) for target in targets):
            scope: ast.AST | None = self._function(target) if isinstance(target, ast.Name) else self._class(target)
            if scope is not None and any(isinstance(n, ast.Global) and key in n.names for n in ast.walk(scope)):
                scope = None
            if key:
                found.append((key, scope or self.tree))
        return found

    def _returned(self, parent: ast.AST) -> list[tuple[str, ast.AST]]:
        function = self._function(parent)
        if function is None:
            return []
        is_property = any(last(each).endswith("property") for each in function.decorator_list)
        scope = self._class(function) or self.tree if is_property else self.tree
        return [(f"self.{function.name}" if is_property else f"{function.name}()", scope)]


def _first(call: ast.AST) -> str:
    """The first name after the called object: `kv` in `client.kv.get()`."""
    name = ""
    node = call.func if isinstance(call, ast.Call) else call
    while isinstance(node, ast.Attribute):
        name, node = node.attr, node.value
    return name


_CLIENTS = ("consul", "hvac", "nomad", "requests", "tenacity", "urllib3")
"""The libraries that the rules know: a module without these words is parsed, but not examined."""


@dataclass
class Module:
    """The facts about a module that the rules need, from one walk over its syntax tree."""

    names: dict[str, str] = field(default_factory=dict)
    """The full name of each imported name: `Retry` -> `urllib3.util.retry.Retry`."""

    calls: list[tuple[ast.Call, str]] = field(default_factory=list)
    """All calls of imported functions and classes, with their full names, in the order of the file."""

    decorators: list[ast.expr] = field(default_factory=list)
    subclasses: list[tuple[ast.ClassDef, str]] = field(default_factory=list)
    """The module's own classes that are clients, each with the full name of the client that it extends."""

    tree: ast.Module | None = None
    """None if the module mentions none of `_CLIENTS`."""

    @cached_property
    def clients(self) -> Clients | None:
        return None if self.tree is None else Clients(self.tree, self.names)


def read_python(text: str) -> tuple[Module, list[Comment]]:
    """The module, and its comments. Raises MalformedError if this Python cannot parse the text."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a caller's invalid escapes do not matter here
            tree = ast.parse(text)
    except SyntaxError as error:
        place = Place(error.lineno or 1, max(error.offset or 1, 1))
        raise MalformedError(place, f"not Python 3: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError):
        raise MalformedError(Place(1, 1), "not Python 3, or nested too deeply") from None
    module = _look_into(tree) if any(word in text for word in _CLIENTS) else Module()
    # splitting a file into tokens takes longer than everything else
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
            module.names[made.name] = extended  # calling the subclass creates the same kind of client as its base
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
        pass  # ast has parsed the text, so only later comments are lost
    return found


def place_of(node: ast.expr | ast.stmt) -> Place:
    return Place(node.lineno, node.col_offset + 1)
