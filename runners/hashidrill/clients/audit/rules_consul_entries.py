"""Rules about Consul's config entries: what the mesh retries, fails over and ejects."""

from __future__ import annotations

from collections.abc import Iterator

from hashidrill.clients.audit.audited import Audited
from hashidrill.clients.audit.rule import Hit, Severity, rule
from hashidrill.clients.audit.sources import Document
from hashidrill.clients.audit.tree import Mapping

_TESTS = "tests/live/test_audit_claims_entries.py"
_ROUTER = "https://developer.hashicorp.com/consul/docs/reference/config-entry/service-router"
_ROUTER_SOURCE = "consul 1.22.2, agent/xds/routes.go, getRetryPolicyForDestination; Envoy's route.RetryPolicy"
_SAFE = {"connect-failure", "refused-stream", "envoy-ratelimited", "resource-exhausted"}
"""Conditions under which the upstream has not begun to work on the request."""

_NOT_REPEATABLE = {"POST", "PATCH", "CONNECT"}
"""Methods that HTTP does not call idempotent (RFC 9110, section 9.2.2)."""


def _kind(entry: Mapping) -> str:
    return (entry.text("Kind") or "").lower()


def _destinations(audited: Audited) -> Iterator[tuple[Document, Mapping, Mapping]]:
    """(file, route, destination) of all service-routers."""
    for document, entry in audited.entries:
        if _kind(entry) == "service-router":
            for route in entry.blocks("Routes"):
                for destination in route.blocks("Destination"):
                    yield document, route, destination


def _conditions(destination: Mapping) -> bool:
    said = destination.has("RetryOn", "RetryOnStatusCodes")
    connect = destination.find("RetryOnConnectFailure")
    return said or (connect is not None and destination.flag("RetryOnConnectFailure") is not False)


@rule(
    "HD111",
    "router-retries-without-condition",
    Severity.ERROR,
    what="A service-router destination with `NumRetries` and no condition: no `RetryOn`, `RetryOnConnectFailure` or "
    "`RetryOnStatusCodes`.",
    why="Consul hands Envoy a retry policy with an empty `retry_on`, and Envoy then retries nothing: the retries "
    "exist on paper only.",
    default="No condition.",
    fix='Say when to retry, for instance `RetryOn = ["connect-failure", "refused-stream"]`.',
    link=f"{_ROUTER}#routes-destination-retryon",
    source=_ROUTER_SOURCE,
    verified=f"{_TESTS}::test_num_retries_without_a_condition_names_nothing_to_retry_on",
)
def router_retries_without_condition(audited: Audited) -> Iterator[Hit]:
    for document, _, destination in _destinations(audited):
        entry, retries = destination.find("NumRetries"), destination.number("NumRetries")
        if entry is not None and retries is not None and retries > 0 and not _conditions(destination):
            yield Hit(document, entry.place, f"NumRetries = {retries:g} without any RetryOn condition retries nothing")


@rule(
    "HD112",
    "router-condition-without-count",
    Severity.INFO,
    what="A service-router destination that says when to retry, but not how often.",
    why="Envoy then retries once. That may be what is meant; written down it survives the next reader.",
    default="Envoy's `num_retries` is 1.",
    fix="Add `NumRetries`.",
    link=f"{_ROUTER}#routes-destination-numretries",
    source=_ROUTER_SOURCE,
    verified=f"{_TESTS}::test_a_condition_without_num_retries_leaves_the_number_to_envoy",
)
def router_condition_without_count(audited: Audited) -> Iterator[Hit]:
    for document, _, destination in _destinations(audited):
        if _conditions(destination) and not destination.has("NumRetries"):
            entry = destination.find("RetryOn", "RetryOnStatusCodes", "RetryOnConnectFailure")
            place = destination.place if entry is None else entry.place
            yield Hit(document, place, "conditions for a retry without NumRetries: there is exactly one")


