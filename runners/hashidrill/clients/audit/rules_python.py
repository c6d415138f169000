"""Rules about Python that calls Consul, Nomad and Vault, or anything over urllib3. They only read the caller's module.

The rules do not see how other modules use the client. They judge each call of a client separately: a retry around one
call says nothing about the other calls.
"""

import ast
import re
from collections.abc import Iterator

from hashidrill.clients.audit.audited import Audited, Hit, rule
from hashidrill.clients.audit.python_code import (
    ADAPTER_ARGUMENTS,
    ADAPTERS,
    Client,
    Module,
    arguments,
    constant,
    dotted,
    keywords,
    last,
    place_of,
    spreads,
)
from hashidrill.clients.audit.sources import Document

_CONSUL = {"consul.Consul", "consul.std.Consul", "consul.aio.Consul", "consul.base.Consul"}
_RETRY = (
    "total",
    "connect",
    "read",
    "redirect",
    "status",
    "other",
    "allowed_methods",
    "status_forcelist",
    "backoff_factor",
)
"""Retry's positional arguments, in the order of requests 2.34 and urllib3 2.8."""
_POOLS = {"urllib3.PoolManager", "urllib3.ProxyManager", "urllib3.HTTPConnectionPool", "urllib3.HTTPSConnectionPool"}


def _modules(audited: Audited) -> Iterator[tuple[Document, Module]]:
    for document in audited.of("python"):
        if document.module is not None:
            yield document, document.module


def _is_retry(name: str) -> bool:
    return name.endswith(".Retry") and ("urllib3" in name or name == "requests.adapters.Retry")


def ignores_429(document: Document) -> bool:
    """Whether this module has calls to Consul that it does not retry."""
    module = document.module
    return module is not None and any(not client.all_retried for client in _clients(module, _CONSUL))


def _clients(module: Module, names: set[str]) -> list[Client]:
    made: list[tuple[ast.Call | ast.ClassDef, str]] = [(call, name) for call, name in module.calls if name in names]
    called = {last(call.func) for call, _ in module.calls}
    called |= {last(base) for each, _ in module.subclasses for base in each.bases}
    made += [(each, name) for each, name in module.subclasses if name in names and each.name not in called]
    return module.clients.found(made) if made and module.clients is not None else []


def _without_retry(audited: Audited, names: set[str], product: str) -> Iterator[Hit]:
    """A hit for each client with a call that is not retried; if all its calls are retried, the hit is muted."""
    for document, module in _modules(audited):
        for client in _clients(module, names):
            text = f"this {product} client sends each request once, and nothing here retries"
            if client.bare and len(client.bare) < len(client.calls):
                lines = ", ".join(map(str, client.bare[:5]))
                of = f"{len(client.bare)} of the lines that call it"
                text = f"this {product} client sends each request once, and nothing retries {of}: {lines}"
            yield Hit(document, place_of(client.made), text, muted=client.all_retried)


@rule("HD601")
def python_consul_no_retry(audited: Audited) -> Iterator[Hit]:
    yield from _without_retry(audited, _CONSUL, "Consul")


@rule("HD602")
def python_consul_no_timeout(audited: Audited) -> Iterator[Hit]:
    for document, module in _modules(audited):
        for client in _clients(module, _CONSUL):
            given = client.given.get("connections_timeout")
            if given is None:
                text = "no connections_timeout: before py-consul 1.8 this waits for ever"
                # a session does not have its own timeout
                may = client.transport and not client.transport.startswith("its session")
                muted = f"{client.transport}, or set a timeout" if may else ""
                yield Hit(document, place_of(client.made), text, muted=muted)
            elif constant(given) is None:
                yield Hit(document, place_of(client.made), "connections_timeout=None: this waits for ever")


@rule("HD603")
def python_vault_no_retry(audited: Audited) -> Iterator[Hit]:
    yield from _without_retry(audited, {"hvac.Client", "hvac.v1.Client"}, "Vault")


@rule("HD604")
def python_nomad_no_retry(audited: Audited) -> Iterator[Hit]:
    yield from _without_retry(audited, {"nomad.Nomad"}, "Nomad")


