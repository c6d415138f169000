"""Small marker keys that faults of Consul's state write into the KV store, to recognise the state later."""

import base64
from typing import NamedTuple

from hashidrill.core.errors import FaultError
from hashidrill.core.protocols.abc import ApiAnswer, Host, Hosts
from hashidrill.core.protocols.capabilities import AgentApi
from hashidrill.core.util.wait import wait_until
from hashidrill.products.consul.api import AGENT, ask_another, said, when_led

PREFIX = "hashidrill-markers"
"""Not the prefix `hashidrill`, which the keys of the loads have."""
_ANSWERED_WITHIN_S = 40.0
"""For one write: with 500 changes in flight, a sick leader on two cores took 25 s (incidents/roblox-2021)."""
_REMOVED_WITHIN_S = 42.0


class Marker(NamedTuple):
    """A marker's value, and the index that Consul gave to its write."""

    value: str
    modify_index: int


async def put(host: Host, key: str, value: str) -> None:
    """Raises FaultError when the write is not acknowledged."""
    answer = await when_led(host, "PUT", f"/v1/kv/{PREFIX}/{key}", body=value.encode())
    if answer.status != 200 or answer.body.strip() != b"true":
        raise FaultError(f"{host.name}: the marker {PREFIX}/{key} could not be written: {said(answer)}")


async def look(host: Host, key: str) -> Marker | None:
    """The marker in the leader's state; None if there is none. Raises FaultError when no server answers."""
    answer = await when_led(host, "GET", f"/v1/kv/{PREFIX}/{key}", params={"consistent": ""})
    return _marker(host.name, key, answer)


async def look_elsewhere(hosts: Hosts, host: Host, key: str) -> Marker | None:
    """The marker in another server's own copy. Raises FaultError when no server answers."""
    answer = await ask_another(hosts, host, f"/v1/kv/{PREFIX}/{key}")
    return _marker(f"a server other than {host.name}", key, answer)


def _marker(who: str, key: str, answer: ApiAnswer) -> Marker | None:
    if answer.status == 404:
        return None
    if answer.status != 200:
        raise FaultError(f"{who}: the marker {PREFIX}/{key} could not be read: {said(answer)}")
    [entry] = answer.json()
    return Marker(base64.b64decode(entry["Value"] or "").decode(errors="replace"), entry["ModifyIndex"])


async def remove(host: Host, key: str, *, below: bool = False) -> None:
    """Removes the marker or, with `below`, all markers whose keys begin with `key`.

    Retries until Consul acknowledges it: a datacenter that has just lost its leader accepts writes again soon, a sick
    datacenter only after many seconds. Raises WaitTimeoutError.
    """

    async def removed() -> tuple[bool | None, str]:
        try:
            answer = await host.use(AgentApi).api(
                "DELETE",
                f"/v1/kv/{PREFIX}/{key}",
                params={"recurse": ""} if below else None,
                timeout_s=_ANSWERED_WITHIN_S,
                agent=AGENT,
            )
        except FaultError as error:
            return None, str(error)
        return (True if answer.status == 200 else None), said(answer)

    await wait_until(f"{PREFIX}/{key} to be removed", removed, within_s=_REMOVED_WITHIN_S)


async def takes_a_write(host: Host, fault_id: str) -> str:
    """Returns "" if the datacenter acknowledges a write through this agent and its removal; otherwise why not."""
    key = f"{PREFIX}/write/{fault_id}"
    try:
        for method in ("PUT", "DELETE"):
            answer = await host.use(AgentApi).api(
                method,
                f"/v1/kv/{key}",
                body=b"?" if method == "PUT" else None,
                timeout_s=_ANSWERED_WITHIN_S,
                agent=AGENT,
            )
            if answer.status != 200 or answer.body.strip() != b"true":
                return f"{method} of a key: {said(answer)}"
    except FaultError as error:
        return str(error)
    return ""
