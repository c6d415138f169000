"""Rules about Consul's agents: do they find each other again, and what do their rate limits meet?"""

from __future__ import annotations

from collections.abc import Iterator

from hashidrill.clients.audit.audited import Agent, Audited
from hashidrill.clients.audit.rule import Hit, Severity, rule
from hashidrill.clients.audit.rules_python import ignores_429

_TESTS = "tests/live/test_audit_claims.py"
_CONFIG = "https://developer.hashicorp.com/consul/docs/reference/agent/configuration-file"


def _is_an_agent(agent: Agent) -> bool:
    """Whether this is enough for a process, and no mere service definition beside one."""
    return any(agent.merged.has(name) for name in ("data_dir", "server", "bootstrap_expect", "bootstrap"))


def _alone_on_purpose(agent: Agent) -> bool:
    """A single server, or one that is tried out."""
    told = agent.merged
    return bool(told.flag("bootstrap") or told.flag("dev")) or told.number("bootstrap_expect") == 1


def _unseen(agent: Agent) -> str:
    """Why the missing address is not reported; empty where it is."""
    told = agent.merged
    # without bootstrap_expect a server neither forms a datacenter nor, told of nobody, joins one: flags do it then
    if agent.started is None and told.flag("server") is True and not told.has("bootstrap_expect"):
        return "it does not say how many servers there are: flags that are not seen here do, and may name them"
    return agent.unseen


@rule(
    "HD101",
    "consul-no-retry-join",
    Severity.ERROR,
    what="A Consul agent that is told of no other agent: neither `retry_join` nor anything that stands in for it. A "
    "single server (`bootstrap_expect = 1`) is meant to be alone; a server that does not say how many there are gets "
    "flags that are not seen here, and mutes this rule.",
    why="It starts, finds nobody and never looks again: it stays alone until a person runs `consul join`. An agent "
    "that was a member before rejoins from its snapshot of members only while one of those still has its address.",
    default="`retry_join` is empty, and then no join is tried.",
    fix='Set `retry_join = ["10.0.0.1", "10.0.0.2", "10.0.0.3"]`, or cloud auto-join, in any file of the agent.',
    link=f"{_CONFIG}/join",
    source="consul 1.22.2, agent/retry_join.go",
    verified=f"{_TESTS}::test_an_agent_without_retry_join_stays_alone",
)
def consul_no_retry_join(audited: Audited) -> Iterator[Hit]:
    for agent in audited.consul_agents:
        told = agent.merged
        if not _is_an_agent(agent) or _alone_on_purpose(agent):
            continue
        # auto_config brings the addresses of the servers along, and auto_encrypt still needs retry_join
        automatic = any(body.flag("enabled") is True for body in told.blocks("auto_config"))
        if told.has("retry_join", "start_join") or automatic:
            continue
        document, place = agent.where("server", "data_dir", "bootstrap_expect")
        role = "server" if told.flag("server") else "agent"
        text = f"this Consul {role} has no retry_join: it never looks for the others"
        yield Hit(document, place, text, muted=_unseen(agent))


@rule(
    "HD102",
    "consul-retry-max",
    Severity.WARNING,
    what="`retry_max` or `retry_max_wan` above 0, in a file or as a flag.",
    why="After that many retries of a failed join the agent process exits with code 1. A datacenter that is away for "
    "longer than retry_max x retry_interval takes every agent with it that happens to start then, and whoever "
    "supervises it must bring it back.",
    default="0: the agent tries until it succeeds, every 30 s.",
    fix="Leave `retry_max` out.",
    link=f"{_CONFIG}/join",
    source="consul 1.22.2, agent/retry_join.go",
    verified=f"{_TESTS}::test_an_agent_with_retry_max_exits_with_1",
)
def consul_retry_max(audited: Audited) -> Iterator[Hit]:
    for agent in audited.consul_agents:
        for name in ("retry_max", "retry_max_wan"):
            said, attempts = agent.find(name), agent.merged.number(name)
            if said is not None and attempts is not None and attempts > 0:
                text = f"after {attempts:g} retries of a failed join this agent exits with code 1"
                yield Hit(said[0], said[1].place, text)


@rule(
    "HD103",
    "consul-no-retry-join-wan",
    Severity.WARNING,
    what="A server of a federated datacenter that is told of no server elsewhere: no `retry_join_wan`, here or with "
    "another server of its datacenter.",
    why="Without it a datacenter finds no other by itself. One server that joins is enough: Consul floods the others "
    "of its datacenter into the WAN pool.",
    default="`retry_join_wan` is empty, and then no join is tried.",
    fix="Set `retry_join_wan` to servers of the other datacenter, or federate through mesh gateways.",
    link=f"{_CONFIG}/join",
    source="consul 1.22.2, agent/retry_join.go and agent/consul/flood.go",
    verified=f"{_TESTS}::test_a_datacenter_without_retry_join_wan_is_not_federated",
)
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
        text = "this server belongs to a federation and has no retry_join_wan"
        yield Hit(document, place, text, muted=agent.unseen)


@rule(
    "HD104",
    "consul-limits-and-deaf-client",
    Severity.WARNING,
    what='`limits.request_limits.mode = "enforcing"`, and in the same audit a Python caller of Consul that takes 429 '
    "for a failure.",
    why="A request above the rate is refused with 429 (or 503 where only the leader can serve): the caller is meant to "
    "wait and come back. One that does not turns every burst into errors of its own.",
    default='`mode = "disabled"`: nothing is refused.',
    fix='Let the caller retry 429 with backoff, or use `mode = "permissive"` until it does.',
    link="https://developer.hashicorp.com/consul/docs/manage/rate-limit",
    source="consul 1.22.2, agent/consul/rate/handler.go",
    verified=f"{_TESTS}::test_enforced_request_limits_answer_429",
)
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


@rule(
    "HD105",
    "consul-lock-no-monitor-retry",
    Severity.WARNING,
    what="`consul lock -monitor-retry=0`, in a systemd unit or a Nomad job.",
    why="The first error while the lock is watched, one 500 during an election for instance, counts as a lost lock: "
    "the child is stopped although the lock is still held.",
    default="3 for the command, 1 s apart. In Go, `LockOptions.MonitorRetries` is 0 unless it is set; code is not "
    "read.",
    fix="Leave `-monitor-retry` out, or set it to ride out an election: 10 or more.",
    link="https://developer.hashicorp.com/consul/commands/lock#monitor-retry",
    source="consul 1.22.2, command/lock/lock.go; consul/api lock.go",
    verified=f"{_TESTS}::test_consul_lock_without_monitor_retry_gives_up_at_the_first_error",
)
def consul_lock_no_monitor_retry(audited: Audited) -> Iterator[Hit]:
    for each in audited.all_commands:
        words = each.command.words
        locks = "lock" in words and any(word.rpartition("/")[2] == "consul" for word in words)
        if locks and ("monitor-retry", "0") in each.command.flags:
            yield Hit(each.document, each.place, "this lock is given up at the first error of a watch")
