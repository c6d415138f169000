"""A small HTTP server that does to requests what a script says, one after another, and remembers when they came.

It shares nothing with the tap: what it sees of a client is an independent witness.
"""

import asyncio
import socket
import struct
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_BODIES = {"GET": b'[{"Key":"hashidrill/retry","Value":"eA==","Flags":0}]', "PUT": b"true", "POST": b'{"ID":"x"}'}


@asynccontextmanager
async def serving(serve):
    """A server on a free port of the loopback, by its URL: `serve(reader, writer)` has each connection."""
    tasks = set()

    async def served(reader, writer):
        tasks.add(asyncio.current_task())
        try:
            await serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client went away, or the server does
        finally:
            writer.close()
            tasks.discard(asyncio.current_task())

    server = await asyncio.start_server(served, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass
class ScriptedServer:
    """`fault` is given to the first `times` requests; the others are answered.

    `fault`: a status, `503-retry-after` (of `retry_after` seconds), `reset-before`, `reset-after`, `dropped`,
    `truncated`, `hang`, `drip`, or an empty string. `reset-reused` (2 times) sends the first request on to the same
    place, and resets the connection if the next one comes over it (`was_reset`).
    `seen` is when each attempt came, in seconds.
    """

    fault: str = ""
    times: float = 1
    retry_after: int = 2
    seen: list[float] = field(default_factory=list)
    url: str = ""
    was_reset: bool = False
    came: asyncio.Event = field(default_factory=asyncio.Event)
    """The first attempt is here."""

    @property
    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.seen, self.seen[1:], strict=False)]

    @asynccontextmanager
    async def running(self):
        async with serving(self._serve) as self.url:
            yield self

    async def _serve(self, reader, writer):
        if self.fault == "reset-before" and len(self.seen) < self.times:
            self._see()
            _reset(writer)
            return
        reused = False
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0].strip()
            await reader.readexactly(int(length or 0))
            self._see()
            if not self.fault or len(self.seen) > self.times:
                await _answer(writer, "200 OK", _body(head), "X-Consul-Index: 7\r\n")
            elif not await self._fail(writer, head, reused=reused):
                return
            reused = True

    def _see(self):
        self.seen.append(time.monotonic())
        self.came.set()

    async def _fail(self, writer, head, *, reused) -> bool:
        """Whether the connection can go on."""
        body = _body(head)
        if self.fault == "reset-reused":
            return await self._reset_reused(writer, head, reused=reused)
        if self.fault[:3].isdigit():
            extra = f"Retry-After: {self.retry_after}\r\n" if self.fault.endswith("retry-after") else ""
            await _answer(writer, f"{self.fault[:3]} Scripted", b"no", extra)
            return True
        if self.fault == "truncated":
            writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body[: len(body) // 2])
            await writer.drain()
        elif self.fault == "hang":
            await asyncio.Event().wait()
        elif self.fault == "drip":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.5)
        elif self.fault == "reset-after":
            _reset(writer)
        return False

    async def _reset_reused(self, writer, head, *, reused) -> bool:
        if len(self.seen) == 1:
            await _answer(writer, "307 Temporary Redirect", b"", f"Location: {head.split()[1].decode()}\r\n")
        elif reused:
            self.was_reset = True
            _reset(writer)
        else:
            await _answer(writer, "200 OK", _body(head), "X-Consul-Index: 7\r\n")
        return not self.was_reset


async def _answer(writer, status, body, extra):
    writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{extra}\r\n".encode() + body)
    await writer.drain()


def _body(head):
    return b'"127.0.0.1:8300"' if b" /v1/status/leader" in head else _BODIES[head.split()[0].decode()]


def _reset(writer):
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    writer.transport.abort()
