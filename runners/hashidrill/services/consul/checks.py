"""What a method can get wrong about Consul's agents and servers: who is where, and what would cost the majority."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hashidrill.errors import UnknownNameError
from hashidrill.experiment.selectors import parse_selector
from hashidrill.services.consul.faults.leader import TRANSFER_SINCE
from hashidrill.services.consul.faults.streams import TOO_NEW, UNTIL
from hashidrill.services.consul.settings import needs_restart

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hashidrill.experiment.checks import Draft, Note, Step
    from hashidrill.experiment.model import Consul

_CONFIG, _STOP, _REPLACE = "consul.config", "consul.agent.stop", "consul.server.replace"
_TRANSFER, _AVOID, _PIN = "consul.leader.transfer", "consul.leader.avoid", "consul.leader.pin"
_KV, _RAFT_BLOAT = "consul.kv.bloat", "consul.raft.bloat"
_GATHER = "consul.streams.gather"
_LEADERS = frozenset({_TRANSFER, _AVOID, _PIN})
_OF_SERVERS = _LEADERS | {_REPLACE, _RAFT_BLOAT, "consul.raft.compact", _GATHER}
_OF_ONE = _LEADERS | {_STOP, _REPLACE, _KV, _GATHER}
"""Kinds that are put on one host: on several they would be in each other's way."""
OF_THE_AGENT = frozenset({"process.pause", "process.kill", "process.restart", _CONFIG, _STOP})
"""Kinds that end the agent, or need it to answer: there is only ever one of them on a host."""
_AWAY = frozenset({"process.pause", "process.kill", _STOP, "network.partition"})
"""Kinds that take a server out of the majority as long as they are in force."""
_REPLACING_S = 120.0
"""How much longer than its `for` a replacement may last: each way, a server joins and becomes a voter before the other
one leaves (31 s each, measured on 2 cores beside another run)."""
_MANY = frozenset({"consul:followers", "consul:servers", "consul:clients", "consul:all"})


def check_consul(draft: Draft, note: Note) -> None:
    """Note every problem with the faults of Consul's agents, leaders and servers."""
    for index, step in enumerate(draft.steps):
        if step is None:
            continue
        if text := _misplaced(step, draft):
            note(("method", index, "on"), text)
        for number, earlier in enumerate(draft.steps[:index]):
            if earlier is not None and (reason := _collision(earlier, step, draft)):
                text = f"{step.kind} on {step.on} runs while method[{number}] ({earlier.kind} on {earlier.on}) does"
                note(("method", index), f"{text}: {reason}; let one end before the other begins")
                break


def _misplaced(step: Step, draft: Draft) -> str:
    hosts = hosts_of(step, draft)
    if not hosts or draft.consul is None:
        return ""
    if step.kind in _OF_SERVERS and not _servers(hosts):
        return f"{step.kind} is about servers, and {step.on} are none; write consul:leader or host:consul-1"
    if step.kind in _OF_ONE and step.on in _MANY and len(hosts) > 1:
        return f"{step.kind} is put on one host, and {step.on} may be several; write consul:leader, or host:NAME"
    return _cannot(step, draft.consul) or _to_nobody(step, draft)


def _cannot(step: Step, consul: Consul) -> str:
    """Whether it needs other agents than are there, or older ones."""
    if step.kind in _LEADERS and consul.servers < 2:
        return f"{step.kind} needs another server that can lead (datacenter.consul.servers is {consul.servers})"
    if step.kind == _GATHER and (consul.servers < 2 or not consul.clients):
        there = f"there are {consul.servers} servers and {consul.clients} clients"
        return f"{step.kind} needs another server, and agents that could have streams from it ({there})"
    if step.kind == _GATHER and not consul.binary and not _is_before(UNTIL, consul):
        return f"{step.kind} is for Consul before {'.'.join(map(str, UNTIL))}, not {consul.version}: {TOO_NEW}"
    return ""


def _is_before(version: tuple[int, ...], consul: Consul) -> bool:
    return tuple(map(int, consul.version.split(".")[:2])) < version


def _to_nobody(step: Step, draft: Draft) -> str:
    to = getattr(step.params, "to", None)
    if step.kind == _TRANSFER and to is not None and (to not in _all_servers(draft) or step.on == f"host:{to}"):
        others = [name for name in _all_servers(draft) if step.on != f"host:{name}"]
        return f"the leadership of {step.on} cannot be transferred to {to}; the servers are {', '.join(others)}"
    return ""


def _collision(one: Step, two: Step, draft: Draft) -> str:
    """Why the two cannot be in force at one time; empty when they can, or are not."""
    if not same_time(one, two) or draft.consul is None:
        return ""
    return next(_reasons(one, two, draft), "")


