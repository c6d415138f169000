"""The toxiproxy of an estate: which of its proxies lead to which host, and adding toxics to them.

hashidrill adds and removes only toxics whose names begin with `hashidrill-RUN-`; it leaves the estate's own proxies
and toxics alone. Observers send a request that the agent behind the proxy answers at once, over the very link that
the estate's clients use.
"""

from __future__ import annotations

import contextlib
import errno
import json
import re
import socket
import ssl
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import anyio

from hashidrill.core.errors import FaultError
from hashidrill.core.protocols.capabilities import Exchange, ExchangeRequest, Toxic

if TYPE_CHECKING:
    from hashidrill.core.protocols.abc import ApiAnswer
    from hashidrill.core.protocols.rights import Left
    from hashidrill.staging.attach.http import Wire

TOXIPROXY = "toxiproxy"
OURS = "hashidrill-"
TOXICS = "toxics beginning with"
"""The value of `Left.what` for toxics."""
_WITHIN_S = 5.0
_ANYWHERE = {"", "0.0.0.0", "::"}  # noqa: S104 - what a proxy may listen on
_CLOSED = errno.ENODATA
_MOST_AT_ONCE = 6
_OF_A_RUN = re.compile(re.escape(OURS) + r"\d{8}-\d{6}-.+-[0-9a-f]{4}-.+-\d+")
"""Matches HostLinks.toxic_names for the ids of a run (hashidrill.lab.runs.launch.new_folder) and of a fault."""


@dataclass(frozen=True)
class Link:
    """One proxy: where it listens for its clients, and where it leads."""

    host: str
    port: int
    to_host: str
    to_port: int
    enabled: bool = True

    def leads_to(self, name: str, address: str) -> bool:
        """Whether the proxy leads to the host with this name or address; its configuration may add a domain."""
        to = self.to_host.lower()
        return to in {address.lower(), name.lower()} or to.startswith(f"{name.lower()}.")


async def links_of(wire: Wire) -> dict[str, Link]:
    """All proxies of the toxiproxy, by name. Raises FaultError if it is not a toxiproxy."""
    proxies = await _proxies(wire)
    api = urlsplit(wire.login.address).hostname or ""
    return {name: link_of(one, api) for name, one in sorted(proxies.items())}


async def _proxies(wire: Wire) -> dict[str, Mapping[str, Any]]:
    said = await _ask(wire, "GET", "/proxies")
    proxies = said.json()
    if said.status != 200 or not isinstance(proxies, dict) or not all(isinstance(o, dict) for o in proxies.values()):
        raise FaultError(f"{wire.login.address}: GET /proxies: HTTP {said.status}; is this the API of toxiproxy?")
    return {str(name): one for name, one in proxies.items()}


def link_of(one: Mapping[str, Any], api: str) -> Link:
    """A proxy from its API's data; `api` is the host of that API, for a proxy that listens on all addresses."""
    host, port = _split(str(one.get("listen", "")))
    to_host, to_port = _split(str(one.get("upstream", "")))
    return Link(api if host in _ANYWHERE else host, port, to_host, to_port, bool(one.get("enabled", False)))


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port) if port.isdigit() else 0


async def remove_toxics_of(wire: Wire, left: Left) -> int:
    """Removes all toxics whose names begin with `left.name`; returns how many there were. Raises FaultError."""
    found = [(proxy, name) for proxy, name in await _toxics(wire) if name.startswith(left.name)]
    for proxy, name in found:
        await _remove(wire, proxy, name)
    return len(found)


async def toxics_of_runs(wire: Wire, proxies: Collection[str]) -> list[tuple[str, str]]:
    """(proxy, toxic) of all hashidrill runs on these proxies. Raises FaultError."""
    return [(proxy, name) for proxy, name in await _toxics(wire) if proxy in proxies and _OF_A_RUN.fullmatch(name)]


async def remove_toxics_of_runs(wire: Wire, proxies: Collection[str]) -> list[tuple[str, str]]:
    """Removes what `toxics_of_runs` returns, and returns it. Raises FaultError."""
    found = await toxics_of_runs(wire, proxies)
    for proxy, name in found:
        await _remove(wire, proxy, name)
    return found


async def _toxics(wire: Wire) -> list[tuple[str, str]]:
    """(proxy, toxic) for each toxic there is. Raises FaultError."""
    return [
        (proxy, str(toxic["name"]))
        for proxy, one in (await _proxies(wire)).items()
        for toxic in one.get("toxics") or ()
    ]


