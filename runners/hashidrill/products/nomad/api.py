"""How Nomad's faults call its HTTP API, and what they wait for. Paths and fields are those of 1.10.5."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from hashidrill.core.errors import FaultError
from hashidrill.core.protocols.abc import ApiAnswer, Host, Hosts
from hashidrill.core.protocols.capabilities import AgentApi
from hashidrill.core.util.wait import all_at_once, wait_until

AGENT = "nomad"
_MOVING = (
    b"No cluster leader",
    b"node is not the leader",
    b"leadership lost",
    b"leadership transfer in progress",
    b"rpc error",
    b"eval broker disabled",
)
"""Messages while leadership moves."""
_LED_WITHIN_S = 15.0
_TELLS_WITHIN_S = 2.0


def said(answer: ApiAnswer) -> str:
    return f"HTTP {answer.status} {answer.body[:400].decode(errors='replace').strip()}".rstrip()


def servers_of(hosts: Hosts) -> list[Host]:
    return [host for host in hosts.all_hosts() if host.roles.get(AGENT) == "server"]


async def call(
    host: Host,
    method: str,
    path: str,
    *,
    params: Mapping[str, str] | None = None,
    body: Any = None,
    timeout_s: float = 5.0,
) -> ApiAnswer:
    """Sends one request to the Nomad agent of that host. Raises FaultError when there is no answer."""
    content = None if body is None else json.dumps(body).encode()
    return await host.use(AgentApi).api(method, path, params=params, body=content, timeout_s=timeout_s, agent=AGENT)


async def when_led(
    hosts: Hosts, method: str, path: str, *, params: Mapping[str, str] | None = None, body: Any = None
) -> Any:
    """The JSON of any server's answer to a repeatable request; waits while the leader changes.

    Raises FaultError for a refusal, and WaitTimeoutError if there is no leader for 15 s.
    """

    async def ask() -> tuple[ApiAnswer | None, str]:
        errors = []
        for host in servers_of(hosts):
            try:
                answer = await call(host, method, path, params=params, body=body)
            except FaultError as error:
                errors.append(str(error))
                continue
            if not (answer.status >= 500 and any(words in answer.body for words in _MOVING)):
                return answer, ""
            errors.append(f"{host.name}: {said(answer)}")
        return None, "; ".join(errors)

    answer = await wait_until(f"Nomad to answer {method} {path}", ask, within_s=_LED_WITHIN_S, gap_s=0.2)
    if answer.status != 200:
        raise FaultError(f"{method} {path}: {said(answer)}")
    return answer.json()


async def from_copy(hosts: Hosts, path: str, params: Mapping[str, str] | None = None) -> Any:
    """JSON from a server's own copy of the state, as Raft replicated it; followers are asked first.

    Raises FaultError if no server answers.
    """
    leader, _ = await leader_of_terms(hosts)
    errors = []
    for host in sorted(servers_of(hosts), key=lambda one: one.name == leader):
        try:
            answer = await call(host, "GET", path, params={**(params or {}), "stale": ""})
        except FaultError as error:
            errors.append(str(error))
            continue
        if answer.status == 200 and answer.headers.get("x-nomad-knownleader") != "false":
            return answer.json()
        errors.append(f"{host.name}: {said(answer)}")
    raise FaultError("; ".join(errors) or "there is no Nomad server")


async def node_named(hosts: Hosts, name: str) -> Mapping[str, Any]:
    """A Nomad client as the servers see it. Raises FaultError if the host has no Nomad client.

    Matches by the host's address if Nomad uses another name, because another product may have named the host.
    """
    nodes = await when_led(hosts, "GET", "/v1/nodes")
    found = [node for node in nodes if node["Name"] == name]
    if not found:
        found = [node for node in nodes if node.get("Address") == hosts.host(name).address]
    if not found:
        known = ", ".join(sorted(node["Name"] for node in nodes))
        raise FaultError(f"{name} is not a Nomad client; the clients are {known or 'none'}")
    # a client that came back with an empty disk registers again as a new one: the last registration counts
    newest: Mapping[str, Any] = max(found, key=lambda node: int(node["CreateIndex"]))
    return newest


async def raft_voters(hosts: Hosts) -> dict[str, str]:
    """{host name: id in Raft} of the voters. Raises FaultError."""
    names = {host.address: host.name for host in hosts.all_hosts()}
    answer = await from_copy(hosts, "/v1/operator/raft/configuration")
    voters = [one for one in answer["Servers"] if one["Voter"]]
    return {names.get(one["Address"].rpartition(":")[0], one["Node"]): one["ID"] for one in voters}


async def leader_of_terms(hosts: Hosts) -> tuple[str | None, int]:
    """The server that reports itself as leader in the term that most servers report, and that term.

    Asks each server for its own Raft state. None if there is no such server; 0 if no server answers.
    """
    found: dict[str, tuple[str, int]] = {}

    async def ask(host: Host) -> None:
        with contextlib.suppress(FaultError, KeyError, ValueError, TypeError):
            raft = (await call(host, "GET", "/v1/agent/self", timeout_s=_TELLS_WITHIN_S)).json()["stats"]["raft"]
            found[host.name] = (raft["state"], int(raft["term"]))

    servers = servers_of(hosts)
    await all_at_once(partial(ask, host) for host in servers)
    newest = max((term for _, term in found.values()), default=0)
    leaders = [name for name, (state, term) in found.items() if state == "Leader" and term == newest]
    in_it = sum(term == newest for _, term in found.values())
    return (leaders[0], newest) if len(leaders) == 1 and 2 * in_it > len(servers) else (None, newest)


async def wait_for_leader(hosts: Hosts, what: str, wanted: Sequence[str], *, within_s: float = 30.0) -> str:
    """Waits until one of `wanted` leads, by each server's own report. Raises WaitTimeoutError."""

    async def leads() -> tuple[str | None, str]:
        leader, term = await leader_of_terms(hosts)
        return (leader if leader in wanted else None), f"{leader or 'no server'} leads in term {term}"

    return await wait_until(what, leads, within_s=within_s, gap_s=0.05)
