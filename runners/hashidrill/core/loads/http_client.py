"""A thin HTTP/1.1 client: keep-alive, one request at a time on a connection, each sent at most once with little CPU.

The generator shares its cores with the datacenter that it measures, so a request must cost little; and thousands of
open queries must fit into one process. If a request were sent twice without being recorded twice, the durability
checks would judge something that did not happen. Redirects, cookies and proxies are not supported: agents of a
staging datacenter need none.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import urlencode

import anyio

from hashidrill.core.loads.answer import Answer, Request, read_error
from hashidrill.core.loads.schedule import OVERLOADED
from hashidrill.core.protocols.abc import Reason
from hashidrill.core.util.tls import Tls
from hashidrill.core.util.wait import all_at_once, wait_until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable

    from hashidrill.core.loads.connection import Connection


@dataclass(frozen=True)
class Entrance:
    """One agent's credentials, by the start of its URL. No `tls`: plain HTTP; each request gets `head` and `query`."""

    tls: ssl.SSLContext | None = None
    server_name: str | None = None
    """The name that the agent's certificate must have; None: the host of its address."""
    head: str = field(default="", repr=False)
    query: str = ""


def opened(given: Mapping[str, Mapping[str, Any]]) -> dict[str, Entrance]:
    """Entrances by URL, from plain data: `tls` (the fields of Tls), and each request's `headers` and `params`.

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
"""The entrance of an agent over plain HTTP, without credentials."""


class HttpClient:
    """An async context manager around one connection pool. Connections are not limited: a limit is a closed loop.

    `headers` go with each request. `entrances` are the credentials that agents require, by `https://HOST:PORT`.
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
        self._places: dict[str, _Place] = {}
        self._open: set[Connection] | None = None
        self._calls: dict[float, dict[Call, None]] = {}
        """Calls in flight, by time-out: with the same time-out, the call that began first expires first."""
        self._timers: dict[float, asyncio.TimerHandle] = {}

    async def __aenter__(self) -> Self:
        self._open = set()
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(self, *_: object) -> None:
        opened, self._open = self._open or (), None
        opening = [call.opening for calls in self._calls.values() for call in calls if call.opening is not None]
        for timer in self._timers.values():
            timer.cancel()
        for task in opening:
            task.cancel()
        for connection in list(opened):
            connection.close()
        self._calls.clear()
        self._timers.clear()
        self._places.clear()
        await asyncio.gather(*opening, return_exceptions=True)
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
        """Sends once and reads the whole reply. Raises only cancellation: a sick target gives an Answer."""
        reply: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def done(answer: Answer) -> None:
            if not reply.done():
                reply.set_result(answer)

        call = self.ask((method, url, body), done, params=params, timeout_s=timeout_s)
        try:
            return await reply
        except asyncio.CancelledError:
            self._give_up(call)
            raise

    def ask(
        self,
        request: Request,
        done: Callable[[Answer], None],
        *,
        params: Mapping[str, str] | None = None,
        timeout_s: float,
    ) -> Call:
        """Like `request`, without a task: calls `done` once, later, with the answer, unless closed before."""
        if self._open is None:
            raise RuntimeError("the HTTP client is used outside its `async with`")
        method, url, body = request
        end = url.find("/", 8)
        base, path = (url, "/") if end < 0 else (url[:end], url[end:])
        place = self._places.get(base) or self._place(base)
        if params or place.query:
            query = "&".join(filter(None, (urlencode(params or {}), place.query)))
            path = f"{path}{'&' if '?' in path else '?'}{query}"
        if body is None:
            data = f"{method} {path}{place.head}\r\n".encode()
        else:
            data = f"{method} {path}{place.head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        call = Call(done, self._loop.time() + timeout_s, timeout_s)
        if (calls := self._calls.get(timeout_s)) is None:
            calls = self._calls[timeout_s] = {}
            self._timers[timeout_s] = self._loop.call_at(call.deadline_s, self._expire, timeout_s)
        calls[call] = None
        if (connection := place.idle_connection()) is not None:
            call.connection = connection
            connection.send(data, call)
        else:
            call.opening = self._loop.create_task(self._open_and_send(place, call, data))
        return call

    def _place(self, base: str) -> _Place:
        place = base.partition("://")[2]
        entrance = self._entrances.get(base, _OPEN)
        host, _, port = place.rpartition(":")
        head = f" HTTP/1.1\r\nHost: {place}\r\n{self._headers}{entrance.head}"
        made = self._places[base] = _Place(host.strip("[]"), int(port), entrance, head, entrance.query)
        return made

    async def _open_and_send(self, place: _Place, call: Call, data: bytes) -> None:
        from hashidrill.core.loads.connection import Connection  # noqa: PLC0415 - see there

        try:
            connection = await connected(
                lambda: Connection(place.idle, self._ended, self._lost),
                place.host,
                place.port,
                local=self._local,
                entrance=place.entrance,
            )
        except OSError as error:
            self._ended(call, _unconnected(error))
            return
        finally:
            call.opening = None
        if self._open is None or call not in self._calls.get(call.timeout_s, ()):
            connection.close()
            return
        self._open.add(connection)
        call.connection = connection
        connection.send(data, call)

    def _lost(self, connection: Connection) -> None:
        """Forgets a closed connection."""
        if self._open is not None:
            self._open.discard(connection)

    def _ended(self, call: Call, answer: Answer) -> None:
        """Hands the answer to the call, unless that was given up before."""
        if (calls := self._calls.get(call.timeout_s)) is not None and call in calls:
            del calls[call]
            call.done(answer)

    def _give_up(self, call: Call) -> None:
        """Aborts the call's connection, without calling `done`."""
        self._calls.get(call.timeout_s, {}).pop(call, None)
        if call.opening is not None:
            call.opening.cancel()
        if call.connection is not None:
            call.connection.close()

    def _expire(self, timeout_s: float) -> None:
        """Ends the calls with that time-out that have expired, and runs again when the next one expires."""
        calls, now_s = self._calls[timeout_s], self._loop.time()
        for call in list(calls):
            if call.deadline_s > now_s:
                break
            sent = call.connection is not None
            said = "no answer" if sent else "could not connect"
            self._give_up(call)
            call.done(Answer(0, error=f"{said} within {timeout_s:g}s", sent=sent))
        if calls:
            self._timers[timeout_s] = self._loop.call_at(next(iter(calls)).deadline_s, self._expire, timeout_s)
        else:
            del self._calls[timeout_s], self._timers[timeout_s]


