"""One client connection of the tap: HTTP/1.1, and a watch on the client, which may close it at any time."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from typing import cast

from hashidrill.core.tap import wire
from hashidrill.core.tap.wire import Reply, Request, origin_form

_LARGEST_BODY_BYTES = 64 * 1024 * 1024
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER, on, 0 seconds: close() sends RST and drops unsent data (socket(7))."""


class ClientGoneError(Exception):
    """The client closed the connection before it had its reply."""


class Connection(asyncio.Protocol):
    """One connection; `serve` (a coroutine function, run once) reads from it and writes to it."""

    def __init__(self, serve: Callable[[Connection], Awaitable[None]]) -> None:
        self._serve = serve
        self.arrived_ns = 0
        """When the first byte of the current request came; 0 if none has come yet."""
        self.gone = False
        self._unread = bytearray()
        """The bytes after the current request."""
        self._head = wire.Head(b"", [])
        """The head of the current request."""
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
        self._unread += data
        self._wake()

    def eof_received(self) -> bool:
        self._leave()
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's protocol has it
        self._leave()

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    # called by the tap

    async def request(self) -> Request | None:
        """The next request, without its body; None if the client closes instead. Raises wire.ProtocolError."""
        while (head := wire.take_request(self._unread)) is None:
            if self.gone:
                return None
            await self._wait()
        self._head = head
        return Request(head.method, origin_form(head.first), head.headers, b"")

    async def body(self) -> bytes:
        """Reads the rest of the request. Raises ClientGoneError, wire.ProtocolError."""
        rest, waits = wire.Body(self._head, _LARGEST_BODY_BYTES), self._head.waits
        while (body := rest.take(self._unread)) is None:
            if self.gone:
                raise ClientGoneError
            if waits:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                waits = False
            await self._wait()
        return body

    async def unless_gone(self, ask: Callable[[Request], Awaitable[Reply]], request: Request) -> Reply:
        """The answer of `ask`. When the client closes, cancels `ask` and raises ClientGoneError."""
        if self.gone:
            raise ClientGoneError
        self._asking = True
        try:
            return await ask(request)
        except asyncio.CancelledError:
            # `_leave` cancelled it, unless the tap closes (too): then it stays cancelled
            if self.gone and self.task.uncancel() == 0:
                raise ClientGoneError from None
            raise
        finally:
            self._asking = False

    async def until_gone(self) -> None:
        """Waits until the client closes, and discards the data that it still sends."""
        while not self.gone:
            await self._wait()

    async def reply(self, reply: Reply, *, head: bool) -> None:
        """Sends a whole reply, without its body if `head` (it answers a HEAD request). Raises wire.ProtocolError."""
        if b"close" in reply.header(b"connection").lower():
            self._head.keeps = False
        self.transport.write(wire.reply_bytes(reply, to_head=head, last=not self._head.keeps))
        while self._writable is not None and not self.gone:
            await self._writable

    def write(self, data: bytes) -> None:
        """Writes raw bytes: for replies that are wrong on purpose."""
        self.transport.write(data)

    def next(self) -> bool:
        """Prepares for another request on this connection; returns False if there can be none."""
        self.arrived_ns = time.monotonic_ns() if self._unread else 0
        return self._head.keeps

    def reset(self) -> None:
        """Sends RST at once."""
        raw: socket.socket | None = self.transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.transport.abort()

    def close(self) -> None:
        """Closes with FIN, after all output."""
        self.transport.close()

    def stop(self) -> None:
        """Ends the connection because the tap closes. Idempotent."""
        if self.task is not None and not self._over:
            self.task.cancel()
        self._over = True

    async def stopped(self) -> None:
        """Waits until the connection is closed, after `stop`."""
        if self.task is not None:
            await asyncio.gather(self.task, return_exceptions=True)
            self.transport.close()  # a task that never started has no connection to close

    # inside

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