class HostLinks:
    """The proxies that lead to one host (hashidrill.core.protocols.capabilities.EstateLinks)."""

    def __init__(
        self, host: str, links: Mapping[str, Link], wire: Wire | None, run: str, hello: Callable[[int], bytes]
    ) -> None:
        """`hello` is a request that the agent behind a port answers at once. Without a `wire` it only lists proxies."""
        self._host, self._links, self._maybe, self._run, self._hello = host, links, wire, run, hello

    @property
    def _wire(self) -> Wire:
        if self._maybe is None:
            raise FaultError(f"{self._host}: no client is connected to the toxiproxy")
        return self._maybe

    def _link(self, proxy: str) -> Link:
        if proxy not in self._links:
            raise FaultError(f"{self._host}: there is no proxy {proxy} any more")
        return self._links[proxy]

    def proxies_to(self, port: int) -> Sequence[str]:
        return [name for name, link in self._links.items() if link.to_port == port]

    def toxic_names(self, fault_id: str, count: int) -> Sequence[str]:
        return [f"{OURS}{self._run}-{fault_id}-{number}" for number in range(count)]

    def provable(self, port: int) -> bool:
        return bool(self._hello(port))

    async def add_toxics(self, proxy: str, names: Sequence[str], toxics: Sequence[Toxic]) -> None:
        if not self._link(proxy).enabled:
            raise FaultError(f"the proxy {proxy} is disabled: the person who disabled it must enable it first")
        for name, toxic in zip(names, toxics, strict=True):
            wanted = {
                "name": name,
                "type": toxic.type,
                "stream": toxic.stream,
                "toxicity": toxic.toxicity,
                "attributes": dict(toxic.attributes),
            }
            said = await _ask(self._wire, "POST", f"/proxies/{quote(proxy, safe='')}/toxics", wanted)
            if said.status not in {200, 201, 409}:  # 409: it exists already, from an earlier try
                raise FaultError(f"the proxy {proxy}: the toxic {toxic.type} was refused: {_said(said)}")

    async def remove_toxics(self, proxy: str, names: Sequence[str]) -> None:
        for name in names:
            await _remove(self._wire, proxy, name)

    async def held_toxics(self, proxy: str, names: Sequence[str]) -> Sequence[Toxic]:
        said = await _ask(self._wire, "GET", f"/proxies/{quote(proxy, safe='')}")
        if said.status == 404:
            return []
        found = said.json()
        if said.status != 200 or not isinstance(found, dict):
            raise FaultError(f"the proxy {proxy}: {_said(said)}")
        return [
            Toxic(one["type"], one["attributes"], one["stream"], one["toxicity"])
            for one in found.get("toxics") or ()
            if one["name"] in names
        ]

    async def exchange_through(self, proxy: str, request: ExchangeRequest) -> Sequence[Exchange]:
        link = self._link(proxy)
        hello, limit = self._hello(link.to_port), anyio.CapacityLimiter(min(request.at_once, _MOST_AT_ONCE))
        exchanges: list[Exchange] = []

        async def one() -> None:
            exchanges.append(
                await anyio.to_thread.run_sync(partial(_exchange, link, hello, request.timeout_s), limiter=limit)
            )

        async with anyio.create_task_group() as group:
            for _ in range(request.connections):
                group.start_soon(one)
        return exchanges


def _exchange(link: Link, hello: bytes, timeout_s: float) -> Exchange:
    """Opens one connection, sends the hello, and waits for a byte. Seconds count from the first byte sent."""
    began, number, received = time.monotonic(), 0, 0
    try:
        with socket.create_connection((link.host, link.port), timeout=timeout_s) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            began = time.monotonic()
            connection.sendall(hello)
            received = len(connection.recv(1))
            number = 0 if received else _CLOSED
    except TimeoutError:
        number = errno.ETIMEDOUT
    except OSError as error:
        number = error.errno or errno.EIO
    return Exchange(time.monotonic() - began, number, received)


def hello_of_http(url: str, path: str) -> bytes:
    """A request that an agent at that URL answers at once: over TLS, the first message of a handshake."""
    parts = urlsplit(url)
    if parts.scheme != "https":
        return f"GET {path} HTTP/1.0\r\nHost: {parts.netloc}\r\n\r\n".encode()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # only the arrival of an answer counts
    came, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    handshake = context.wrap_bio(came, sent, server_hostname=parts.hostname)
    with contextlib.suppress(ssl.SSLWantReadError):
        handshake.do_handshake()
    return sent.read()


async def _remove(wire: Wire, proxy: str, name: str) -> None:
    said = await _ask(wire, "DELETE", f"/proxies/{quote(proxy, safe='')}/toxics/{quote(name, safe='')}")
    if said.status not in {200, 204, 404}:
        raise FaultError(f"the proxy {proxy}: the toxic {name} was not removed: {_said(said)}")


async def _ask(wire: Wire, method: str, path: str, body: Mapping[str, Any] | None = None) -> ApiAnswer:
    sent = None if body is None else json.dumps(body).encode()
    return await wire.request(method, path, body=sent, timeout_s=_WITHIN_S)


def _said(answer: ApiAnswer) -> str:
    return f"HTTP {answer.status} {answer.body[:200].decode(errors='replace').strip()}"
