"""The rights of tokens in Consul, as policies, and the rights that a token lacks."""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from hashidrill.core.errors import FaultError, InterlockError
from hashidrill.core.protocols.rights import Right, of_service
from hashidrill.core.protocols.service import Calls

NAME = "consul"
right = partial(Right, NAME)
READS = (right("agent_prefix"), right("node_prefix"), right("operator"))
"""What probes, selectors and faults read: agents' reports on themselves, members, Raft's configuration."""
WATCHED = (right("service_prefix"),)
"""The names and tags of services, in which interlocks search for signs of production."""
SESSIONS = right("session_prefix", "", "write")
STATE = right("acl", "", "write")
"""A snapshot holds all of the state, tokens included: Consul requires `acl = "write"` for it."""
_ORDER = ("deny", "read", "list", "write")
_AT_ONCE = 64
"""The most questions that Consul accepts in one request."""
_SAMPLE = "~check"
"""Stands for any name below a prefix: no rule with a narrower prefix matches it."""


def keys(prefix: str, access: str = "write") -> Right:
    """The keys below a prefix."""
    return right("key_prefix", prefix, access)


def registering(service: str, node: str) -> tuple[Right, ...]:
    """The rights to register and read instances of services whose names begin with `service`. `node` is the node
    without an agent that holds them; "" if agents hold them.
    """
    instances = right("service_prefix", service, "write")
    return (instances, right("node_prefix"), *([right("node", node, "write")] if node else []))


def policy(rights: Iterable[Right], why: Mapping[Right, str]) -> str:
    """HCL for `consul acl policy create -rules @FILE`. Of two rules for one resource, the stronger one is kept."""
    strongest: dict[tuple[str, str], Right] = {}
    for each in of_service(NAME, rights):
        place = (each.resource, each.name)
        if place not in strongest or _ORDER.index(each.access) > _ORDER.index(strongest[place].access):
            strongest[place] = each
    return "".join(f"# {why[each]}\n{_rule(each)}\n" for each in strongest.values())


def _rule(each: Right) -> str:
    if each.resource in {"operator", "acl", "keyring", "mesh"}:
        return f'{each.resource} = "{each.access}"'
    return f"{each.resource} {json.dumps(each.name)} {{\n  policy = {json.dumps(each.access)}\n}}"


async def lacking(calls: Calls, rights: Iterable[Right]) -> list[Right]:
    """The rights that the token lacks, according to Consul. Only reads. Raises InterlockError if no answer comes."""
    missing: list[Right] = []
    wanted = of_service(NAME, rights)
    for start in range(0, len(wanted), _AT_ONCE):
        some = wanted[start : start + _AT_ONCE]
        allowed = await _allowed(calls, some)
        missing += [each for each, yes in zip(some, allowed, strict=True) if not yes]
    return missing


async def _allowed(calls: Calls, rights: Sequence[Right]) -> list[bool]:
    body = json.dumps([_question(each) for each in rights]).encode()
    try:
        answer = await calls.request("POST", "/v1/internal/acl/authorize", body=body)
        if answer.status == 401 and b"ACL support disabled" in answer.body:
            return [True] * len(rights)
        said = answer.json() if answer.status == 200 else []
    except FaultError as error:
        raise InterlockError(f"Consul did not say what its token may do: {error}") from None
    if not isinstance(said, list) or len(said) != len(rights):
        text = answer.body[:200].decode(errors="replace").strip()
        raise InterlockError(f"Consul did not say what its token may do: HTTP {answer.status} {text}")
    return [bool(isinstance(one, dict) and one.get("Allow")) for one in said]


def _question(each: Right) -> dict[str, str]:
    resource, prefix = each.resource.removesuffix("_prefix"), each.resource.endswith("_prefix")
    segment = each.name + _SAMPLE if prefix else each.name
    below = resource == "key" and prefix and each.access == "write"  # a tree of keys is deleted as one
    return {
        "Resource": resource,
        "Segment": each.name if below else segment,
        "Access": "write-prefix" if below else each.access,
    }
