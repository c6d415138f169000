"""The rights of tokens in Vault, the rights that a token lacks, and the place of the loads' secrets."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from hashidrill.core.errors import FaultError, InterlockError
from hashidrill.core.protocols.rights import Right, of_service

if TYPE_CHECKING:
    from hashidrill.core.protocols.service import Calls
    from hashidrill.products.vault.api import Said

MOUNT = "hashidrill"
"""The mount of the loads' secrets: a KV engine, version 2."""
POLICY = "hashidrill-loads"
PROBE_SECRET = f"{MOUNT}/data/ready"
"""A secret that always exists."""
_RULES = f"""
path "{MOUNT}/*" {{ capabilities = ["create", "read", "update", "delete", "list"] }}
path "auth/token/create" {{ capabilities = ["create", "update"] }}
path "auth/token/lookup-accessor" {{ capabilities = ["create", "update"] }}
path "auth/token/revoke-accessor" {{ capabilities = ["create", "update"] }}
path "auth/token/accessors" {{ capabilities = ["list", "sudo"] }}
path "auth/token/accessors/" {{ capabilities = ["list", "sudo"] }}
"""


async def allow_loads(call: Callable[..., Awaitable[Said]], root: str, load: str) -> Said:
    """With the token `root`, creates the loads' policy and, if it is missing, their token `load`."""
    said = await call("PUT", f"sys/policies/acl/{POLICY}", {"policy": _RULES}, token=root)
    if not said.ok:
        return said
    found = await call("POST", "auth/token/lookup", {"token": load}, token=root)
    if found.ok:
        return found
    wanted = {"id": load, "policies": [POLICY], "display_name": "hashidrill"}
    return await call("POST", "auth/token/create-orphan", wanted, token=root)


NAME = "vault"
_path = partial(Right, NAME, "path")
_SAMPLE = "~check"
"""Stands for any name below a path that ends with a star: no narrower rule matches it."""


def path(where: str, *capabilities: str) -> tuple[Right, ...]:
    """Each capability is a separate right, so that a message can name the missing one."""
    return tuple(_path(where, capability) for capability in capabilities)


SECRETS = (
    *path(f"{MOUNT}/data/*", "create", "read", "update", "delete"),
    *path(f"{MOUNT}/metadata/*", "read", "list", "delete"),
)
MARKERS = (*path("sys/policies/acl/hashidrill-*", "create", "update", "delete"), *path("sys/policies/acl", "list"))
_OF_TOKENS = ("create", "lookup-accessor", "revoke-accessor")
TOKENS = (
    *(right for each in _OF_TOKENS for right in path(f"auth/token/{each}", "create", "update")),
    *path("auth/token/accessors", "list", "sudo"),
    *path("auth/token/accessors/", "list", "sudo"),
)
_LOOKED = ("sys/metrics", "sys/ha-status", "sys/storage/raft/configuration")
READS = tuple(right for each in _LOOKED for right in path(each, "read"))


def policy(rights: Iterable[Right], why: Mapping[Right, str]) -> str:
    """HCL for `vault policy write NAME FILE`."""
    places: dict[str, list[Right]] = {}
    for each in of_service(NAME, rights):
        places.setdefault(each.name, []).append(each)
    return "".join(
        f"# {why[some[0]]}\npath {json.dumps(where)} {{\n  capabilities = "
        f"{json.dumps([each.access for each in some])}\n}}\n"
        for where, some in places.items()
    )


async def lacking(calls: Calls, rights: Iterable[Right]) -> list[Right]:
    """The rights that the token lacks, according to Vault. Only reads. Raises InterlockError if no answer comes."""
    wanted = of_service(NAME, rights)
    asked = {each: each.name.replace("*", _SAMPLE) for each in wanted}
    if not asked:
        return []
    body = json.dumps({"paths": sorted(set(asked.values()))}).encode()
    try:
        answer = await calls.request("POST", "/v1/sys/capabilities-self", body=body)
        said = answer.json() if answer.status == 200 else None
    except FaultError as error:
        raise InterlockError(f"Vault did not say what its token may do: {error}") from None
    if not isinstance(said, dict):
        text = answer.body[:200].decode(errors="replace").strip()
        raise InterlockError(f"Vault did not say what its token may do: HTTP {answer.status} {text}")
    data = said.get("data")
    found: dict[str, Any] = data if isinstance(data, dict) else said
    return [each for each, where in asked.items() if not {"root", each.access} & set(found.get(where) or ())]
