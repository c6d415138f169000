"""The upstream behind the tap: a real server, or a script. One `Link` serves the requests of one client connection."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable
from typing import Protocol, cast
from urllib.parse import urlsplit

from hashidrill.core.errors import HashidrillError, UsageError
from hashidrill.core.tap import wire
from hashidrill.core.tap.wire import Reply, Request

_HOP_BY_HOP = {
    b"connection",
    b"proxy-connection",
    b"keep-alive",
    b"te",
    b"trailer",
    b"upgrade",
    b"transfer-encoding",
    b"content-length",
    b"proxy-authorization",
    b"expect",
}


class UpstreamError(HashidrillError):
    """The upstream cannot be reached or does not speak HTTP, so the results say nothing about the client."""

    exit_code = 3


class Link(Protocol):
    """Serves the requests of one client connection, one after the other."""

    async def ask(self, request: Request) -> Reply:
        """The reply. Raises UpstreamError."""

    def close(self) -> None: ...


class Upstream(Protocol):
    """The destination of requests that are passed through."""

    def link(self) -> Link: ...


class HttpUpstream:
    """A server at a URL; connections come from `local_address`. Raises UsageError if `url` is not a URL."""

    def __init__(self, url: str, *, trust: ssl.SSLContext | None = None, local_address: str | None = None) -> None:
        split = urlsplit(url)
        try:
            port = split.port
        except ValueError:
            raise UsageError(f"{url}: the port is not a number; write it like http://127.0.0.1:8500") from None
        if split.scheme not in {"http", "https"} or not split.hostname:
            raise UsageError(f"{url!r} is not the URL of a server; write it like http://127.0.0.1:8500")
        self.url = url
        self.local = None if local_address is None else (local_address, 0)
        self.host = split.hostname
        self.port = port or (443 if split.scheme == "https" else 80)
        self.tls = (trust or ssl.create_default_context()) if split.scheme == "https" else None

    def link(self) -> Link:
        return _HttpLink(self)


class _HttpLink:
    """A keep-alive connection to the server. It opens at the first use, and again after the server has closed it."""

    def __init__(self, upstream: HttpUpstream) -> None:
        self._upstream = upstream
        self._connection: _Connection | None = None

    async def ask(self, request: Request) -> Reply:
        headers = [(name, value) for name, value in request.headers if name not in _HOP_BY_HOP]
        if request.body or request.method in {"POST", "PUT", "PATCH"}:
            headers.append((b"content-length", b"%d" % len(request.body)))
        if not any(name == b"host" for name, _ in headers):  # HTTP/1.0 needs no Host
            headers.append((b"host", self._upstream.host.encode()))
        try:
            if self._connection is None or self._connection.over:
                self._connection = await self._connect()
            return await self._connection.ask(Request(request.method, request.target, headers, request.body))
        except (OSError, wire.ProtocolError, EOFError) as error:
            self.close()
            reason = str(error) or type(error).__name__
            raise UpstreamError(f"the upstream {self._upstream.url} did not answer: {reason}") from None
        except asyncio.CancelledError:
            self.close()  # the connection is in the middle of an exchange
            raise

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    async def _connect(self) -> _Connection:
        self.close()
        up, loop = self._upstream, asyncio.get_running_loop()
        _, made = await loop.create_connection(
            lambda: _Connection(loop), up.host, up.port, ssl=up.tls, local_addr=up.local
        )
        return made


class _Connection(asyncio.Protocol):
    """One connection to the server, with at most one request in flight."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._answered: asyncio.Future[Reply] = loop.create_future()
        self._answered.cancel()  # nothing was asked yet
        self._unread = bytearray()
        self._head: wire.Head | None = None
        self.over = False
        """Whether the connection is closed to further requests."""

    def ask(self, request: Request) -> asyncio.Future[Reply]:
        """Sends the request. The future gets the reply, or OSError, EOFError or wire.ProtocolError."""
        self._to_head, self._head = request.method == "HEAD", None
        self._answered = self._loop.create_future()
        self._transport.write(wire.request_bytes(request))
        return self._answered

    def close(self) -> None:
        self.over = True
        self._transport.close()

    # what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._answered.done():
            self.close()  # no request is waiting
            return
        self._unread += data
        self._read()

    def eof_received(self) -> bool:
        self._end(None)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)

    # inside

    def _end(self, error: Exception | None) -> None:
        self.over = True
        if self._answered.done():
            return
        if error is None:  # the close may be the end of the reply
            self._read(ended=True)
        else:
            self._answered.set_exception(error)

    def _read(self, *, ended: bool = False) -> None:
        try:
            body = self._take(ended=ended)
        except (wire.ProtocolError, EOFError) as error:
            self._answered.set_exception(error)
            return
        if body is not None and self._head is not None:
            if not self._head.keeps or self._unread:
                self.close()
            headers = [(name, value) for name, value in self._head.headers if name not in _HOP_BY_HOP]
            self._answered.set_result(Reply(self._head.status, headers, body, self._head.first))

    def _take(self, *, ended: bool) -> bytes | None:
        """The body of the final reply; None while it is incomplete."""
        while self._head is None and (head := wire.take_reply(self._unread, to_head=self._to_head)) is not None:
            if head.status >= 200:
                self._head, self._rest = head, wire.Body(head)
        body = None if self._head is None else self._rest.take(self._unread, ended=ended)
        if ended and body is None:
            raise EOFError("it closed the connection")
        return body


Script = Callable[[Request], Reply]


class Scripted:
    """An upstream without a server: `script` makes the replies (default: `consul_like`)."""

    def __init__(self, script: Script | None = None) -> None:
        self._script = script or consul_like

    def link(self) -> Link:
        return self

    async def ask(self, request: Request) -> Reply:
        return self._script(request)

    def close(self) -> None:
        pass


def consul_like(request: Request) -> Reply:
    """A success, in the form in which Consul, Nomad or Vault would report it, as far as clients parse it."""
    path = urlsplit(request.target).path
    headers = [(b"content-type", b"application/json"), (b"x-consul-index", b"42"), (b"x-nomad-index", b"42")]
    value: object = {"ok": True, "data": {"data": {"key": "value"}, "metadata": {"version": 1}}, "auth": None}
    if request.method in {"PUT", "POST", "DELETE"} and path.startswith("/v1/kv/"):
        value = True
    elif path.startswith("/v1/kv/"):
        value = [
            {"LockIndex": 0, "Key": path[7:], "Flags": 0, "Value": "dmFsdWU=", "CreateIndex": 42, "ModifyIndex": 42}
        ]
    elif path.startswith("/v1/session/"):
        value = {"ID": "adf4238a-882b-9ddc-4a9d-5b6758e4159e"}
    elif path.endswith("/leader"):
        value = "127.0.0.1:8300"
    elif path.startswith(("/v1/jobs", "/v1/nodes", "/v1/health/service", "/v1/catalog/nodes", "/v1/status/peers")):
        value = []
    body = b"" if request.method == "HEAD" else json.dumps(value).encode()
    return Reply(200, headers, body)
