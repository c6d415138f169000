"""What our own loads may do in Vault, and where their secrets are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashidrill.products.vault.api import Said
    from hashidrill.products.vault.keys import Keys

MOUNT = "hashidrill"
"""Where our loads' secrets are: a KV engine, version 2."""
POLICY = "hashidrill-loads"
PROBE_SECRET = f"{MOUNT}/data/ready"
"""A secret that is always there."""
_RULES = f"""
path "{MOUNT}/*" {{ capabilities = ["create", "read", "update", "delete", "list"] }}
path "auth/token/create" {{ capabilities = ["create", "update"] }}
path "auth/token/lookup-accessor" {{ capabilities = ["create", "update"] }}
path "auth/token/revoke-accessor" {{ capabilities = ["create", "update"] }}
path "auth/token/accessors" {{ capabilities = ["list", "sudo"] }}
path "auth/token/accessors/" {{ capabilities = ["list", "sudo"] }}
"""


async def allow_loads(call: Callable[..., Awaitable[Said]], keys: Keys) -> Said:
    """The policy and the token of our loads, where they are not there yet."""
    said = await call("PUT", f"sys/policies/acl/{POLICY}", {"policy": _RULES}, token=keys.root)
    if not said.ok:
        return said
    found = await call("POST", "auth/token/lookup", {"token": keys.load}, token=keys.root)
    if found.ok:
        return found
    wanted = {"id": keys.load, "policies": [POLICY], "display_name": "hashidrill"}
    return await call("POST", "auth/token/create-orphan", wanted, token=keys.root)
