"""Removes keys, service instances and nodes without an agent that a run left in an attached Consul."""

from __future__ import annotations

import json
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from hashidrill.core.errors import FaultError
from hashidrill.core.protocols.rights import Left
from hashidrill.staging.attach import removal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hashidrill.staging.attach.http import Wire

SERVICE = "consul"
BELOW, KEY = "keys below", "key"
NUMBERED, ALL, NODE = "numbered instances", "instances of", "node"
"""Values of `Left.what`: a service's instances whose ids are a prefix and a number, all its instances, a node."""
_CONSISTENT = {"consistent": ""}
_ask = partial(removal.ask, may_lack=("GET",))


def numbered(service: str, prefix: str) -> Left:
    """A service's instances with the ids `PREFIX0`, `PREFIX1`, ...; its other instances are not removed."""
    return Left(SERVICE, NUMBERED, f"{service}/{prefix}")


async def remove(wire: Wire, left: Left) -> int:
    """Removes what `left` names, returns how many there were. Raises FaultError if that fails or cannot be checked."""
    return await (_remove_keys if left.what in {BELOW, KEY} else _remove_instances)(wire, left)


def _listed(answer: Any, left: Left) -> list[Any]:
    if answer is None:
        return []
    if not isinstance(answer, list):
        raise FaultError(f"{left}: Consul's answer is not a list")
    return answer


async def _remove_keys(wire: Wire, left: Left) -> int:
    path = f"/v1/kv/{quote(left.name)}"

    async def find() -> list[str]:
        keys = _listed(await _ask(wire, "GET", path, left, params={"keys": "", **_CONSISTENT}), left)
        return keys if left.what == BELOW else [key for key in keys if key == left.name]

    async def take_away(found: Sequence[str]) -> None:  # noqa: ARG001 - one request deletes them all
        await _ask(wire, "DELETE", path, left, params={"recurse": ""} if left.what == BELOW else {})

    return await removal.remove_all(find, take_away)


async def _remove_instances(wire: Wire, left: Left) -> int:
    at: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)

    async def find() -> list[str]:
        at.clear()
        if left.what == NODE:
            node = await _ask(wire, "GET", f"/v1/catalog/node/{quote(left.name)}", left, params=_CONSISTENT)
            return [left.name] if isinstance(node, dict) and node.get("Node") else []
        service, _, prefix = left.name.partition("/")
        listed = await _ask(wire, "GET", f"/v1/catalog/service/{quote(service)}", left, params=_CONSISTENT)
        for one in _listed(listed, left):
            instance = str(one["ServiceID"])
            if left.what == ALL or (instance.startswith(prefix) and instance[len(prefix) :].isdigit()):
                at[instance].append(one)
        return [*at]

    async def take_away(found: Sequence[str]) -> None:
        for name in found:
            if left.what == NODE:
                await _deregister(wire, left, {"Node": name})
            for where in at[name]:
                if not await _told(wire, name, where):
                    await _deregister(wire, left, {"Node": str(where["Node"]), "ServiceID": name})

    return await removal.remove_all(find, take_away)


async def _told(wire: Wire, instance: str, where: dict[str, Any]) -> bool:
    """Deregisters at the instance's agent; False if no agent runs at the address."""
    url = wire.login.url_of(str(where["Node"]), str(where["Address"]))
    path = f"/v1/agent/service/deregister/{quote(instance)}"
    try:
        return (await wire.request("PUT", path, url=url, timeout_s=removal.WITHIN_S)).status == 200
    except FaultError:
        return False


async def _deregister(wire: Wire, left: Left, what: dict[str, str]) -> None:
    """Deregisters in the catalog, for entries without an agent. Raises FaultError."""
    await _ask(wire, "PUT", "/v1/catalog/deregister", left, body=json.dumps(what).encode())