@rule(
    "HD113",
    "router-retries-not-idempotent",
    Severity.WARNING,
    what="A service-router destination that retries after the upstream may have begun to work, on a route that lets "
    "POST, PATCH or CONNECT through.",
    why="A 5xx or a reset does not say that nothing happened: the order is placed twice, the message is sent twice.",
    default="Without `Match.HTTP.Methods` a route takes all methods.",
    fix='Split the route: retry on `Methods = ["GET", "HEAD"]`; for the rest only on `connect-failure` and '
    "`refused-stream`.",
    link=f"{_ROUTER}#routes-match-http-methods",
    source=_ROUTER_SOURCE,
    verified=f"{_TESTS}::test_a_route_without_methods_retries_all_of_them",
)
def router_retries_not_idempotent(audited: Audited) -> Iterator[Hit]:
    for document, route, destination in _destinations(audited):
        unsafe = sorted(set(destination.texts("RetryOn")) - _SAFE)
        codes = destination.find("RetryOnStatusCodes")
        if codes is not None and destination.has("RetryOnStatusCodes"):
            shown = _codes(destination)
            unsafe += [code for code in shown if code != "429"]
        if not unsafe:
            continue
        methods: set[str] = set()
        for match in route.blocks("Match"):
            for http in match.blocks("HTTP"):
                methods |= set(http.texts("Methods"))
        if not methods or methods & _NOT_REPEATABLE:
            entry = destination.find("RetryOn", "RetryOnStatusCodes")
            place = destination.place if entry is None else entry.place
            which = ", ".join(sorted(methods & _NOT_REPEATABLE)) or "every method, POST included"
            yield Hit(document, place, f"retries on {', '.join(unsafe)} for {which}")


def _codes(destination: Mapping) -> list[str]:
    """The status codes, as they are shown."""
    entry = destination.find("RetryOnStatusCodes")
    items = getattr(entry.value, "items", ()) if entry is not None else ()
    return [f"{value.value:g}" for value in items if isinstance(getattr(value, "value", None), int | float)]


@rule(
    "HD114",
    "resolver-without-failover",
    Severity.WARNING,
    what="A service-resolver without `Failover` (nor `Redirect`) for a service whose config entry calls it critical: "
    '`Meta { critical = "true" }` in its service-resolver or service-defaults.',
    why="When its last healthy instance here is gone, callers get no endpoint, however healthy it is elsewhere.",
    default="No failover.",
    fix='Add `Failover = { "*" = { Datacenters = ["dc2"] } }`, or targets in a peer.',
    link="https://developer.hashicorp.com/consul/docs/reference/config-entry/service-resolver#failover",
    source="consul 1.22.2, agent/structs/config_entry_discoverychain.go",
    verified=f"{_TESTS}::test_without_failover_a_proxy_has_no_healthy_endpoint_left",
)
def resolver_without_failover(audited: Audited) -> Iterator[Hit]:
    critical = {
        entry.text("Name")
        for _, entry in audited.entries
        if _kind(entry) in {"service-resolver", "service-defaults"}
        and any(meta.flag("critical") for meta in entry.blocks("Meta"))
    }
    for document, entry in audited.entries:
        name = entry.text("Name")
        if _kind(entry) == "service-resolver" and name in critical and not entry.has("Failover", "Redirect"):
            place = entry.entries[0].place
            yield Hit(document, place, f"the service {name} is called critical, and its resolver has no Failover")


@rule(
    "HD115",
    "passive-health-check-never-ejects",
    Severity.WARNING,
    what="`PassiveHealthCheck` with `EnforcingConsecutive5xx = 0` or `MaxEjectionPercent = 0`.",
    why="The check counts failures and ejects nobody: instances that only fail keep their share of the requests. With "
    "MaxEjectionPercent = 0, older versions of Envoy still ejected one host; current ones need "
    "always_eject_one_host, which Consul does not set.",
    default="`EnforcingConsecutive5xx` is 100, `MaxEjectionPercent` is 10.",
    fix="Leave `EnforcingConsecutive5xx` out, and set `MaxEjectionPercent` to what may be missing at once.",
    link="https://developer.hashicorp.com/consul/docs/reference/config-entry/service-defaults",
    source="consul 1.22.2, agent/xds/config/config.go, ToOutlierDetection; Envoy's OutlierDetection",
    verified=f"{_TESTS}::test_a_passive_health_check_of_zero_reaches_envoy_as_zero",
)
def passive_health_check_never_ejects(audited: Audited) -> Iterator[Hit]:
    seen = set()
    for document in [*audited.of("consul-entry"), *audited.of("consul-agent")]:
        for body in document.body.walk():
            for check in body.blocks("PassiveHealthCheck"):
                for name in ("EnforcingConsecutive5xx", "MaxEjectionPercent"):
                    entry = check.find(name)
                    if entry is not None and check.number(name) == 0 and (document.path, entry.place) not in seen:
                        seen.add((document.path, entry.place))
                        yield Hit(document, entry.place, f"{entry.key} = 0: this check never ejects an instance")