class Call:
    """A request in flight: on a connection, or waiting for one to open."""

    __slots__ = ("connection", "deadline_s", "done", "opening", "timeout_s")

    def __init__(self, done: Callable[[Answer], None], deadline_s: float, timeout_s: float) -> None:
        self.done, self.deadline_s, self.timeout_s = done, deadline_s, timeout_s
        self.connection: Connection | None = None
        self.opening: asyncio.Task[None] | None = None


@dataclass(frozen=True, slots=True)
class _Place:
    """One agent's address: the head of each request to it, and its idle connections."""

    host: str
    port: int
    entrance: Entrance
    head: str = field(repr=False)
    query: str = field(repr=False)
    idle: list[Connection] = field(default_factory=list)

    def idle_connection(self) -> Connection | None:
        """The connection that was used last: the others may idle until the server closes them."""
        while self.idle:
            if (connection := self.idle.pop()).usable:
                return connection
        return None


async def connected(
    make: Callable[[], P], host: str, port: int, *, local: tuple[str, int] | None, entrance: Entrance = _OPEN
) -> P:
    """A protocol over a new connection, from the address `local` if given. Raises OSError.

    At a bind to port 0, the kernel searches for a free port: with some ten thousand ports in use or in TIME_WAIT, each
    search takes 2 ms of CPU. So only the address is bound here, and the kernel chooses the port at the connect, where
    ports in use towards other destinations count as free.
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
    """Queries the endpoints in turn and returns the first result of `accept` that is not None.

    Raises WaitTimeoutError with the last answer after `within_s` seconds.
    """
    turn = itertools.cycle(endpoints)

    async def attempt() -> tuple[T | None, str]:
        url = next(turn).rstrip("/") + path
        answer = await http.request(method, url, body=body, params=params, timeout_s=_ATTEMPT_TIMEOUT_S)
        return accept(answer), f"{url}: {read_error(answer)}"

    return await wait_until(f"{method} {path} to be answered", attempt, within_s=within_s, gap_s=_GAP_S)


async def for_each(items: Iterable[I], do: Callable[[I], Awaitable[None]]) -> None:
    """Calls `do` for all items, a few at once. The first exception ends all calls and is raised unchanged."""
    limiter = anyio.CapacityLimiter(_AT_ONCE)

    async def one(item: I) -> None:
        async with limiter:
            await do(item)

    await all_at_once(partial(one, item) for item in items)
