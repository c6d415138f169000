"""Rules about Consul: how its agents join each other, which requests its rate limits refuse, and which requests its
config entries retry.
"""

from collections.abc import Iterator

from hashidrill.clients.audit.audited import Agent, Audited, Hit, rule
from hashidrill.clients.audit.rules_python import ignores_429
from hashidrill.clients.audit.sources import Document
from hashidrill.clients.audit.tree import Mapping


def _is_an_agent(agent: Agent) -> bool:
    return any(agent.merged.has(name) for name in ("data_dir", "server", "bootstrap_expect", "bootstrap"))


def _alone_on_purpose(agent: Agent) -> bool:
    told = agent.merged
    return bool(told.flag("bootstrap") or told.flag("dev")) or told.number("bootstrap_expect") == 1


def _unseen(agent: Agent) -> str:
    """Why the missing address is not reported; "" if it is reported."""
    told = agent.merged
    # without bootstrap_expect and without addresses, a server neither forms nor joins a datacenter: flags must do it
    if agent.started is None and told.flag("server") is True and not told.has("bootstrap_expect"):
        return "bootstrap_expect is missing: flags that are not seen here must set it, and may set retry_join too"
    return agent.unseen


@rule("HD101")
def consul_no_retry_join(audited: Audited) -> Iterator[Hit]:
    for agent in audited.consul_agents:
        told = agent.merged
        if not _is_an_agent(agent) or _alone_on_purpose(agent):
            continue
        # auto_config includes the addresses of the servers, but auto_encrypt still needs retry_join
        automatic = any(body.flag("enabled") is True for body in told.blocks("auto_config"))
        if told.has("retry_join", "start_join") or automatic:
            continue
        document, place = agent.where("server", "data_dir", "bootstrap_expect")
        role = "server" if told.flag("server") else "agent"
        text = f"this Consul {role} has no retry_join: it never looks for other agents"
        yield Hit(document, place, text, muted=_unseen(agent))


@rule("HD102")
def consul_retry_max(audited: Audited) -> Iterator[Hit]:
    for agent in audited.consul_agents:
        for name in ("retry_max", "retry_max_wan"):
            said, attempts = agent.find(name), agent.merged.number(name)
            if said is not None and attempts is not None and attempts > 0:
                text = f"after {attempts:g} retries of a failed join this agent exits with code 1"
                yield Hit(said[0], said[1].place, text)


@rule("HD103")
def consul_no_retry_join_wan(audited: Audited) -> Iterator[Hit]:
    joined = {
        agent.merged.text("datacenter")
        for agent in audited.consul_agents
        if agent.merged.has("retry_join_wan", "start_join_wan")
    }
    for agent in audited.consul_agents:
        told = agent.merged
        primary, own = told.text("primary_datacenter"), told.text("datacenter")
        gateways = any(body.flag("enable_mesh_gateway_wan_federation") for body in told.blocks("connect"))
        federated = bool(primary and own and primary != own) or told.flag("translate_wan_addrs") is True
        if (
            told.flag("server") is not True
            or not federated
            or gateways
            or told.has("primary_gateways")
            or own in joined
        ):
            continue
        document, place = agent.where("primary_datacenter", "translate_wan_addrs")
        text = "this server belongs to a federation but has no retry_join_wan"
        yield Hit(document, place, text, muted=agent.unseen)


@rule("HD104")
def consul_limits_and_deaf_client(audited: Audited) -> Iterator[Hit]:
    deaf = [document for document in audited.of("python") if ignores_429(document)]
    if not deaf:
        return
    for agent in audited.consul_agents:
        for document, limits in agent.bodies("limits"):
            for body in limits.blocks("request_limits"):
                entry = body.find("mode")
                if entry is not None and body.text("mode") == "enforcing":
                    names = ", ".join(each.path for each in deaf)
                    yield Hit(document, entry.place, f"requests above the limits get 429, which {names} does not retry")


@rule("HD105")
def consul_lock_no_monitor_retry(audited: Audited) -> Iterator[Hit]:
    for each in audited.all_commands:
        words = each.command.words
        locks = "lock" in words and any(word.rpartition("/")[2] == "consul" for word in words)
        if locks and ("monitor-retry", "0") in each.command.flags:
            yield Hit(each.document, each.place, "this lock is given up at the first error of its watch")


_SAFE = {"connect-failure", "refused-stream", "envoy-ratelimited", "resource-exhausted"}
"""Conditions under which the upstream has not begun to work on the request."""

_NOT_REPEATABLE = {"POST", "PATCH", "CONNECT"}
"""Methods that HTTP does not call idempotent (RFC 9110, section 9.2.2)."""


def _kind(entry: Mapping) -> str:
    return (entry.text("Kind") or "").lower()


def _destinations(audited: Audited) -> Iterator[tuple[Document, Mapping, Mapping]]:
    for document, entry in audited.entries:
        if _kind(entry) == "service-router":
            for route in entry.blocks("Routes"):
                for destination in route.blocks("Destination"):
                    yield document, route, destination


def _conditions(destination: Mapping) -> bool:
    said = destination.has("RetryOn", "RetryOnStatusCodes")
    connect = destination.find("RetryOnConnectFailure")
    return said or (connect is not None and destination.flag("RetryOnConnectFailure") is not False)


@rule("HD111")
def router_retries_without_condition(audited: Audited) -> Iterator[Hit]:
    for document, _, destination in _destinations(audited):
        entry, retries = destination.find("NumRetries"), destination.number("NumRetries")
        if entry is not None and retries is not None and retries > 0 and not _conditions(destination):
            yield Hit(document, entry.place, f"NumRetries = {retries:g} without any RetryOn condition retries nothing")


@rule("HD112")
def router_condition_without_count(audited: Audited) -> Iterator[Hit]:
    for document, _, destination in _destinations(audited):
        if _conditions(destination) and not destination.has("NumRetries"):
            entry = destination.find("RetryOn", "RetryOnStatusCodes", "RetryOnConnectFailure")
            place = destination.place if entry is None else entry.place
            yield Hit(document, place, "conditions for a retry without NumRetries: Envoy retries exactly once")


@rule("HD113")
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
    entry = destination.find("RetryOnStatusCodes")
    items = getattr(entry.value, "items", ()) if entry is not None else ()
    return [f"{value.value:g}" for value in items if isinstance(getattr(value, "value", None), int | float)]


@rule("HD114")
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
            yield Hit(document, place, f"the service {name} is marked critical, but its resolver has no Failover")


@rule("HD115")
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
