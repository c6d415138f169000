"""A thin HTTP/1.1 client: keep-alive, one request at a time on a connection, sent at most once, little CPU for each.

The generator shares its cores with the datacenter that it measures, so a request must cost it little; and thousands of
open queries must fit into one process. A request sent twice behind the recording's back would make the durability
checks judge something that did not happen. There are no redirects, no cookies and no proxies here: these are the
agents of a staging datacenter.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import socket
import ssl
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import urlencode

import anyio

from hashidrill.core.loads.answer import Answer, LostError, read_error
from hashidrill.core.loads.schedule import OVERLOADED
from hashidrill.core.protocols.abc import Reason
from hashidrill.core.util.tls import Tls
from hashidrill.core.util.wait import all_at_once, wait_until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Sequence

    from hashidrill.core.loads.connection import Connection


@dataclass(frozen=True)
class Entrance:
    """The credentials of one agent, by the start of its URL. `tls` is None for plain HTTP; `head` and `query` go into
    each request.
    """

    tls: ssl.SSLContext | None = None
    server_name: str | None = None
    """The name that its certificate must have; None: that of its address."""
    head: str = field(default="", repr=False)
    query: str = ""


def opened(given: Mapping[str, Mapping[str, Any]]) -> dict[str, Entrance]:
    """Entrances by URL, from plain data: `tls` (fields of Tls), `headers` and `params` of each request.

    Raises TlsFileError.
    """
    contexts: dict[Tls, ssl.SSLContext] = {}
    found = {}
    for url, one in given.items():
        tls, context = Tls(**one["tls"]), None
        if url.startswith("https://"):
            if tls not in contexts:
                contexts[tls] = tls.context()
            context = contexts[tls]
        head = "".join(f"{name}: {value}\r\n" for name, value in one["headers"].items())
        found[url] = Entrance(context, tls.server_name or None, head, urlencode(one["params"]))
    return found


P = TypeVar("P", bound="asyncio.Protocol")

_OWN_LIMITS = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM})
"""Errors of connecting that come from the generator's machine, not from the datacenter."""
_IP_BIND_ADDRESS_NO_PORT = 24
"""From linux/in.h (Linux 4.2); Python names it from 3.12 on."""
_OPEN = Entrance()
"""The way to an agent over plain HTTP, without credentials."""


class HttpClient:
    """An async context manager around one connection pool. Connections are not limited: a limit is a closed loop.

    `headers` go with each request. `entrances` say what some agents want beside an address, by `https://HOST:PORT`.
    """

    def __init__(
        self,
        *,
        local_address: str | None = None,
        headers: Mapping[str, str] | None = None,
        entrances: Mapping[str, Entrance] | None = None,
    ) -> None:
        self._entrances = entrances or {}
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        self._local = None if local_address is None else (local_address, 0)
        self._idle: defaultdict[str, list[Connection]] = defaultdict(list)
        self._open: set[Connection] | None = None

    async def __aenter__(self) -> Self:
        self._open = set()
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in self._open or ():
            connection.close()
        self._open = None
        self._idle.clear()
        await asyncio.sleep(0)  # the transports close in the loop's next turn

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
        if self._open is None:
            raise RuntimeError("the HTTP client is used outside its `async with`")
        scheme, _, rest = url.partition("://")
        place, _, path = rest.partition("/")
        entrance = self._entrances.get(f"{scheme}://{place}", _OPEN)
        deadline = self._loop.time() + timeout_s
        try:
            connection = self._take(place) or await self._connect(place, entrance, timeout_s)
        except TimeoutError:
            return Answer(0, error=f"could not connect within {timeout_s:g}s", sent=False)
        except OSError as error:
            return _unconnected(error)
        asked = "&".join(filter(None, (urlencode(params or {}), entrance.query)))
        query = f"{'&' if '?' in path else '?'}{asked}" if asked else ""
        length = "" if body is None else f"Content-Length: {len(body)}\r\n"
        head = (
            f"{method} /{path}{query} HTTP/1.1\r\nHost: {place}\r\n{self._headers}{entrance.head}{length}\r\n".encode()
        )
        reply = connection.send(head if body is None else head + body)
        timer = self._loop.call_at(deadline, _expire, reply, f"no answer within {timeout_s:g}s")
        try:
            answer = await reply
        except LostError as error:
            self._open.discard(connection)
            return Answer(0, error=str(error))
        except BaseException as error:
            connection.close()
            self._open.discard(connection)
            if isinstance(error, TimeoutError):
                return Answer(0, error=str(error))
            raise
        finally:
            timer.cancel()
        if connection.usable:
            self._idle[place].append(connection)
        else:
            self._open.discard(connection)
        return answer

    def _take(self, place: str) -> Connection | None:
        """The connection that was used last: the others may idle until the server closes them."""
        idle = self._idle[place]
        while idle:
            connection = idle.pop()
            if connection.usable:
                return connection
            if self._open is not None:
                self._open.discard(connection)
        return None

    async def _connect(self, place: str, entrance: Entrance, timeout_s: float) -> Connection:
        from hashidrill.core.loads.connection import Connection  # noqa: PLC0415 - see there

        host, _, port = place.rpartition(":")
        async with asyncio.timeout(timeout_s):
            connection = await connected(
                lambda: Connection(self._loop), host.strip("[]"), int(port), local=self._local, entrance=entrance
            )
        if self._open is None:
            connection.close()
            raise OSError(errno.ECANCELED, "the HTTP client was closed")
        self._open.add(connection)
        return connection


