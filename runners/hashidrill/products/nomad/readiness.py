"""Asks over HTTP, from the control address, whether Nomad is ready and which server leads it."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import httpx2

from hashidrill.core.protocols.abc import Host
from hashidrill.core.util.safe_json import parse
from hashidrill.core.util.wait import all_at_once
from hashidrill.products.nomad.settings import HTTP_PORT

_HTTP_TIMEOUT_S = 2.0


async def leader(servers: Sequence[Host], transport: httpx2.AsyncBaseTransport | None = None) -> str | None:
    """Name of the host that a majority of the servers names as the leader."""
    seen: list[str] = []

    async def ask(client: httpx2.AsyncClient, host: Host) -> None:
        try:
            # stale: each server reports what it knows, without asking the leader
            answer = await client.get(f"http://{host.address}:{HTTP_PORT}/v1/status/leader", params={"stale": ""})
            seen.append(str(parse(answer.content)).partition(":")[0])
        except (httpx2.HTTPError, ValueError):
            return

    async with httpx2.AsyncClient(timeout=_HTTP_TIMEOUT_S, trust_env=False, transport=transport) as client:
        await all_at_once(partial(ask, client, host) for host in servers)
    return next((host.name for host in servers if seen.count(host.address) > len(servers) // 2), None)


async def look(
    servers: Sequence[Host], clients: Sequence[Host], transport: httpx2.AsyncBaseTransport | None = None
) -> tuple[bool | None, str, int | None]:
    """(True or None, evidence, progress) for hashidrill.core.util.wait."""
    if await leader(servers, transport) is None:
        return None, "no leader is known to a majority of the servers", None
    base = f"http://{servers[0].address}:{HTTP_PORT}"
    async with httpx2.AsyncClient(
        timeout=_HTTP_TIMEOUT_S, trust_env=False, base_url=base, transport=transport
    ) as client:
        try:
            voters = [one for one in (await _get(client, "operator/raft/configuration"))["Servers"] if one["Voter"]]
            if len(voters) != len(servers):
                return None, f"{len(voters)} of {len(servers)} servers are voters", len(voters)
            if not any(key["State"] == "active" for key in await _get(client, "operator/keyring/keys")):
                return None, "there is no key yet to sign the identities of tasks", len(voters)
            nodes = {node["Name"]: _lacks(node) for node in await _get(client, "nodes")}
        except (httpx2.HTTPError, ValueError, KeyError, TypeError) as error:
            return None, f"{type(error).__name__}: {error}", None
    lacking = {host.name: nodes.get(host.name, "not registered") for host in clients}
    lacking = {name: lack for name, lack in lacking.items() if lack}
    words = ", ".join(f"{name} ({lack})" for name, lack in lacking.items())
    return (
        (None if lacking else True),
        f"clients that are not ready: {words}",
        len(servers) + len(clients) - len(lacking),
    )


async def _get(client: httpx2.AsyncClient, path: str) -> Any:
    answer = await client.get(f"/v1/{path}")
    if answer.status_code != httpx2.codes.OK:
        raise ValueError(f"GET /v1/{path}: HTTP {answer.status_code} {answer.text[:200]}")
    return parse(answer.content)


def _lacks(node: Any) -> str:
    if node["Status"] != "ready" or node["SchedulingEligibility"] != "eligible":
        return f"{node['Status']}, {node['SchedulingEligibility']}"
    driver = (node["Drivers"] or {}).get("raw_exec") or {}
    return "" if driver.get("Healthy") else f"raw_exec: {driver.get('HealthDescription') or 'not found yet'}"
