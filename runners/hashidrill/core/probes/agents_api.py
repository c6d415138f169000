"""Asks the HTTP APIs of agents on behalf of probes. It knows nothing of loads and shares no connection with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import anyio
import httpx
from pydantic import TypeAdapter, ValidationError

from hashidrill.core.probes.base import SickError

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

T = TypeVar("T")


class AgentsApi:
    """GET requests to agents, by address. One object may serve many probes; `aclose` is idempotent."""

    def __init__(self, *, port: int, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._port = port
        # no proxy of the environment stands between a probe and its agent; the probes' own deadlines are shorter
        self._client = httpx.AsyncClient(trust_env=False, timeout=30.0, transport=transport)

    async def get(
        self, address: str, path: str, shape: TypeAdapter[T], *, accept: Container[int] = frozenset({200})
    ) -> T:
        """The reply in its shape. Raises SickError for anything else."""
        try:
            reply = await self._client.get(f"http://{address}:{self._port}{path}")
        except (httpx.HTTPError, OSError) as error:
            raise SickError(f"GET {path}: {error or type(error).__name__}") from None
        if reply.status_code not in accept:
            raise SickError(f"GET {path}: HTTP {reply.status_code}: {reply.text.strip()[:200]}")
        try:
            return shape.validate_json(reply.content)
        except ValidationError:
            raise SickError(
                f"GET {path}: HTTP {reply.status_code} with an unexpected body: {reply.text[:200]}"
            ) from None

    async def get_from_any(
        self,
        hosts: Mapping[str, str],
        path: str,
        shape: TypeAdapter[T],
        *,
        accept: Container[int] = frozenset({200}),
    ) -> T:
        """The first good reply of all hosts, asked at the same time. Raises SickError with each one's reason."""
        found: list[T] = []
        reasons: dict[str, str] = {}

        async def ask(name: str, address: str) -> None:
            try:
                found.append(await self.get(address, path, shape, accept=accept))
                tasks.cancel_scope.cancel()
            except SickError as error:
                reasons[name] = str(error)

        async with anyio.create_task_group() as tasks:
            for name, address in hosts.items():
                tasks.start_soon(ask, name, address)
        if not found:
            raise SickError("; ".join(f"{name}: {reason}" for name, reason in sorted(reasons.items())) or "no hosts")
        return found[0]

    async def aclose(self) -> None:
        await self._client.aclose()