async def connected(
    make: Callable[[], P], host: str, port: int, *, local: tuple[str, int] | None, entrance: Entrance = _OPEN
) -> P:
    """A protocol over a new connection, from the address `local` where one is given. Raises OSError.

    A bind to port 0 has the kernel look for a free port among all that are in use or in TIME_WAIT: 2 ms of CPU each
    with some ten thousand of those. The address alone is bound here; the kernel takes the port when it connects, when
    one that is in use towards another place is free as well.
    """
    loop = asyncio.get_running_loop()
    tls: dict[str, Any] = {}
    if entrance.tls is not None:
        tls = {"ssl": entrance.tls, "server_hostname": entrance.server_name or host}
    if local is None:
        return (await loop.create_connection(make, host, port, **tls))[1]
    sock = socket.socket(socket.AF_INET6 if ":" in local[0] else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
        sock.bind(local)
        await loop.sock_connect(sock, (host, port))
        return (await loop.create_connection(make, sock=sock, **tls))[1]
    except BaseException:
        sock.close()
        raise


def _expire(reply: asyncio.Future[Answer], text: str) -> None:
    if not reply.done():
        reply.set_exception(TimeoutError(text))


def _unconnected(error: OSError) -> Answer:
    if isinstance(error, ssl.SSLError):
        return Answer(0, error=f"could not connect: TLS: {getattr(error, 'verify_message', '') or error}", sent=False)
    said = f"could not connect: {os.strerror(error.errno) if error.errno else error}"
    if error.errno in _OWN_LIMITS:
        return Answer(0, error=f"{OVERLOADED}: {said}", sent=False, reason=Reason.OVERLOADED)
    return Answer(0, error=said, sent=False)


_AT_ONCE = 16
_ATTEMPT_TIMEOUT_S = 10.0
_GAP_S = 0.2

T = TypeVar("T")
I = TypeVar("I")  # noqa: E741 - an item


async def insist(
    http: HttpClient,
    endpoints: Sequence[str],
    method: str,
    path: str,
    accept: Callable[[Answer], T | None],
    *,
    within_s: float,
    params: Mapping[str, str] | None = None,
    body: bytes | None = None,
) -> T:
    """Asks each endpoint in turn and returns the first result of `accept` that is not None.

    Raises WaitTimeoutError with the last answer after `within_s` seconds.
    """
    turn = itertools.cycle(endpoints)

    async def attempt() -> tuple[T | None, str]:
        url = next(turn).rstrip("/") + path
        answer = await http.request(method, url, body=body, params=params, timeout_s=_ATTEMPT_TIMEOUT_S)
        return accept(answer), f"{url}: {read_error(answer)}"

    return await wait_until(f"{method} {path} to be answered", attempt, within_s=within_s, gap_s=_GAP_S)


async def for_each(items: Iterable[I], do: Callable[[I], Awaitable[None]]) -> None:
    """Calls `do` for all items, a few at once. The first exception ends it and is raised unchanged."""
    limiter = anyio.CapacityLimiter(_AT_ONCE)

    async def one(item: I) -> None:
        async with limiter:
            await do(item)

    await all_at_once(partial(one, item) for item in items)
