"""The agents that users reach, as a load balancer in front of the agents would decide.

Loads use the agents of their `via` in rotation. A sick agent that cannot be healed has to be removed: users' new
connections to it go to other agents of its role, and old ones are reset. Packet rules in the loads' namespace do that,
invisible to agents and to faults on a host.

It uses only the standard library: it runs next to the shell of a trainee.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hashidrill.core.protocols.packets import Chain, Statement
from hashidrill.core.util import syscalls as sc
from hashidrill.lab.sandbox import nf_tables

TABLE = "rotation"
LOADS_COME_FROM = "10.73.0.2"
"""The same as hashidrill.lab.local.datacenter.LOAD_ADDRESS."""
_NEW, _OLD = Chain("new", "nat", "output", -100), Chain("old", "filter", "output", 10)
_USAGE = "rotation | rotation out HOST | rotation in HOST"


class RefusedError(Exception):
    """The request cannot be fulfilled; the text says why."""


def role_of(host: Mapping[str, Any]) -> str:
    """Hosts of one role can replace each other: they have the same agents in the same roles."""
    return ", ".join(f"{agent} {role}" for agent, role in sorted(host["agents"].items()))


def changed(out: Sequence[str], words: Sequence[str], hosts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The removed hosts after the command. Raises RefusedError for an unknown host, or the last host of its role."""
    if len(words) != 2 or words[0] not in {"out", "in"}:
        raise RefusedError(_USAGE)
    verb, host = words
    if host not in hosts:
        raise RefusedError(f"there is no host {host}; there are {', '.join(hosts)}")
    if verb == "in":
        return [one for one in out if one != host]
    then = [*out, *([host] if host not in out else [])]
    if not _stand_in(host, then, hosts):
        raise RefusedError(f"{host} is the last {role_of(hosts[host])} in the rotation: users could reach no agent")
    return then


def _stand_in(host: str, out: Sequence[str], hosts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    role = role_of(hosts[host])
    return [one["address"] for name, one in hosts.items() if name not in out and role_of(one) == role]


def shown(out: Sequence[str], hosts: Mapping[str, Mapping[str, Any]]) -> str:
    """One line for each host."""
    return "\n".join(f"{name:<12} {'out' if name in out else 'in'}" for name in hosts)


def statements(out: Sequence[str], hosts: Mapping[str, Mapping[str, Any]]) -> list[Statement]:
    """The rules that remove these hosts: each remaining host gets the same share of new connections."""
    new, old = list[Statement](), list[Statement]()
    for host in out:
        left = _stand_in(host, out, hosts)
        met = [("tcp",), ("saddr", (LOADS_COME_FROM,)), ("daddr", (hosts[host]["address"],))]
        new += [(_NEW, [*met, ("turn", len(left) - number), ("dnat", to)]) for number, to in enumerate(left)]
        # translated connections have another address by now: this matches only earlier ones
        old.append((_OLD, [*met, ("reset",)]))
    return [*new, *old]


def put(out: Sequence[str], hosts: Mapping[str, Mapping[str, Any]]) -> None:
    """Applies the rules in the loads' namespace, which the sandbox's first process has. Raises OSError."""
    said = statements(out, hosts)
    work = partial(nf_tables.replace, TABLE, (_NEW, _OLD), said) if said else partial(nf_tables.remove, TABLE)
    sc.in_network("/proc/1/ns/net", work)


def answer(
    words: Sequence[str], hosts: Mapping[str, Mapping[str, Any]], state: Path, put: Callable[..., None] = put
) -> dict[str, Any]:
    """The output of `rotation`, for every shell of one game: `state` stores the removed hosts."""
    with state.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        out: list[str] = json.loads(file.read() or "[]")
        if words:
            try:
                then = changed(out, words, hosts)
            except RefusedError as refused:
                return {"error": str(refused), "code": 2}
            try:
                put(then, hosts)
            except OSError as refused:
                return {"error": f"the rotation could not be changed: {refused.strerror or refused}", "code": 1}
            file.truncate(0)
            file.write(json.dumps(then))
            out = then
    return {"text": shown(out, hosts), "code": 0}