def _retries(audited: Audited) -> Iterator[tuple[Document, ast.Call, dict[str, ast.expr]]]:
    """urllib3 Retry objects that retry at all and whose arguments are all known; also numbers that become a Retry."""
    for document, module in _modules(audited):
        for call, name in module.calls:
            if _is_retry(name.removesuffix(".from_int")) and name.endswith(".from_int"):
                number = constant(arguments(call, ("retries",)).get("retries"))
            else:
                number = constant(keywords(call).get("retries")) if name in _POOLS else ...
            if isinstance(number, int) and number is not False and number > 0:
                yield document, call, {}
            if not _is_retry(name) or spreads(call):
                continue
            given = arguments(call, _RETRY)
            total = constant(given.get("total"))
            if total is not False and total != 0:
                yield document, call, given


@rule("HD611")
def urllib3_retry_no_status(audited: Audited) -> Iterator[Hit]:
    for document, call, given in _retries(audited):
        statuses = given.get("status_forcelist")
        if statuses is None or constant(statuses) in (None, [], (), {}):
            yield Hit(document, place_of(call), "no status_forcelist: a 500 or 503 is not retried")


@rule("HD612")
def urllib3_retry_no_backoff(audited: Audited) -> Iterator[Hit]:
    for document, call, given in _retries(audited):
        factor = given.get("backoff_factor")
        if factor is None or constant(factor) == 0:
            yield Hit(document, place_of(call), "no backoff_factor: the retries follow at once")


@rule("HD613")
def urllib3_retry_no_jitter(audited: Audited) -> Iterator[Hit]:
    for document, call, given in _retries(audited):
        jitter, factor = given.get("backoff_jitter"), given.get("backoff_factor")
        if factor is not None and constant(factor) != 0 and (jitter is None or constant(jitter) == 0):
            yield Hit(document, place_of(call), "no backoff_jitter: clients that failed together come back together")


@rule("HD614")
def urllib3_retry_repeats_writes(audited: Audited) -> Iterator[Hit]:
    for document, call, given in _retries(audited):
        methods = given.get("allowed_methods") or given.get("method_whitelist")
        known = constant(methods)
        if methods is None or known is ...:
            continue
        if known in (None, False):
            yield Hit(document, place_of(call), "all methods are retried, POST included")
        elif isinstance(known, list | tuple | set | frozenset):
            writes = sorted({str(method).upper() for method in known} & {"POST", "PATCH"})
            if writes:
                yield Hit(document, place_of(call), f"{' and '.join(writes)} may be repeated after it was processed")


@rule("HD615")
def urllib3_retry_default_methods(audited: Audited) -> Iterator[Hit]:
    for document, call, given in _retries(audited):
        methods = given.get("allowed_methods") or given.get("method_whitelist")
        known = constant(methods)
        said = {str(method).upper() for method in known} if isinstance(known, list | tuple | set | frozenset) else set()
        if (methods is None and "status_forcelist" in given) or said & {"PUT", "DELETE"}:
            yield Hit(document, place_of(call), "PUT and DELETE are repeated too")


@rule("HD616")
def requests_retries_by_number(audited: Audited) -> Iterator[Hit]:
    for document, module in _modules(audited):
        for call, name in module.calls:
            if name in ADAPTERS:
                number = constant(arguments(call, ADAPTER_ARGUMENTS).get("max_retries"))
                if isinstance(number, int) and not isinstance(number, bool) and number > 0:
                    yield Hit(
                        document,
                        place_of(call),
                        f"max_retries={number} retries failed connections at once, and does not retry any status",
                    )


@rule("HD617")
def tenacity_retry_forever(audited: Audited) -> Iterator[Hit]:
    for document, module in _modules(audited):
        for decorator, given in _tenacity(module):
            if given is None or "stop" not in given or _never(module, given["stop"]):
                pause = "" if given and "wait" in given else ", without a pause"
                yield Hit(document, place_of(decorator), f"this retries for ever{pause}")


def _tenacity(module: Module) -> Iterator[tuple[ast.expr, dict[str, ast.expr] | None]]:
    """`@retry`, `@retry(...)` and `Retrying(...)` of tenacity, with their arguments, if all arguments are known."""
    for call, name in module.calls:
        if name in {"tenacity.retry", "tenacity.Retrying", "tenacity.AsyncRetrying"} and not spreads(call):
            yield call, keywords(call)
    again = [node for node in ast.walk(module.tree) if isinstance(node, ast.Call)] if module.tree is not None else []
    yield from (
        (call, keywords(call)) for call in again if last(call.func) == "retry_with" and keywords(call).get("stop")
    )
    yield from ((each, None) for each in module.decorators if dotted(each, module.names) == "tenacity.retry")


