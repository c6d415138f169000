"""Rules about Nomad's agents."""

from __future__ import annotations

from collections.abc import Iterator

from hashidrill.clients.audit.audited import Agent, Audited
from hashidrill.clients.audit.rule import Hit, Severity, rule
from hashidrill.clients.audit.sources import Document
from hashidrill.clients.audit.tree import Mapping, is_zero_duration

_TESTS = "tests/live/test_audit_claims_nomad.py"
_JOIN = "https://developer.hashicorp.com/nomad/docs/configuration/server_join"
_RETRY = "https://developer.hashicorp.com/nomad/docs/configuration/client#template-parameters"
_RETRIES = ("consul_retry", "vault_retry", "nomad_retry")


def _roles(agent: Agent, name: str) -> list[tuple[Document, Mapping]]:
    """The blocks of a role that is on."""
    merged = agent.merged.block(name)
    return agent.bodies(name) if merged is not None and merged.flag("enabled") is True else []


def _joins(bodies: list[tuple[Document, Mapping]], *names: str) -> bool:
    within = [join for _, body in bodies for join in body.blocks("server_join")]
    return any(body.has(*names) for body in [*within, *(body for _, body in bodies)])


@rule(
    "HD201",
    "nomad-no-server-join",
    Severity.WARNING,
    what="A Nomad server of several, or a Nomad client, without `server_join { retry_join }`, `servers`, or a `consul` "
    "block to find the servers with.",
    why="The one way left is Consul on 127.0.0.1:8500, by default and unsaid. Where that is not up when the agent "
    "starts, or not there at all, nobody is found.",
    default="`retry_join` is empty; `consul { server_auto_join = true  client_auto_join = true }`.",
    fix='`server_join { retry_join = ["10.0.0.1", "10.0.0.2", "10.0.0.3"] }`, or a `consul` block with its address.',
    link=_JOIN,
    source="nomad 1.10.5, website/content/docs/configuration/server_join.mdx and consul.mdx",
    verified=f"{_TESTS}::test_a_client_without_server_join_has_consul_to_ask_and_nobody_else",
)
def nomad_no_server_join(audited: Audited) -> Iterator[Hit]:
    for agent in audited.nomad_agents:
        servers, clients = _roles(agent, "server"), _roles(agent, "client")
        for bodies, auto in ((servers, "server_auto_join"), (clients, "client_auto_join")):
            if not bodies or (bodies is clients and servers):
                continue  # a client that is a server too has one on its own machine
            several = any((body.number("bootstrap_expect") or 0) > 1 for _, body in bodies)
            if bodies is servers and not several:
                continue
            consul = [body for _, body in agent.bodies("consul")]
            found = _joins(bodies, "retry_join", "start_join", "servers")
            flags = {} if agent.started is None else dict(agent.started.command.flags)
            by_flag = flags.keys() & {"retry-join", "join", "servers", "dev"}  # for either role
            if not found and not by_flag and not any(body.flag(auto) is not False for body in consul):
                document, body = bodies[0]
                role = "server" if bodies is servers else "client"
                text = f"this Nomad {role} is not told how to find the servers"
                yield Hit(document, body.place, text, muted=agent.unseen)


@rule(
    "HD202",
    "nomad-retry-max",
    Severity.WARNING,
    what="`server_join { retry_max }` above 0, in a file or as a flag.",
    why="After that many retries of a failed join the agent exits with code 1.",
    default="0: the agent tries until it succeeds, every 30 s.",
    fix="Leave `retry_max` out.",
    link=f"{_JOIN}#retry_max",
    source="nomad 1.10.5, command/agent/retry_join.go",
    verified=f"{_TESTS}::test_an_agent_with_retry_max_exits_with_1",
)
def nomad_retry_max(audited: Audited) -> Iterator[Hit]:
    for document, join in _all_joins(audited):
        entry, attempts = join.find("retry_max"), join.number("retry_max")
        if entry is not None and attempts is not None and attempts > 0:
            yield Hit(
                document, entry.place, f"after {attempts:g} retries of a failed join this agent exits with code 1"
            )


@rule(
    "HD203",
    "nomad-start-join",
    Severity.WARNING,
    what="`start_join` in a Nomad server.",
    why="It is tried once: when no server answers at that moment, the agent does not start.",
    default="Empty.",
    fix="Use `server_join { retry_join = [...] }` with the same addresses.",
    link=f"{_JOIN}#start_join",
    source="nomad 1.10.5, website/content/docs/configuration/server_join.mdx",
    verified=f"{_TESTS}::test_an_agent_with_start_join_does_not_start_when_nobody_answers",
)
def nomad_start_join(audited: Audited) -> Iterator[Hit]:
    for document, join in _all_joins(audited):
        entry = join.find("start_join")
        if entry is not None and join.has("start_join"):
            yield Hit(document, entry.place, "start_join is tried once, and the agent does not start when it fails")


def _all_joins(audited: Audited) -> Iterator[tuple[Document, Mapping]]:
    """server_join blocks, and the older way of the same words directly in `server` and `client`."""
    for agent in audited.nomad_agents:
        for document, body in agent.bodies("server", "client"):
            yield from ((document, join) for join in [body, *body.blocks("server_join")])


@rule(
    "HD204",
    "nomad-template-retry-uncapped",
    Severity.WARNING,
    what="`max_backoff = 0` in a client's `consul_retry`, `vault_retry` or `nomad_retry`.",
    why="0 takes the limit away instead of the wait: the pause doubles for ever. After 16 failures it is over 4 "
    "hours, and a template that could be rendered again waits it out.",
    default="1 min.",
    fix='Leave `max_backoff` out, or say `"1m"`.',
    link=_RETRY,
    source="nomad 1.10.5, website/content/docs/configuration/client.mdx; consul-template 0.41.0, config/retry.go",
    verified=f"{_TESTS}::test_without_a_limit_the_task_goes_on_and_without_a_cap_the_pauses_double",
)
def nomad_template_retry_uncapped(audited: Audited) -> Iterator[Hit]:
    for document, retry in _template_retries(audited):
        entry = retry.find("max_backoff")
        if entry is not None and is_zero_duration(entry.value):
            yield Hit(document, entry.place, "max_backoff = 0: the pause between retries doubles without a limit")


@rule(
    "HD205",
    "nomad-template-retry-limited",
    Severity.INFO,
    what="A client's `consul_retry`, `vault_retry` or `nomad_retry` with `attempts` above 0.",
    why="When the attempts are used up, tasks whose templates ask that service are killed, also those that run well "
    "with what they have, unless `change_mode` is `noop`. 0 is no prohibition here: it is without limit.",
    default="12, which is about 5 minutes.",
    fix="`attempts = 0`, where an old value is better than none.",
    link=_RETRY,
    source="nomad 1.10.5, website/content/docs/configuration/client.mdx",
    verified=f"{_TESTS}::test_the_attempts_of_a_template_are_as_many_as_are_said",
)
def nomad_template_retry_limited(audited: Audited) -> Iterator[Hit]:
    for document, retry in _template_retries(audited):
        entry, attempts = retry.find("attempts"), retry.number("attempts")
        if entry is not None and attempts is not None and attempts > 0:
            yield Hit(document, entry.place, f"after {attempts:g} retries the tasks with such templates are killed")


def _template_retries(audited: Audited) -> Iterator[tuple[Document, Mapping]]:
    for agent in audited.nomad_agents:
        for document, client in agent.bodies("client"):
            for template in client.blocks("template"):
                yield from ((document, retry) for retry in template.blocks(*_RETRIES))
