"""Client of one host's toxiproxy-server: its HTTP API on the host's own address.

A proxy is created disabled, gets its toxics, and is then enabled, so no connection passes without them. Every call
has a time limit, because toxiproxy can hang while it removes things (Shopify/toxiproxy#558); the caller decides what
to do then.
"""

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2

from hashidrill.core.protocols.abc import Toxic

AGENT = "toxiproxy"
VERSION = "2.12.0"
API_PORT = 8474
ENVIRONMENT = {"LOG_LEVEL": "warn"}
"""Otherwise toxiproxy would log several lines for each connection."""
_WITHIN_S = 3.0
_NOT_FOUND = 404


def command(binary: Path, host: str, address: str) -> list[str]:
    """The command line. The host's name seeds its random choices (jitter)."""
    return [str(binary), "-host", address, "-port", str(API_PORT), "-seed", str(zlib.crc32(host.encode()))]


async def answers(address: str) -> bool:
    """Whether the API answers."""
    try:
        async with _client(address) as client:
            return (await client.get("/version")).is_success
    except httpx2.HTTPError:
        return False


async def create(address: str, name: str, listen: str, upstream: str, toxics_: Sequence[Toxic]) -> None:
    """Creates or replaces a proxy from `listen` to `upstream`, ADDRESS:PORT each. Raises httpx2.HTTPError."""
    async with _client(address) as client:
        await _delete(client, name)
        body = {"name": name, "listen": listen, "upstream": upstream, "enabled": False}
        (await client.post("/proxies", json=body)).raise_for_status()
        for number, toxic in enumerate(toxics_):
            wanted = {
                "name": f"{number}-{toxic.type}-{toxic.stream}",
                "type": toxic.type,
                "stream": toxic.stream,
                "toxicity": toxic.toxicity,
                "attributes": dict(toxic.attributes),
            }
            (await client.post(f"/proxies/{name}/toxics", json=wanted)).raise_for_status()
        (await client.post(f"/proxies/{name}", json={"enabled": True})).raise_for_status()


async def delete(address: str, name: str) -> None:
    """Deletes the proxy; ignores a missing one. Raises httpx2.HTTPError."""
    async with _client(address) as client:
        await _delete(client, name)


async def toxics(address: str, name: str) -> Sequence[Toxic] | None:
    """The toxics of that proxy; None when it is missing or disabled. Raises httpx2.HTTPError."""
    async with _client(address) as client:
        answer = await client.get(f"/proxies/{name}")
        if answer.status_code == _NOT_FOUND:
            return None
        body: dict[str, Any] = answer.raise_for_status().json()
    if not body["enabled"]:
        return None
    return [Toxic(one["type"], one["attributes"], one["stream"], one["toxicity"]) for one in body["toxics"]]


def said(error: httpx2.HTTPError) -> str:
    """Toxiproxy's answer, or why there was none."""
    if isinstance(error, httpx2.HTTPStatusError):
        return f"{error.response.status_code} {error.response.text.strip()}"
    return str(error) or type(error).__name__


async def _delete(client: httpx2.AsyncClient, name: str) -> None:
    answer = await client.delete(f"/proxies/{name}")
    if answer.status_code != _NOT_FOUND:
        answer.raise_for_status()


def _client(address: str) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=f"http://{address}:{API_PORT}", timeout=_WITHIN_S, trust_env=False)