def _never(module: Module, stop: ast.expr) -> bool:
    """Whether a `stop` certainly never stops: `stop_never` (renamed or combined too), or an infinite limit."""
    if isinstance(stop, ast.BinOp) and isinstance(stop.op, ast.BitOr | ast.BitAnd):
        both = all if isinstance(stop.op, ast.BitOr) else any
        return both(_never(module, each) for each in (stop.left, stop.right))
    if isinstance(stop, ast.Call):
        name = dotted(stop.func, module.names).rpartition(".")[2]
        if name in {"stop_any", "stop_all"} and stop.args:
            return (all if name == "stop_any" else any)(_never(module, each) for each in stop.args)
        limits = [*stop.args, *keywords(stop).values()]
        return name in {"stop_after_attempt", "stop_after_delay"} and any(map(_infinite, limits))
    if isinstance(stop, ast.Name) and stop.id not in module.names and module.tree is not None:
        made = [
            each.value for each in module.tree.body if isinstance(each, ast.Assign) and last(each.targets[0]) == stop.id
        ]
        return len(made) == 1 and not isinstance(made[0], ast.Name) and _never(module, made[0])
    return dotted(stop, module.names) in {"tenacity.stop_never", "tenacity.stop.stop_never"}


def _infinite(node: ast.expr) -> bool:
    written = isinstance(node, ast.Call) and last(node.func) == "float" and str(constant(node.args[0])).lower()
    return written in {"inf", "infinity", "+inf"} or (isinstance(node, ast.Attribute) and node.attr == "inf")


_VERBS = ("delete", "get", "head", "options", "patch", "post", "put", "request")
_REQUESTS = {f"requests.{module}{verb}": verb for verb in _VERBS for module in ("", "api.")}
_PORTS = {"8500": "Consul", "8501": "Consul", "4646": "Nomad", "8200": "Vault"}
_AT_PORT = re.compile(rf"^https?://[^/\s]*:({'|'.join(_PORTS)})(?:/|$)")
_PATHS = {
    "Consul": re.compile(r"/v1/(catalog|coordinate|health|kv|session|txn)/"),
    "Nomad": re.compile(r"/v1/(allocations?|deployments?|evaluations?|jobs?|nodes?)\b"),
    "Vault": re.compile(r"/v1/(auth|secret|sys)/"),
}


def _requests(audited: Audited) -> Iterator[tuple[Document, Module, ast.Call, str]]:
    """Calls of requests' functions with an address of Consul, Nomad or Vault: its usual port, or a path of its API."""
    for document, module in _modules(audited):
        for call, name in module.calls:
            if (verb := _REQUESTS.get(name)) is not None:
                given = arguments(call, ("method", "url") if verb == "request" else ("url",))
                if product := _product(_written(given.get("url"), module)):
                    yield document, module, call, product


def _product(url: str) -> str:
    if at_port := _AT_PORT.match(url):
        return _PORTS[at_port[1]]
    return next((product for product, path in _PATHS.items() if path.search(url)), "")


def _written(node: ast.expr | None, module: Module) -> str:
    """The parts of a text that the module contains; leaves out parts that are known only at run time."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _written(node.left, module) + _written(node.right, module)
    if isinstance(node, ast.JoinedStr):
        return "".join(_written(part, module) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return _written(node.value, module)
    if isinstance(node, ast.Name) and module.tree is not None:
        top = [each for each in module.tree.body if isinstance(each, ast.Assign) and last(each.targets[0]) == node.id]
        return _written(top[0].value, module) if len(top) == 1 and not isinstance(top[0].value, ast.Name) else ""
    text = constant(node)
    return text if isinstance(text, str) else ""


@rule("HD618")
def requests_no_retry(audited: Audited) -> Iterator[Hit]:
    for document, module, call, product in _requests(audited):
        why = module.clients.why(call) if module.clients is not None else ""
        text = f"this request to {product} is sent once, and nothing here retries it"
        yield Hit(document, place_of(call), text, muted=f"it is retried {why}" if why else "")


@rule("HD619")
def requests_no_timeout(audited: Audited) -> Iterator[Hit]:
    for document, _, call, product in _requests(audited):
        given = keywords(call).get("timeout")
        if constant(given) is None or (given is None and not spreads(call)):
            yield Hit(document, place_of(call), f"no timeout: a {product} that never answers holds the caller for ever")
