"""Instances of services, and nodes without an agent, that a run left in a Consul of somebody else."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from hashidrill.core.errors import FaultError
from hashidrill.core.protocols.rights import Left
from hashidrill.core.util.wait import pause

if TYPE_CHECKING:
    from hashidrill.core.protocols.abc import ApiAnswer
    from hashidrill.staging.attach.http import Wire

SERVICE = "consul"
NUMBERED, ALL, NODE = "numbered instances", "instances of", "node"
"""The words of `Left.what`: those of a service whose ids are a prefix and a number, all of a service, a node."""
_WITHIN_S, _AGAIN_S = 5.0, 1.0
_NONE = 404


def numbered(service: str, prefix: str) -> Left:
    """The instances of a service that have the ids `PREFIX0`, `PREFIX1`, ...: others of that service are not ours."""
    return Left(SERVICE, NUMBERED, f"{service}/{prefix}")


async def remove(wire: Wire, left: Left) -> int:
    """How many there were; none is there now. Raises FaultError where that cannot be done, or be seen.

    It looks again before it says so: an agent that was not told brings its instances back.
    """
    removed: set[str] = set()
    while found := await _found(wire, left):
        for one in found:
            await _taken_away(wire, left, one)
            removed.add(one["ServiceID"] if left.what != NODE else left.name)
        await pause(_AGAIN_S)
    return len(removed)


async def _found(wire: Wire, left: Left) -> list[dict[str, Any]]:
    if left.what == NODE:
        node = await _asked(wire, "GET", f"/v1/catalog/node/{quote(left.name)}", left)
        return [node] if isinstance(node, dict) and node.get("Node") else []
    service, _, prefix = left.name.partition("/")
    listed = await _asked(wire, "GET", f"/v1/catalog/service/{quote(service)}", left)
    if not isinstance(listed, list):
        raise FaultError(f"{left}: Consul's answer is no list")
    return [one for one in listed if left.what == ALL or _is_numbered(str(one["ServiceID"]), prefix)]


def _is_numbered(instance: str, prefix: str) -> bool:
    return instance.startswith(prefix) and instance[len(prefix) :].isdigit()


async def _taken_away(wire: Wire, left: Left, one: dict[str, Any]) -> None:
    """By the agent that has it; out of the catalog, where no agent has. Raises FaultError."""
    if left.what == NODE:
        await _asked(wire, "PUT", "/v1/catalog/deregister", left, {"Node": left.name})
        return
    node, instance = str(one["Node"]), str(one["ServiceID"])
    url = wire.login.url_of(node, str(one["Address"]))
    try:
        path = f"/v1/agent/service/deregister/{quote(instance)}"
        told = await wire.request("PUT", path, url=url, timeout_s=_WITHIN_S)
    except FaultError:
        told = None  # there is no agent at that address, or it is gone
    if told is None or told.status != 200:
        await _asked(wire, "PUT", "/v1/catalog/deregister", left, {"Node": node, "ServiceID": instance})


async def _asked(wire: Wire, method: str, path: str, left: Left, body: Any = None) -> Any:
    params = {"consistent": ""} if method == "GET" else {}
    content = None if body is None else json.dumps(body).encode()
    answer: ApiAnswer = await wire.request(method, path, params=params, body=content, timeout_s=_WITHIN_S)
    if answer.status == _NONE and method == "GET":
        return []
    if answer.status != 200:
        said = answer.body[:200].decode(errors="replace").strip()
        raise FaultError(f"{left}: {method}: HTTP {answer.status} {said}")
    return answer.json()
