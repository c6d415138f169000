"""How Consul's faults call its HTTP API, and what they wait for. Paths and fields are those of 1.10.3 and 1.22.2."""

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hashidrill.core.errors import FaultError, WaitTimeoutError
from hashidrill.core.protocols.abc import ApiAnswer, Host, Hosts
from hashidrill.core.protocols.capabilities import AgentApi, Processes
from hashidrill.core.util.wait import all_at_once, wait_until, wait_while_it_moves

AGENT = "consul"
_OF_SERVERS = ("server", "spare")
"""The roles of hosts that have a server, or may get one."""
ALIVE, LEFT = 1, 3
"""Serf's states of a live member, and of one that left; 4 is failed."""
_STILL_S = 40.0
"""Give up after this long without progress, which is a further step, or fewer missing log entries than ever before.
A restarted agent was measured to catch up within about 3 s; a busy machine takes longer."""
_BACK_WITHIN_S = 180.0
"""Give up after this long in any case: a server that catches up this slowly may never finish."""
_MOVING = (
    b"leadership transfer in progress",
    b"No cluster leader",
    b"node is not the leader",
    b"leadership lost",
    b"session shutdown",
    b"rpc error getting client",
)
"""Messages while leadership moves; the last two come from a server that lost its connection to the leader."""
_LED_WITHIN_S = 15.0
_TELLS_WITHIN_S = 2.0
_COPY_WITHIN_S = 30.0
"""Copying a million keys takes this long."""
_BACK_SOON_S = 20.0
_VOTER_STILL_S = 60.0
"""Autopilot makes a new server a voter once it has been healthy for 10 s (server_stabilization_time)."""
_LOG_GAP = 128
"""A server this many log entries behind the leader still counts as caught up: under load it always lags a little."""


@dataclass(frozen=True)
class Peer:
    """A server in Raft's configuration."""

    id: str
    name: str
    address: str
    voter: bool


def said(answer: ApiAnswer) -> str:
    return f"HTTP {answer.status} {answer.body[:400].decode(errors='replace').strip()}".rstrip()


async def get(host: Host, path: str, params: Mapping[str, str] | None = None, *, timeout_s: float = 5.0) -> Any:
    """The JSON of an answer. Raises FaultError for any status but 200."""
    answer = await host.use(AgentApi).api("GET", path, params=params, timeout_s=timeout_s, agent=AGENT)
    if answer.status != 200:
        raise FaultError(f"{host.name}: GET {path}: {said(answer)}")
    return answer.json()


async def agent_self(host: Host, *, timeout_s: float = 5.0) -> dict[str, Any]:
    answer: dict[str, Any] = await get(host, "/v1/agent/self", timeout_s=timeout_s)
    return answer


async def raft_stats(host: Host) -> Mapping[str, str]:
    """A server's own view of Raft: `state`, `term`, `commit_index`, ... as text. Raises FaultError."""
    stats: Mapping[str, str] = (await agent_self(host))["Stats"].get("raft", {})
    if not stats:
        raise FaultError(f"{host.name}: its agent is not a server")
    return stats


async def version_of(host: Host) -> tuple[int, ...]:
    """The agent's version, like (1, 22, 2). Raises FaultError."""
    text = str((await agent_self(host))["Config"]["Version"])
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])


async def has_agent(host: Host) -> bool:
    return await host.use(Processes).agent_process(AGENT) is not None


def servers_of(hosts: Hosts) -> list[Host]:
    return [host for host in hosts.all_hosts() if host.roles.get(AGENT) == "server"]


async def ask_servers(hosts: Hosts, path: str, params: Mapping[str, str] | None = None, *, but: str = "") -> Any:
    """The answer of the first server other than `but` that answers. Raises FaultError if no server does.

    It also asks spare hosts: a later process does not know which of them have become servers.
    """
    errors = []
    for host in sorted(hosts.all_hosts(), key=lambda one: one.roles.get(AGENT) != "server"):
        if host.name != but and host.roles.get(AGENT) in _OF_SERVERS:
            try:
                return await get(host, path, params, timeout_s=2.0)
            except FaultError as error:
                errors.append(str(error))
    raise FaultError("; ".join(errors) or f"there is no server other than {but}")