def _reasons(one: Step, two: Step, draft: Draft) -> Iterator[str]:
    kinds, meet = {one.kind, two.kind}, bool(hosts_of(one, draft) & hosts_of(two, draft))
    if kinds <= _LEADERS:
        yield "both are about who leads"
    if kinds == {_GATHER}:
        yield "both are about which server has the streams"
    if kinds <= OF_THE_AGENT and kinds & {_CONFIG, _STOP} and meet:
        yield "they may be on one host, and one would end the agent that the other needs, or undo what it set"
    # a server that has the streams has no other trace of that: it is no matter where it is not named
    if _REPLACE in kinds and meet and kinds - {"noop", _REPLACE, _GATHER if one.on != two.on else ""}:
        yield "they may be on one host, which will not be there any more"
    if kinds == {_REPLACE} and (one.at == two.at or one.on == two.on):
        yield "each takes the next free spare host; let them begin one after the other, on other servers"
    if _REPLACE in kinds and kinds & {_AVOID, _PIN}:
        yield "the new server could be elected, whoever shall not or shall lead"
    if kinds == {_RAFT_BLOAT, _CONFIG} and meet and _by_writes(one, two):
        yield "both set the server's configuration"
    if kinds == {_KV} and getattr(one.params, "prefix", None) == getattr(two.params, "prefix", None):
        yield "both write below the same prefix"
    yield from filter(None, (_lost_majority(one, two, draft), _lost_majority(two, one, draft)))


def _by_writes(*steps: Step) -> bool:
    return any(getattr(step.params, "by", None) == "writes" for step in steps if step.kind == _RAFT_BLOAT)


def _lost_majority(away: Step, step: Step, draft: Draft) -> str:
    """Whether the one takes a server away while the other needs all that are left, or nearly."""
    if away.kind not in _AWAY or draft.consul is None or not _servers(hosts_of(away, draft)):
        return ""
    if step.kind == _PIN and hosts_of(away, draft) & hosts_of(step, draft):
        return "the only server that can be elected may be away, and nobody would lead"
    servers = draft.consul.servers
    if servers < 3 or (servers - 2) * 2 > servers:
        return ""
    if step.kind in _LEADERS and _other(away, step, draft) and (text := _leaderless(step, draft.consul)):
        return text
    if step.kind == _REPLACE or (step.kind == _CONFIG and _restarts(step) and _servers(hosts_of(step, draft))):
        return f"with one of {servers} servers away and one that ends or restarts, no majority would be left"
    return ""


def _leaderless(step: Step, consul: Consul) -> str:
    """Why nobody might lead while this is done with one server less."""
    if step.kind == _AVOID:
        return f"with one of {consul.servers} servers away and one that cannot be elected, nobody may be left to lead"
    if _is_before(TRANSFER_SINCE, consul):
        said = ".".join(map(str, TRANSFER_SINCE))
        deposed = f"before Consul {said} a leader is deposed by cutting it off"
        return f"{deposed}, and with one of {consul.servers} servers away the others would be no majority"
    return ""


def _other(away: Step, step: Step, draft: Draft) -> bool:
    """Whether the server that is away may be another one than that of the step."""
    return len(_servers(hosts_of(away, draft)) | _servers(hosts_of(step, draft))) > 1


def _restarts(step: Step) -> bool:
    settings: dict[str, Any] = getattr(step.params, "set_", {})
    return getattr(step.params, "by", "") == "restart" or bool(needs_restart(settings))


def hosts_of(step: Step, draft: Draft) -> frozenset[str]:
    """Where it may be; empty where that cannot be said."""
    if step.on is None or draft.consul is None:
        return frozenset()
    try:
        return parse_selector(step.on).candidates(draft.consul.servers, draft.consul.clients)
    except UnknownNameError:  # which has been said
        return frozenset()


def _servers(hosts: frozenset[str]) -> frozenset[str]:
    return frozenset(host for host in hosts if host.startswith("consul-"))


def _all_servers(draft: Draft) -> Iterator[str]:
    return (f"consul-{number}" for number in range(1, (draft.consul.servers if draft.consul else 0) + 1))


def same_time(one: Step, two: Step) -> bool:
    if one.at is None or one.for_ is None or two.at is None or two.for_ is None:
        return False
    return one.at < two.at + _lasts(two) and two.at < one.at + _lasts(one)


def _lasts(step: Step) -> float:
    """In seconds, from when it is begun to be put on."""
    return (step.for_ or 0.0) + (_REPLACING_S if step.kind == _REPLACE else 0.0)
