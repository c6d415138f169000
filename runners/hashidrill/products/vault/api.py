"""Calls Vault's HTTP API as an operator. Paths and fields are those of 1.21.0.

hvac is not used because it blocks, and waits here must not block the run. Loads have an HTTP client of their own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import httpx2

from hashidrill.core.protocols.abc import Host
from hashidrill.core.util.safe_json import parse
from hashidrill.core.util.wait import all_at_once

PORT, CLUSTER_PORT = 8200, 8201
_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class Said:
    """Vault's answer; `status` is 0 if no answer came. `text` is for messages."""

    status: int
    data: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300


@dataclass(frozen=True)
class Seal:
    """The seal status of a server; `answered` is False if the server did not answer."""

    answered: bool
    initialized: bool = False
    sealed: bool = True
    text: str = ""

    @property
    def open(self) -> bool:
        return self.answered and self.initialized and not self.sealed

    def __str__(self) -> str:
        if not self.answered:
            return self.text or "no answer"
        return ("sealed" if self.sealed else "unsealed") if self.initialized else "not initialised"


def said_of(request: str, status: int, body: bytes) -> Said:
    text = f"{request}: HTTP {status}"
    try:
        data = parse(body) if body else {}
    except ValueError:
        return Said(status, text=f"{text} with a body that is not JSON")
    data = data if isinstance(data, Mapping) else {}
    errors = data.get("errors")
    said = f": {'; '.join(map(str, errors))}" if isinstance(errors, list) and errors else ""
    return Said(status, data, text + said)


class VaultApi:
    """An HTTP client: an async context manager, or `aclose` it. It never raises: a failure is an answer too."""

    def __init__(self, *, port: int = PORT, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        self._port = port
        # requests go directly to the server: proxies from the environment are not used
        self._client = httpx2.AsyncClient(trust_env=False, timeout=_TIMEOUT_S, transport=transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._client.aclose()

    async def call(
        self,
        address: str,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        token: str = "",
        timeout_s: float = _TIMEOUT_S,
    ) -> Said:
        """Sends one request to `/v1/PATH`."""
        url = f"http://{address}:{self._port}/v1/{path}"
        headers = {"X-Vault-Token": token} if token else {}
        try:
            answer = await self._client.request(method, url, json=body, headers=headers, timeout=timeout_s)
        except httpx2.HTTPError as error:
            return Said(0, text=f"{method} {path}: {error or type(error).__name__}")
        return said_of(f"{method} {path}", answer.status_code, answer.content)

    async def raw(
        self, address: str, method: str, path: str, content: bytes = b"", *, token: str, timeout_s: float
    ) -> tuple[Said, bytes]:
        """Sends one request whose body or answer is a file."""
        url, headers = f"http://{address}:{self._port}/v1/{path}", {"X-Vault-Token": token}
        try:
            answer = await self._client.request(method, url, content=content, headers=headers, timeout=timeout_s)
        except httpx2.HTTPError as error:
            return Said(0, text=f"{method} {path}: {error or type(error).__name__}"), b""
        words = "" if 200 <= answer.status_code < 300 else f": {answer.text[:200].strip()}"
        return Said(answer.status_code, text=f"{method} {path}: HTTP {answer.status_code}{words}"), answer.content

    async def seal(self, address: str, *, timeout_s: float = _TIMEOUT_S) -> Seal:
        """Whether that server is sealed. Every server reports it in every state, without a token."""
        said = await self.call(address, "GET", "sys/seal-status", timeout_s=timeout_s)
        if not said.ok:
            return Seal(answered=False, text=said.text)
        return Seal(True, bool(said.data.get("initialized")), bool(said.data.get("sealed", True)))

    async def active(self, hosts: Sequence[Host]) -> Host | None:
        """The server that reports itself as active.

        A server that was cut off may still report itself too; then the one that most other servers name counts.
        """
        claims: list[Host] = []
        named: list[str] = []

        async def ask(host: Host) -> None:
            said = await self.call(host.address, "GET", "sys/leader")
            if said.ok and said.data.get("is_self"):
                claims.append(host)
            elif said.ok:
                named.append(_host_of(str(said.data.get("leader_address", ""))))

        await all_at_once(partial(ask, host) for host in hosts)
        return max(claims, key=lambda host: named.count(host.address), default=None)


def _host_of(url: str) -> str:
    return url.partition("://")[2].rpartition(":")[0]
