"""The HTTP client of the loads: keep-alive connections, each request sent at most once, outcomes that do not lie.

A write that was perhaps applied must never be recorded as failed, and a write must never be sent twice behind the
recording's back: either would make the durability checks judge something that did not happen.
"""

from __future__ import annotations

import asyncio
import errno
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import aiohttp

from hashidrill.journal import Clock
from hashidrill.loads.schedule import OVERLOADED, LagMeter, Now, Reply

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_OWN_LIMITS = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM})
"""Errors of connecting that come from the generator's machine, not from the datacenter."""


@dataclass(frozen=True)
class LoadContext:
    """Where a load runs: base URLs of the agents that its `via` selected, and the clock of the run.

    `local_address` is the IPv4 address to send from (None: the kernel chooses). `lag` collects how late operations
    start.
    """

    endpoints: Sequence[str]
    clock: Now = field(default_factory=Clock)
    local_address: str | None = None
    run_id: str = "run"
    lag: LagMeter = field(default_factory=LagMeter)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. Without an answer `status` is 0, and `sent` says whether the request may have left."""

    status: int
    body: bytes = b""
    error: str = ""
    sent: bool = True


class _LostError(Exception):
    """The connection broke after the request may have been sent."""


async def _at_most_once(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Keeps aiohttp from sending a request twice.

    When a kept-alive connection breaks, aiohttp repeats idempotent methods, PUT among them, by itself and in silence
    (RFC 9112 section 9.3.1 lets it). It does so on these two exceptions only, so they leave here as another one.
    """
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _LostError(f"connection lost: {error or type(error).__name__}") from error


class Client:
    """An async context manager around one connection pool. Connections are not limited: a limit is a closed loop."""

    def __init__(self, *, local_address: str | None = None) -> None:
        self._local_address = local_address
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        local = None if self._local_address is None else (self._local_address, 0)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, local_addr=local),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept-Encoding", "Content-Type"),
            middlewares=(_at_most_once,),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def request(
        self,
        method: str,
        url: str,
        *,
        body: bytes | None = None,
        params: Mapping[str, str] | None = None,
        timeout_s: float,
    ) -> Answer:
        """Send once and read the whole reply. Raises nothing but cancellation: a sick target is an Answer."""
        if self._session is None:
            raise RuntimeError("the client is used outside its `async with`")
        # aiohttp rounds timeouts over `ceil_threshold` seconds up to whole ones
        limit = aiohttp.ClientTimeout(total=timeout_s, ceil_threshold=float("inf"))
        try:
            async with self._session.request(
                method, url, data=body, params=params, timeout=limit, allow_redirects=False
            ) as reply:
                return Answer(reply.status, await reply.read())
        except aiohttp.ClientConnectorError as error:
            return Answer(0, error=_connect_error(error), sent=False)
        except _LostError as error:
            return Answer(0, error=str(error))
        except asyncio.TimeoutError:  # noqa: UP041 - aiohttp documents this name
            return Answer(0, error=f"no answer within {timeout_s:g}s")
        except (aiohttp.ClientError, OSError) as error:
            return Answer(0, error=f"{type(error).__name__}: {error}")


def _connect_error(error: aiohttp.ClientConnectorError) -> str:
    reason = f"could not connect: {error.os_error.strerror or error.os_error}"
    return f"{OVERLOADED}: {reason}" if error.os_error.errno in _OWN_LIMITS else reason


def write_reply(answer: Answer) -> Reply:
    """The outcome of a KV write.

    `ok` is 200 with the body `true`. `fail` is what certainly was not applied: no connection, a request that Consul
    refused (4xx, rate limits included), or the body `false`. All else is `unknown`: a timeout, a connection lost after
    the request may have left, and every 5xx. "No cluster leader" is one of these: the agent that answers it may have
    forwarded the write to a leader that lost its office while it replicated.
    """
    if not answer.sent:
        return Reply("fail", error=answer.error)
    if answer.status == 0:
        return Reply("unknown", error=answer.error)
    said = answer.body.strip()
    if answer.status == 200:
        if said == b"true":
            return Reply("ok", status=200)
        if said == b"false":
            return Reply("fail", status=200, error="Consul answered false")
        return Reply("unknown", status=200, error=f"neither true nor false: {_shown(said)}")
    # 408 is the one 4xx that speaks of the exchange, not of the request
    refused = 400 <= answer.status < 500 and answer.status != 408
    return Reply("fail" if refused else "unknown", status=answer.status, error=_shown(said))


def _shown(body: bytes) -> str:
    return body[:200].decode(errors="replace") or "(empty body)"


def read_error(answer: Answer) -> str:
    """Why a read failed: there was no answer, or not the status 200."""
    return answer.error if answer.status == 0 else f"HTTP {answer.status}: {_shown(answer.body.strip())}"
