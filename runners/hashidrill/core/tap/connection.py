"""One client connection of the tap: HTTP/1.1, and an eye on the client, which may go away at any time.

A plain request is read and answered by hashidrill.core.tap.wire, any other by h11, which then does not know that there
were plain ones on this connection.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from typing import cast

import h11

from hashidrill.core.tap import wire
from hashidrill.core.tap.wire import Headers, Reply, Request, origin_form

_LARGEST_BODY_BYTES = 64 * 1024 * 1024
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER, on, 0 seconds: close() sends RST and throws away what is unsent (socket(7))."""


class ClientGoneError(Exception):
    """The client closed the connection before it had its reply."""


class Connection(asyncio.Protocol):
    """What `serve` (a coroutine function, run once) reads from and writes to."""

    def __init__(self, serve: Callable[[Connection], Awaitable[None]]) -> None:
        self._serve = serve
        self.http = h11.Connection(h11.SERVER)
        self.arrived_ns = 0
        """When the first byte of the request at hand came; 0: not yet."""
        self.gone = False
        self._unread = bytearray()
        """What came, and nobody has looked at."""
        self._plain: Request | None = None
        """The request at hand, where h11 has not seen it."""
        self._unseen = b""
        """Its bytes."""
        self._h11_reads = False
        """What comes is for h11: it has a request at hand, or the beginning of the next one."""
        self._asking = False
        self.task: asyncio.Task[None] | None = None
        self._over = False
        self._news: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None

    # what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._loop = asyncio.get_running_loop()
        if self._over:
            self.transport.abort()
        else:
            self.task = self._loop.create_task(self._run())

    def data_received(self, data: bytes) -> None:
        if not self.arrived_ns:
            self.arrived_ns = time.monotonic_ns()
        if self._h11_reads:
            self.http.receive_data(data)
        else:
            self._unread += data
        self._wake()

    def eof_received(self) -> bool:
        self._leave()
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - of asyncio's protocol
        self._leave()

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    # what the tap calls

    async def request(self) -> Request | None:
        """The next request, without its body; None when the client closes instead. Raises h11.RemoteProtocolError."""
        while True:
            if self._unread and (plain := self._take()) is not None:
                return plain
            if self._h11_reads:
                event = self.http.next_event()
                if isinstance(event, h11.Request):
                    return Request(event.method.decode(), origin_form(event.target), list(event.headers), b"")
                if event is not h11.NEED_DATA:
                    return None
            if self.gone:
                return None
            await self._wait()

    async def body(self) -> bytes:
        """The rest of the request. Raises ClientGoneError, h11.RemoteProtocolError."""
        if self._plain is not None:
            return self._plain.body
        parts: list[bytes] = []
        size = 0
        while True:
            event = self.http.next_event()
            if isinstance(event, h11.EndOfMessage):
                return b"".join(parts)
            if isinstance(event, h11.Data):
                parts.append(bytes(event.data))
                size += len(parts[-1])
                if size > _LARGEST_BODY_BYTES:
                    raise h11.RemoteProtocolError("the request's body is over 64 MiB")
                continue
            if self.gone:
                raise ClientGoneError
            if self.http.they_are_waiting_for_100_continue:
                go_on = h11.InformationalResponse(status_code=100, headers=[], reason="Continue")
                self.transport.write(self.http.send(go_on) or b"")
            await self._wait()

    async def unless_gone(self, ask: Callable[[Request], Awaitable[Reply]], request: Request) -> Reply:
        """The answer of `ask`. Raises ClientGoneError, and cancels it, as soon as the client closes."""
        if self.gone:
            raise ClientGoneError
        self._asking = True
        try:
            return await ask(request)
        except asyncio.CancelledError:
            # by `_leave`, unless the tap closes (too): then it stays cancelled
            if self.gone and self.task.uncancel() == 0:
                raise ClientGoneError from None
            raise
        finally:
            self._asking = False

    async def until_gone(self) -> None:
        """Until the client closes; what it still sends is thrown away."""
        while not self.gone:
            await self._wait()

    async def reply(self, reply: Reply, *, head: bool) -> None:
        """Send a whole reply; `head`: to a HEAD request, so without its body."""
        length = reply.header(b"content-length") if head else b""
        headers: Headers = [(k, v) for k, v in reply.headers if k != b"content-length"]
        if reply.status not in {204, 304}:
            headers.append((b"content-length", length or b"%d" % len(reply.body)))
        reply = Reply(reply.status, headers, b"" if head else reply.body, reply.reason)
        data = wire.reply_bytes(reply) if self._plain is not None else None
        self.transport.write(self._by_h11(reply) if data is None else data)
        while self._writable is not None and not self.gone:
            await self._writable

    def write(self, data: bytes) -> None:
        """Bytes as they are: for replies that are wrong on purpose."""
        self.transport.write(data)

    def next(self) -> bool:
        """Get ready for another request on this connection; False when it cannot have one."""
        self.arrived_ns = 0
        if self._plain is not None:
            self._plain = None
            more = bool(self._unread)
        elif self.http.our_state is not h11.DONE or self.http.their_state is not h11.DONE:
            return False
        else:
            self.http.start_next_cycle()
            more = self._h11_reads = bool(self.http.trailing_data[0])
        if more:
            self.arrived_ns = time.monotonic_ns()
        return True

    def reset(self) -> None:
        """RST, now."""
        raw: socket.socket | None = self.transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.transport.abort()

    def close(self) -> None:
        """FIN, after what was written."""
        self.transport.close()

    def stop(self) -> None:
        """The tap closes. Idempotent."""
        if self.task is not None and not self._over:
            self.task.cancel()
        self._over = True

    async def stopped(self) -> None:
        """Until it is closed, after `stop`."""
        if self.task is not None:
            await asyncio.gather(self.task, return_exceptions=True)
            self.transport.close()  # a task that had not begun closes nothing

    # inside

    def _by_h11(self, reply: Reply) -> bytes:
        """What h11 sends as this reply. Raises h11.LocalProtocolError."""
        if self._plain is not None:  # it has to know the request
            self._to_h11(self._unseen + self._unread)
            self._plain = None
            while not isinstance(self.http.next_event(), h11.EndOfMessage):
                pass
        response = h11.Response(status_code=reply.status, headers=reply.headers, reason=reply.reason)
        data = self.http.send(response) or b""
        if reply.body:
            data += self.http.send(h11.Data(data=reply.body)) or b""
        return data + (self.http.send(h11.EndOfMessage()) or b"")

    def _take(self) -> Request | None:
        """The plain request that is there; if there is none, what is there goes to h11."""
        data = bytes(self._unread)
        found = wire.plain_request(data)
        if found is None:
            self._to_h11(data)
            return None
        self._plain, size = found
        self._unseen = data[:size]
        del self._unread[:size]
        return self._plain

    def _to_h11(self, data: bytes) -> None:
        self.http.receive_data(data)
        self._h11_reads = True
        self._unread.clear()

    async def _run(self) -> None:
        try:
            await self._serve(self)
        finally:
            self.transport.close()

    async def _wait(self) -> None:
        self._news = self._loop.create_future()
        try:
            await self._news
        finally:
            self._news = None

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _leave(self) -> None:
        if self.gone:
            return
        self.gone = True
        if self._asking and self.task is not None:
            self.task.cancel()
        self.resume_writing()
        self._wake()
