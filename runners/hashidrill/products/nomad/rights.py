"""The rights of tokens in Nomad, as policies, and the rights that a token lacks."""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from hashidrill.core.errors import FaultError, InterlockError
from hashidrill.core.protocols.rights import Right, of_service
from hashidrill.core.protocols.service import Calls

NAME = "nomad"
NAMESPACE = "default"
right = partial(Right, NAME)
work = partial(Right, NAME, "namespace", NAMESPACE)
"""A capability in the namespace that experiments use."""
READS = (right("agent"), right("node"), right("operator"), work("list-jobs"), work("read-job"))
"""What probes, selectors and faults read: agents' reports on themselves, nodes, Raft's configuration, jobs."""
JOBS = (work("submit-job"), work("dispatch-job"), work("alloc-lifecycle"))
STATE = right("management")
"""A snapshot holds all of the state: restoring it, and moving the leader, requires a management token."""
_WITHOUT_ACLS = "acls-disabled"
"""The accessor of the token that Nomad 1.10.5 returns if it has no ACLs; older versions refuse to answer."""
_COARSE: dict[str, tuple[str, ...]] = {"read": ("read", "list", "write"), "write": ("write",)}
"""The actions that each policy of `node`, `agent` and `operator` allows."""


def policy(rights: Iterable[Right], why: Mapping[Right, str]) -> str:
    """HCL for `nomad acl policy apply NAME FILE`; only a comment for a right that needs a management token."""
    wanted = of_service(NAME, rights)
    lines = [f"# {why[each]}\n# needs a management token: no policy allows it\n" for each in wanted if each == STATE]
    namespaces: dict[str, list[Right]] = {}
    for each in wanted:
        if each.resource == "namespace":
            namespaces.setdefault(each.name, []).append(each)
    for name, some in namespaces.items():
        rules = "".join(f"    {json.dumps(each.access)}, # {why[each]}\n" for each in some)
        lines.append(f"namespace {json.dumps(name)} {{\n  capabilities = [\n{rules}  ]\n}}\n")
    for resource in ("agent", "node", "operator"):
        some = [each for each in wanted if each.resource == resource]
        if some:
            most = max(some, key=lambda each: each.access)  # `write` ranks above `read`, and also sorts after it
            lines.append(f"# {why[most]}\n{resource} {{\n  policy = {json.dumps(most.access)}\n}}\n")
    return "".join(lines)


async def lacking(calls: Calls, rights: Iterable[Right]) -> list[Right]:
    """The rights that the token lacks, by its policies. Raises InterlockError if Nomad does not show them."""
    wanted = of_service(NAME, rights)
    token = await _asked(calls, "/v1/acl/token/self")
    if token is None or token.get("Type") == "management" or token.get("AccessorID") == _WITHOUT_ACLS:
        return []
    names = list(token.get("Policies") or [])
    for role in token.get("Roles") or []:
        found = await _asked(calls, f"/v1/acl/role/{role['ID']}") or {}
        names += [one["Name"] for one in found.get("Policies") or []]
    rules = [
        (await _asked(calls, f"/v1/acl/policy/{name}") or {}).get("RulesJSON") or {} for name in dict.fromkeys(names)
    ]
    return [each for each in wanted if not _allows(rules, each)]


async def _asked(calls: Calls, path: str) -> dict[str, Any] | None:
    try:
        answer = await calls.request("GET", path)
        if answer.status == 400 and b"ACL support disabled" in answer.body:
            return None
        said = answer.json() if answer.status == 200 else None
    except FaultError as error:
        raise InterlockError(f"Nomad did not say what its token may do: {error}") from None
    if not isinstance(said, dict):
        text = answer.body[:200].decode(errors="replace").strip()
        raise InterlockError(f"Nomad did not say what its token may do: GET {path}: HTTP {answer.status} {text}")
    return said


def _allows(rules: Sequence[Mapping[str, Any]], each: Right) -> bool:
    if each == STATE:
        return False
    if each.resource == "namespace":
        named = [one for some in rules for one in some.get("Namespaces") or () if _covers(str(one["Name"]), each.name)]
        meant = [one for one in named if one["Name"] == each.name] or named  # a name has precedence over a pattern
        can = {capability for one in meant for capability in one.get("Capabilities") or ()}
        return each.access in can and "deny" not in can
    policies = [(some.get(each.resource.title()) or {}).get("Policy") for some in rules]
    return "deny" not in policies and any(policy in _COARSE[each.access] for policy in policies)


def _covers(pattern: str, name: str) -> bool:
    begin, star, end = pattern.partition("*")
    return pattern == name or bool(star and name.startswith(begin) and name.endswith(end))
