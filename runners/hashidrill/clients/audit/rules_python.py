"""Rules about Python that calls Consul, Nomad and Vault, or anything over urllib3: read from the caller's code alone.

What another module does with a client is not seen. Each call of a client is looked at by itself: what retries one of
them says nothing about the others.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hashidrill.clients.audit.audited import Audited
from hashidrill.clients.audit.python_clients import Client
from hashidrill.clients.audit.python_names import (
    ADAPTER_ARGUMENTS,
    ADAPTERS,
    arguments,
    constant,
    dotted,
    keywords,
    last,
    spreads,
)
from hashidrill.clients.audit.python_text import Module, place_of
from hashidrill.clients.audit.rule import Hit, Severity, rule
from hashidrill.clients.audit.sources import Document

_TESTS = "tests/live/test_audit_claims_python.py"
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
"""What may be given without its name, in the order of requests 2.34 and urllib3 2.8."""
_POOLS = {"urllib3.PoolManager", "urllib3.ProxyManager", "urllib3.HTTPConnectionPool", "urllib3.HTTPSConnectionPool"}
_URLLIB3 = "https://urllib3.readthedocs.io/en/stable/reference/urllib3.util.html#urllib3.util.Retry"
_URLLIB3_SOURCE = "urllib3 2.8.0, util/retry.py"
_NO_RETRY_FIX = (
    "Wrap the calls, for instance with tenacity: `@retry(stop=stop_after_attempt(4), "
    "wait=wait_random_exponential(multiplier=0.2, max=5))`; only those that may safely be repeated."
)


def _modules(audited: Audited) -> Iterator[tuple[Document, Module]]:
    for document in audited.of("python"):
        if document.module is not None:
            yield document, document.module


def _is_retry(name: str) -> bool:
    return name.endswith(".Retry") and ("urllib3" in name or name == "requests.adapters.Retry")


def ignores_429(document: Document) -> bool:
    """Whether this module calls Consul and does not retry each of these calls."""
    module = document.module
    return module is not None and any(not client.all_retried for client in _clients(module, _CONSUL))


def _clients(module: Module, names: set[str]) -> list[Client]:
    made: list[tuple[ast.Call | ast.ClassDef, str]] = [(call, name) for call, name in module.calls if name in names]
    called = {last(call.func) for call, _ in module.calls}
    called |= {last(base) for each, _ in module.subclasses for base in each.bases}
    made += [(each, name) for each, name in module.subclasses if name in names and each.name not in called]
    return module.clients.found(made) if made and module.clients is not None else []


def _without_retry(audited: Audited, names: set[str], product: str) -> Iterator[Hit]:
    """Clients of which a call is not retried; muted, with the reason, where each of them is."""
    for document, module in _modules(audited):
        for client in _clients(module, names):
            text = f"this {product} client sends each request once, and nothing here retries"
            if client.bare and len(client.bare) < len(client.calls):
                lines = ", ".join(map(str, client.bare[:5]))
                of = f"{len(client.bare)} of the lines that call it"
                text = f"this {product} client sends each request once, and nothing retries {of}: {lines}"
            yield Hit(document, place_of(client.made), text, muted=client.all_retried)


@rule(
    "HD601",
    "python-consul-no-retry",
    Severity.WARNING,
    what="A py-consul client of which a call is not retried, as far as its module shows.",
    why="py-consul sends each request once. An election takes seconds, in which writes answer 500; a connection that "
    "ends under a request, because the agent restarts for instance, is an error too.",
    default="No retry; `requests.session()` without an adapter of its own.",
    fix=_NO_RETRY_FIX,
    link="https://tenacity.readthedocs.io/",
    source="py-consul 1.8.0, consul/std.py",
    verified=f"{_TESTS}::test_py_consul_sends_each_request_once",
)
def python_consul_no_retry(audited: Audited) -> Iterator[Hit]:
    yield from _without_retry(audited, _CONSUL, "Consul")


@rule(
    "HD602",
    "python-consul-no-timeout",
    Severity.WARNING,
    what="py-consul made without `connections_timeout`, or with None.",
    why="A server that takes the request and is then cut off never answers: the caller waits for ever.",
    default="None up to py-consul 1.7 and in python-consul; 30 s since py-consul 1.8, whose asyncio client still has "
    "aiohttp's 5 minutes.",
    fix="`Consul(connections_timeout=5)` with py-consul 1.8 or later.",
    link="https://github.com/criteo/py-consul",
    source="py-consul 1.7.1 and 1.8.0, consul/std.py and consul/aio.py",
    verified=f"{_TESTS}::test_py_consul_without_a_timeout_waits_for_ever",
)
def python_consul_no_timeout(audited: Audited) -> Iterator[Hit]:
    for document, module in _modules(audited):
        for client in _clients(module, _CONSUL):
            given = client.given.get("connections_timeout")
            if given is None:
                text = "no connections_timeout: before py-consul 1.8 this waits for ever"
                # a session has no timeout of its own
                may = client.transport and not client.transport.startswith("its session")
                muted = f"{client.transport}, or set a timeout" if may else ""
                yield Hit(document, place_of(client.made), text, muted=muted)
            elif constant(given) is None:
                yield Hit(document, place_of(client.made), "connections_timeout=None: this waits for ever")


@rule(
    "HD603",
    "python-vault-no-retry",
    Severity.WARNING,
    what="An hvac client of which a call is not retried, as far as its module shows, and without a `session` that may.",
    why="hvac sends each request once; Vault's own clients repeat 5xx and 412. While Vault's leader steps down, "
    "requests answer 500 or 503.",
    default="No retry; a timeout of 30 s.",
    fix="Give it a session with a urllib3 Retry on its adapter: `hvac.Client(session=session)`. Or wrap the calls.",
    link="https://hvac.readthedocs.io/en/stable/advanced_usage.html",
    source="hvac 2.4.0, hvac/adapters.py",
    verified=f"{_TESTS}::test_hvac_sends_each_request_once",
)
def python_vault_no_retry(audited: Audited) -> Iterator[Hit]:
    yield from _without_retry(audited, {"hvac.Client", "hvac.v1.Client"}, "Vault")


@rule(
    "HD604",
    "python-nomad-no-retry",
    Severity.WARNING,
    what="A python-nomad client of which a call is not retried, as far as its module shows, and without a `session` "
    "that may.",
    why="python-nomad sends each request once. While the servers elect a leader, requests answer 500.",
    default="No retry; a timeout of 5 s.",
    fix="Give it a session with a urllib3 Retry on its adapter: `nomad.Nomad(session=session)`. Or wrap the calls.",
    link="https://python-nomad.readthedocs.io/",
    source="python-nomad 2.1.0, nomad/api/base.py",
    verified=f"{_TESTS}::test_python_nomad_sends_each_request_once",
)
def python_nomad_no_retry(audited: Audited) -> Iterator[Hit]:
    yield from _without_retry(audited, {"nomad.Nomad"}, "Nomad")


def _retries(audited: Audited) -> Iterator[tuple[Document, ast.Call, dict[str, ast.expr]]]:
    """urllib3 Retry objects that retry at all, and of which all arguments are known; numbers that become one, too."""
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


@rule(
    "HD611",
    "urllib3-retry-no-status",
    Severity.WARNING,
    what="A urllib3 Retry without `status_forcelist`.",
    why="It retries broken connections only. A 500, 502, 503 or 504 is a good answer to it, unless a 503 or 429 "
    "comes with Retry-After, which Consul and Nomad do not send, and Vault only where `sys/quotas/config` turns it on.",
    default="No status.",
    fix="`status_forcelist=[429, 500, 502, 503, 504]`.",
    link=_URLLIB3,
    source=_URLLIB3_SOURCE,
    verified=f"{_TESTS}::test_a_retry_without_status_forcelist_takes_a_status_for_an_answer",
)
def urllib3_retry_no_status(audited: Audited) -> Iterator[Hit]:
    for document, call, given in _retries(audited):
        statuses = given.get("status_forcelist")
        if statuses is None or constant(statuses) in (None, [], (), {}):
            yield Hit(document, place_of(call), "no status_forcelist: a 500 or 503 is not retried")


@rule(
    "HD612",
    "urllib3-retry-no-backoff",
    Severity.WARNING,
    what="A urllib3 Retry without `backoff_factor`.",
    why="All retries follow within milliseconds: they are over before an election is, and they hit the server when "
    "it is worst off.",
    default="0: no pause.",
    fix="`backoff_factor=0.5, backoff_jitter=0.5`.",
    link=_URLLIB3,
    source=_URLLIB3_SOURCE,
    verified=f"{_TESTS}::test_retries_without_backoff_follow_at_once",
)
def urllib3_retry_no_backoff(audited: Audited) -> Iterator[Hit]:
    for document, call, given in _retries(audited):
        factor = given.get("backoff_factor")
        if factor is None or constant(factor) == 0:
            yield Hit(document, place_of(call), "no backoff_factor: the retries follow at once")


@rule(
    "HD613",
    "urllib3-retry-no-jitter",
    Severity.INFO,
    what="A urllib3 Retry with `backoff_factor` and without `backoff_jitter`.",
    why="Clients that failed together come back together, at the same doubling times.",
    default="0: no jitter.",
    fix="`backoff_jitter=0.5` (urllib3 2.0 or later).",
    link=_URLLIB3,
    source=_URLLIB3_SOURCE,
    verified=f"{_TESTS}::test_without_jitter_clients_come_back_at_the_same_times",
)
def urllib3_retry_no_jitter(audited: Audited) -> Iterator[Hit]:
    for document, call, given in _retries(audited):
        jitter, factor = given.get("backoff_jitter"), given.get("backoff_factor")
        if factor is not None and constant(factor) != 0 and (jitter is None or constant(jitter) == 0):
            yield Hit(document, place_of(call), "no backoff_jitter: clients that failed together come back together")


@rule(
    "HD614",
    "urllib3-retry-repeats-writes",
    Severity.WARNING,
    what="A urllib3 Retry whose `allowed_methods` let POST or PATCH through, or all methods.",
    why="A timeout or a 5xx does not say that nothing was done: what is repeated may be done twice.",
    default="GET, HEAD, OPTIONS, TRACE, PUT and DELETE.",
    fix='`allowed_methods=["GET", "HEAD"]`; repeat writes where the caller knows that it may.',
    link=_URLLIB3,
    source=_URLLIB3_SOURCE,
    verified=f"{_TESTS}::test_a_write_let_through_is_repeated_after_it_was_done",
)
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
                yield Hit(document, place_of(call), f"{' and '.join(writes)} may be repeated after it was done")


@rule(
    "HD615",
    "urllib3-retry-default-methods",
    Severity.INFO,
    what="A urllib3 Retry with `status_forcelist` and without `allowed_methods`, or with PUT or DELETE among them.",
    why="PUT and DELETE are repeated too. Most are idempotent; Consul's are not all: `PUT /v1/session/create`, a KV "
    "write that overwrites what came in between, a lock acquired twice.",
    default="GET, HEAD, OPTIONS, TRACE, PUT and DELETE.",
    fix='`allowed_methods=["GET", "HEAD"]`, or keep it where every PUT carries a CAS index.',
    link=_URLLIB3,
    source=_URLLIB3_SOURCE,
    verified=f"{_TESTS}::test_by_default_put_and_delete_are_repeated",
)
def urllib3_retry_default_methods(audited: Audited) -> Iterator[Hit]:
    for document, call, given in _retries(audited):
        methods = given.get("allowed_methods") or given.get("method_whitelist")
        known = constant(methods)
        said = {str(method).upper() for method in known} if isinstance(known, list | tuple | set | frozenset) else set()
        if (methods is None and "status_forcelist" in given) or said & {"PUT", "DELETE"}:
            yield Hit(document, place_of(call), "PUT and DELETE are repeated too")


@rule(
    "HD616",
    "requests-retries-by-number",
    Severity.WARNING,
    what="requests' `HTTPAdapter(max_retries=3)`, with a number, by name or in its place.",
    why="A number repeats no status: a 500 or 503 is a good answer to it. It does repeat refused and broken "
    "connections and timeouts, without a pause, the latter two for PUT and DELETE as well, which may have been done by "
    "then. The documentation of requests promises that it never repeats what was sent; with urllib3 2 it does.",
    default="0.",
    fix="`max_retries=Retry(total=3, status_forcelist=[429, 500, 502, 503, 504], backoff_factor=0.5, "
    "backoff_jitter=0.5)`.",
    link="https://requests.readthedocs.io/en/latest/api/#requests.adapters.HTTPAdapter",
    source="requests 2.34, adapters.py",
    verified=f"{_TESTS}::test_a_number_of_retries_repeats_connections_at_once_and_no_status",
)
def requests_retries_by_number(audited: Audited) -> Iterator[Hit]:
    for document, module in _modules(audited):
        for call, name in module.calls:
            if name in ADAPTERS:
                number = constant(arguments(call, ADAPTER_ARGUMENTS).get("max_retries"))
                if isinstance(number, int) and not isinstance(number, bool) and number > 0:
                    yield Hit(
                        document,
                        place_of(call),
                        f"max_retries={number} repeats failed connections, at once, and no status",
                    )


@rule(
    "HD617",
    "tenacity-retry-forever",
    Severity.ERROR,
    what="tenacity's `@retry` without `stop`, or with one that never stops.",
    why="It retries until it succeeds: a caller that has given up long since keeps a thread and a request going. "
    "Without `wait` it does so without a pause.",
    default="`stop_never` and `wait_none`.",
    fix="`@retry(stop=stop_after_attempt(4), wait=wait_random_exponential(multiplier=0.2, max=5))`.",
    link="https://tenacity.readthedocs.io/en/latest/#basic-retry",
    source="tenacity 9.2.1, tenacity/__init__.py",
    verified=f"{_TESTS}::test_tenacity_without_stop_retries_without_end_and_without_a_pause",
)
def tenacity_retry_forever(audited: Audited) -> Iterator[Hit]:
    for document, module in _modules(audited):
        for decorator, given in _tenacity(module):
            if given is None or "stop" not in given or _never(module, given["stop"]):
                pause = "" if given and "wait" in given else ", without a pause"
                yield Hit(document, place_of(decorator), f"this retries for ever{pause}")


def _tenacity(module: Module) -> Iterator[tuple[ast.expr, dict[str, ast.expr] | None]]:
    """`@retry`, `@retry(...)` and `Retrying(...)` of tenacity, with their arguments, when all are known."""
    for call, name in module.calls:
        if name in {"tenacity.retry", "tenacity.Retrying", "tenacity.AsyncRetrying"} and not spreads(call):
            yield call, keywords(call)
    again = [node for node in ast.walk(module.tree) if isinstance(node, ast.Call)] if module.tree is not None else []
    yield from (
        (call, keywords(call)) for call in again if last(call.func) == "retry_with" and keywords(call).get("stop")
    )
    yield from ((each, None) for each in module.decorators if dotted(each, module.names) == "tenacity.retry")


def _never(module: Module, stop: ast.expr) -> bool:
    """Whether a `stop` is known never to stop: `stop_never`, by another name or among others, or an infinite limit."""
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
