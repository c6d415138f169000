"""The clients that a module makes, by their names or by classes of its own, and what is asked of each of them."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from hashidrill.clients.audit.python_names import (
    ADAPTER_ARGUMENTS,
    ADAPTERS,
    SESSIONS,
    arguments,
    base_call,
    constant,
    dotted,
    keywords,
    last,
    retries_nothing,
    spreads,
)
from hashidrill.clients.audit.python_retries import FUNCTIONS, Retries, key_of

_CONNECTS = frozenset({"connect", "http_connect", "request"})
"""Methods of py-consul's and hvac's clients and transports that make what sends requests, or send them."""
_LIBRARIES_OWN = ("consul.", "hvac.adapters.", "nomad.")


@dataclass(frozen=True)
class Client:
    """A client that a module makes. `calls`: what is asked of it; `retried`: why, for each of these that is retried."""

    made: ast.Call | ast.ClassDef
    name: str
    given: dict[str, ast.expr]
    """What it is made with, by its own call and by its class."""
    transport: str = ""
    """Why what sends its requests may retry, for all that is seen here; empty where it does not."""
    calls: tuple[ast.expr, ...] = ()
    retried: tuple[str, ...] = ()
    mounted: int = 0
    """The line in which an adapter of the caller's own is mounted on its session; 0 without."""

    @property
    def bare(self) -> list[int]:
        """The lines of the calls that are not retried; none of them is seen where there is no call at all."""
        return sorted({call.lineno for call, why in zip(self.calls, self.retried, strict=True) if not why})

    @property
    def all_retried(self) -> str:
        """Why nothing is to be said of it; an empty string where something is."""
        if self.mounted:
            return f"an adapter is mounted on its session in line {self.mounted}"
        if self.transport:
            return self.transport
        if not self.calls or not all(self.retried):
            return ""
        count = f"its {len(self.calls)} calls are" if len(self.calls) > 1 else "its only call is"
        return f"{count} retried {', '.join(dict.fromkeys(self.retried))}"


class Clients(Retries):
    """A module's tree, read for the clients that it makes and for what retries their calls."""

    def found(self, made: Sequence[tuple[ast.Call | ast.ClassDef, str]]) -> list[Client]:
        """Of these calls and classes, which make clients, each with what is asked of what it makes."""
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
            if name.startswith("nomad."):  # its APIs have copies of its session
                replaced = [each for each in replaced if each[0] != "session"]
            replaced += [(key, given[key]) for key in ("session", "adapter") if key in given]
            why = [each for path, value in replaced if (each := self._transport_retries(path, value))]
            if any(map(spreads, makers)):
                why.append("it is made with * or **, which may hold a session that retries")
            if its_class is not None:
                methods = {part.name for part in its_class.body if isinstance(part, FUNCTIONS)}
                why += [f"its class makes connections of its own in {each}" for each in sorted(methods & _CONNECTS)]
                calls = tuple(each for each in calls if _first(each) not in methods) + self._inside(its_class, methods)
            retried = tuple(self.why(each) for each in calls)
            mounted = [each.lineno for each in mounts if self._may_retry(each)]
            found.append(Client(maker, name, given, "".join(why[:1]), calls, retried, mounted[0] if mounted else 0))
        return found

    def _inside(self, made: ast.ClassDef, methods: set[str]) -> tuple[ast.expr, ...]:
        """What the methods of a client's class ask of the client itself, `self.kv.get(...)`."""
        own = {
            node.attr for node in ast.walk(made) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        }
        uses = [self._use_of(node) for node in ast.walk(made) if isinstance(node, ast.Name) and node.id == "self"]
        return tuple(use for use in uses if isinstance(use, ast.Call) and _first(use) not in methods | own)

    def _transport_retries(self, path: str, value: ast.expr) -> str:
        """Why what is put in the place of a client's `session`, `http` or `adapter` may retry, for all that is seen."""
        what = path.rpartition(".")[2]
        shown = f"its {what} ({ast.unparse(value)[:40]}) may retry, which is not seen here"
        if what == "session":
            return shown if constant(value) is not None and self.session_retries(value) else ""
        of_library = dotted(value.func if isinstance(value, ast.Call) else value, self.names).startswith(_LIBRARIES_OWN)
        return shown if what in {"http", "adapter", "_adapter"} and not of_library else ""

    def session_retries(self, session: ast.expr) -> bool:
        """Whether what is given as a session may retry: not seen here, or with an adapter that may."""
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
        """Whether the adapter that is mounted is any but a plain one of requests, which retries nothing."""
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
        """Whether an adapter is told to retry after it was made: `adapter.max_retries = Retry(3)`."""
        return any(
            last(target) == "max_retries" and not retries_nothing(node.value, self.names)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Assign)
            for target in node.targets
        )

    def _is(self, node: ast.expr, names: frozenset[str]) -> bool:
        return isinstance(node, ast.Call) and dotted(node.func, self.names) in names

    def _asked(self, made: ast.Call | ast.ClassDef) -> tuple[list[ast.expr], list[tuple[str, ast.expr]]]:
        """Calls of attributes of what this makes, under all the names that it is given in this module.

        And what its attributes are set to, by their names: `http.session`.
        """
        known = [(key, scope) for key, scope in self._bound(made)]
        asked: list[ast.AST] = [use for use in [self._use_of(made)] if use is not None]
        replaced = []
        for key, scope in known:  # grows while it is walked over: an alias has aliases
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
        """(name, where it holds) that a value is given: assigned, returned, or handed to a function of this module."""
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
    """The first name after what a call is made of: `kv` of `client.kv.get()`."""
    name = ""
    node = call.func if isinstance(call, ast.Call) else call
    while isinstance(node, ast.Attribute):
        name, node = node.attr, node.value
    return name