async def leader_of(hosts: Hosts) -> str | None:
    """The host that a majority of the servers names as the leader now."""
    seen: list[str] = []

    async def ask(host: Host) -> None:
        with contextlib.suppress(FaultError, ValueError):
            path = "/v1/status/leader"
            answer = await host.use(AgentApi).api("GET", path, timeout_s=_TELLS_WITHIN_S, agent=AGENT)
            seen.append(str(answer.json()).partition(":")[0])

    servers = servers_of(hosts)
    await all_at_once(partial(ask, host) for host in servers)
    return next((host.name for host in servers if seen.count(host.address) > len(servers) // 2), None)


async def peers(hosts: Hosts, *, but: str = "") -> list[Peer]:
    """Raft's configuration, from any server other than `but`. Raises FaultError."""
    answer = await ask_servers(hosts, "/v1/operator/raft/configuration", {"stale": ""}, but=but)
    return [Peer(one["ID"], one["Node"], one["Address"], one["Voter"]) for one in answer["Servers"]]


async def member_states(hosts: Hosts, *, but: str) -> dict[str, int]:
    """Serf's state of each member by name, as a server other than `but` sees it. Raises FaultError."""
    return {one["Name"]: one["Status"] for one in await ask_servers(hosts, "/v1/agent/members", but=but)}


async def check_quorum_without(hosts: Hosts, host: Host) -> None:
    """Raises FaultError if the other servers would not be a majority without this one.

    Waits for a server that is coming back. With one or two voters, the remaining ones are never a majority, so the
    check does not apply. A dead voter that autopilot removes meanwhile still counts.
    """
    left: list[str] = []
    most = 0

    async def others_suffice() -> tuple[bool | None, str]:
        nonlocal left, most
        voters = [peer for peer in await peers(hosts) if peer.voter]
        most = max(most, len(voters))
        if host.name not in {peer.name for peer in voters} or most < 3:
            return True, ""
        states = await member_states(hosts, but=host.name)
        left = [
            peer.name
            for peer in voters
            if peer.name != host.name and states.get(peer.name) == ALIVE and await _serves(hosts, peer.name)
        ]
        return (len(left) * 2 > most) or None, f"{len(left)} of {most} voters are left"

    try:
        await wait_until("a majority of the others", others_suffice, within_s=_BACK_SOON_S, gap_s=0.2)
    except WaitTimeoutError:
        raise FaultError(
            f"without {host.name}, {len(left)} of {most} voters remain ({', '.join(left) or 'none'}), which "
            "is not a majority; let the faults on the other servers end first"
        ) from None


async def _serves(hosts: Hosts, name: str) -> bool:
    try:
        await hosts.host(name).use(AgentApi).api("GET", "/v1/status/leader", timeout_s=1.0, agent=AGENT)
    except FaultError:
        return False
    return True


async def wait_in_step(hosts: Hosts, host: Host) -> None:
    """Waits until a (re)started agent is part of the datacenter again.

    An agent is ready if it answers, another server sees it alive, and it knows the leader; a server must also have
    caught up with the leader's log. Waits for as long as a server makes progress. Raises WaitTimeoutError with what is
    missing, FaultError when the agent has exited.
    """

    async def in_step() -> tuple[bool | None, str, _Far | None]:
        if not await has_agent(host):
            raise FaultError(f"{host.name}: {AGENT} exited right after its start; its log in the recording says why")
        try:
            return await _in_step(hosts, host)
        except FaultError as error:
            return None, str(error), None

    await wait_while_it_moves(
        f"{AGENT} on {host.name} to catch up", in_step, still_s=_STILL_S, within_s=_BACK_WITHIN_S, gap_s=0.1
    )


_Far = tuple[int, int]
"""How far the agent has come: the step that it reached, and minus the missing log entries; greater is further."""


async def _in_step(hosts: Hosts, host: Host) -> tuple[bool | None, str, _Far]:
    if not await get(host, "/v1/status/leader"):
        return None, "it knows no leader", (0, 0)
    if len(servers_of(hosts)) > 1 or host.roles.get(AGENT) != "server":
        state = (await member_states(hosts, but=host.name)).get(host.name)
        if state != ALIVE:
            return None, f"the others see it in state {state}, not alive", (1, 0)
    if host.roles.get(AGENT) == "client":
        return True, "", (4, 0)
    leader = await leader_of(hosts)
    if leader is None:
        return None, "no leader is known to a majority of the servers", (2, 0)
    behind = await _behind(hosts, host, leader)
    if behind > _LOG_GAP:
        return None, f"it is {behind} log entries behind {leader}", (3, -behind)
    return True, "", (4, 0)


async def _behind(hosts: Hosts, host: Host, leader: str) -> int:
    committed = int((await raft_stats(hosts.host(leader)))["commit_index"])
    return committed - int((await raft_stats(host))["applied_index"])


async def leader_of_terms(hosts: Hosts) -> tuple[str | None, int]:
    """The server that reports itself as leader in the term that most servers report, and that term.

    It asks each server for its own state in Raft, which suits faults that change the leadership; `leader_of` asks each
    server which leader it knows. None if there is no such server; 0 if no server answers.
    """
    said: dict[str, tuple[str, int]] = {}

    async def ask(host: Host) -> None:
        with contextlib.suppress(FaultError, KeyError, ValueError):
            stats = (await agent_self(host, timeout_s=_TELLS_WITHIN_S))["Stats"]["raft"]
            said[host.name] = (stats["state"], int(stats["term"]))

    servers = servers_of(hosts)
    await all_at_once(partial(ask, host) for host in servers)
    newest = max((term for _, term in said.values()), default=0)
    leaders = [name for name, (state, term) in said.items() if state == "Leader" and term == newest]
    in_it = sum(term == newest for _, term in said.values())
    return (leaders[0], newest) if len(leaders) == 1 and 2 * in_it > len(servers) else (None, newest)


async def ask_another(hosts: Hosts, host: Host, path: str, params: Mapping[str, str] | None = None) -> ApiAnswer:
    """Like `ask_another_for`, for one path."""
    [answer] = await ask_another_for(hosts, host, [path], params)
    return answer


async def ask_another_for(
    hosts: Hosts, host: Host, paths: Sequence[str], params: Mapping[str, str] | None = None
) -> list[ApiAnswer]:
    """Answers from another server's own copy of the state (`stale`), as Raft replicated it; all from the same server.

    A write through `host` is proven by reading it from another host. Followers are asked first, because the leader
    itself accepted the write. A server that knows no leader is out of date and is skipped. If there is no other server,
    `host` answers with the leader's state. Raises FaultError if no server answers.
    """
    leader = await leader_of(hosts)
    others = sorted((one for one in servers_of(hosts) if one.name != host.name), key=lambda one: one.name == leader)
    errors = []
    for other in others:
        if not await _serves(hosts, other.name):
            errors.append(f"{other.name}: its agent does not answer")
            continue
        stale, api = {**(params or {}), "stale": ""}, other.use(AgentApi).api
        try:
            answers = [await api("GET", path, params=stale, timeout_s=_COPY_WITHIN_S, agent=AGENT) for path in paths]
        except FaultError as error:
            errors.append(str(error))
            continue
        if all(answer.headers.get("x-consul-knownleader") != "false" for answer in answers):
            return answers
        errors.append(f"{other.name}: it knows no leader")
    if errors:
        raise FaultError("; ".join(errors))
    consistent = {**(params or {}), "consistent": ""}
    return [await when_led(host, "GET", path, params=consistent, timeout_s=_COPY_WITHIN_S) for path in paths]


async def leader_soon(hosts: Hosts) -> str:
    """The leader, after waiting for an election to end. Raises FaultError if no server is elected."""

    async def leads() -> tuple[str | None, str]:
        return await leader_of(hosts) or None, "no server leads"

    try:
        return await wait_until("a server to lead", leads, within_s=_LED_WITHIN_S)
    except WaitTimeoutError:
        raise FaultError("right now no majority of the servers knows a leader") from None


async def wait_for_voter(hosts: Hosts, host: Host) -> None:
    """Waits until Raft's configuration has the host as a voter, while the host catches up. Raises WaitTimeoutError.

    Autopilot does not promote a server that is hundreds of log entries behind.
    """

    async def votes() -> tuple[bool | None, str, _Far | None]:
        try:
            found = {peer.name: peer.voter for peer in await peers(hosts)}
            here = "a voter" if found.get(host.name) else "not yet a voter" if host.name in found else "absent"
            if found.get(host.name):
                return True, "", None
            leader = await leader_of(hosts)
            behind = 0 if leader is None else max(0, await _behind(hosts, host, leader) - _LOG_GAP)
        except FaultError as error:
            return None, str(error), None
        return None, f"in Raft's configuration it is {here}", (int(host.name in found), -behind)

    await wait_while_it_moves(
        f"{host.name} to be a voter", votes, still_s=_VOTER_STILL_S, within_s=_BACK_WITHIN_S, gap_s=0.2
    )


async def voters_with(hosts: Hosts, host: Host) -> dict[str, str]:
    """{name: id in Raft} of the voters, including this host; waits for a server that has just come back.

    Raises FaultError if it does not become a voter.
    """
    with contextlib.suppress(WaitTimeoutError):
        if host.roles.get(AGENT) in _OF_SERVERS:
            await wait_for_voter(hosts, host)
    voters = {peer.name: peer.id for peer in await peers(hosts) if peer.voter}
    if host.name not in voters:
        raise FaultError(f"{host.name} is not a voter; the voters are {', '.join(sorted(voters))}")
    return voters


async def when_led(
    host: Host,
    method: str,
    path: str,
    *,
    params: Mapping[str, str] | None = None,
    body: bytes | None = None,
    timeout_s: float = 5.0,
) -> ApiAnswer:
    """The answer to a repeatable request; repeats it while answers say that leadership is moving.

    Raises FaultError if no answer comes, and WaitTimeoutError if leadership moves for longer than 15 s.
    """

    async def ask() -> tuple[ApiAnswer | None, str]:
        answer = await host.use(AgentApi).api(method, path, params=params, body=body, timeout_s=timeout_s, agent=AGENT)
        moving = answer.status >= 500 and any(words in answer.body for words in _MOVING)
        return (None if moving else answer), said(answer)

    return await wait_until(f"{host.name} to answer {method} {path}", ask, within_s=_LED_WITHIN_S, gap_s=0.2)


async def wait_for_leader(hosts: Hosts, what: str, wanted: Sequence[str], *, within_s: float = 30.0) -> str:
    """Waits until one of `wanted` leads in the view of a majority of the servers. Raises WaitTimeoutError."""

    async def leads() -> tuple[str | None, str]:
        leader = await leader_of(hosts)
        return (leader if leader in wanted else None), f"{leader or 'no server'} leads"

    return await wait_until(what, leads, within_s=within_s, gap_s=0.05)
