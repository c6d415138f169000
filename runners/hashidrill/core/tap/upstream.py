"""What is behind the tap: a real server, or a script. One `Link` serves the requests of one client connection."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable
from typing import Protocol, cast
from urllib.parse import urlsplit

import h11

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
    """The upstream cannot be reached, or does not speak HTTP. What was measured says nothing about the client."""

    exit_code = 3


class Link(Protocol):
    """Serves the requests of one client connection, one after the other."""

    async def ask(self, request: Request) -> Reply:
        """The reply. Raises UpstreamError."""

    def close(self) -> None: ...


class Upstream(Protocol):
    """Where requests go that are passed through."""

    def link(self) -> Link: ...


class HttpUpstream:
    """A server at an address; `local_address` is where its connections come from. Raises UsageError for no URL."""

    def __init__(self, url: str, *, trust: ssl.SSLContext | None = None, local_address: str | None = None) -> None:
        split = urlsplit(url)
        try:
            port = split.port
        except ValueError:
            raise UsageError(f"{url}: the port is not a number; write it like http://127.0.0.1:8500") from None
        if split.scheme not in {"http", "https"} or not split.hostname:
            raise UsageError(f"{url!r} is no URL of a server; write it like http://127.0.0.1:8500")
        self.url = url
        self.local = None if local_address is None else (local_address, 0)
        self.host = split.hostname
        self.port = port or (443 if split.scheme == "https" else 80)
        self.tls = (trust or ssl.create_default_context()) if split.scheme == "https" else None

    def link(self) -> Link:
        return _HttpLink(self)


class _HttpLink:
    """A kept-alive connection to the server, made when it is first needed and again when the server closed it."""

    def __init__(self, upstream: HttpUpstream) -> None:
        self._upstream = upstream
        self._connection: _Connection | None = None

    async def ask(self, request: Request) -> Reply:
        headers = [(name, value) for name, value in request.headers if name not in _HOP_BY_HOP]
        if request.body or request.method in {"POST", "PUT", "PATCH"}:
            headers.append((b"content-length", b"%d" % len(request.body)))
        try:
            if self._connection is None or self._connection.over:
                self._connection = await self._connect()
            return await self._connection.ask(Request(request.method, request.target, headers, request.body))
        except (OSError, h11.RemoteProtocolError, EOFError) as error:
            self.close()
            reason = str(error) or type(error).__name__
            raise UpstreamError(f"the upstream {self._upstream.url} did not answer: {reason}") from None
        except asyncio.CancelledError:
            self.close()  # half an exchange is left in it
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
    """One connection to the server, with at most one request under way. What is not plain is read by h11."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._answered: asyncio.Future[Reply] = loop.create_future()
        self._answered.cancel()  # nothing was asked yet
        self._http: h11.Connection | None = None
        self._parts: list[bytes] = []
        self.over = False
        """It cannot have another request."""

    def ask(self, request: Request) -> asyncio.Future[Reply]:
        """Send it. The reply comes, or OSError, EOFError, h11.RemoteProtocolError. Raises h11.LocalProtocolError."""
        data = wire.request_bytes(request)
        self._request, self._http = request, None
        if data is None:
            self._http, data = _by_h11(request)
        self._answered = self._loop.create_future()
        self._transport.write(data)
        return self._answered

    def close(self) -> None:
        self.over = True
        self._transport.close()

    # what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._answered.done():
            self.close()  # nobody asked
            return
        if self._http is None:
            reply = wire.plain_reply(data) if self._request.method != "HEAD" else None
            if reply is not None:
                self._answer(reply)
                return
            self._http, _ = _by_h11(self._request)
        self._read(self._http, data)

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
        if error is None and self._http is not None:  # that may be the end of the reply
            self._read(self._http, b"")
        else:
            self._answered.set_exception(error or EOFError("it closed the connection"))

    def _read(self, http: h11.Connection, data: bytes) -> None:
        """`data` of a reply that is not plain; nothing: its end."""
        try:
            http.receive_data(data)
            reply = self._next_reply(http)
        except (h11.RemoteProtocolError, EOFError) as error:
            self._answered.set_exception(error)
        else:
            if reply is not None:
                self._answer(reply)

    def _next_reply(self, http: h11.Connection) -> Reply | None:
        while (event := http.next_event()) is not h11.NEED_DATA:
            if isinstance(event, h11.Response):
                self._response, self._parts = event, []
            elif isinstance(event, h11.Data):
                self._parts.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                if http.our_state is not h11.DONE or http.their_state is not h11.DONE or http.trailing_data[0]:
                    self.close()
                head = self._response
                return Reply(head.status_code, list(head.headers), b"".join(self._parts), head.reason)
            elif event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                raise EOFError("it closed the connection")
        return None

    def _answer(self, reply: Reply) -> None:
        headers = [(name, value) for name, value in reply.headers if name not in _HOP_BY_HOP]
        self._answered.set_result(Reply(reply.status, headers, reply.body, reply.reason))


def _by_h11(request: Request) -> tuple[h11.Connection, bytes]:
    """A connection of h11 that has sent this request, and what it sent. Raises h11.LocalProtocolError."""
    http = h11.Connection(h11.CLIENT)
    head = h11.Request(method=request.method, target=request.target, headers=request.headers)
    data = http.send(head) or b""
    if request.body:
        data += http.send(h11.Data(data=request.body)) or b""
    return http, data + (http.send(h11.EndOfMessage()) or b"")


Script = Callable[[Request], Reply]


class Scripted:
    """No server at all: `script` makes the replies, `consul_like` unless another one is given."""

    def __init__(self, script: Script | None = None) -> None:
        self._script = script or consul_like

    def link(self) -> Link:
        return self

    async def ask(self, request: Request) -> Reply:
        return self._script(request)

    def close(self) -> None:
        pass


def consul_like(request: Request) -> Reply:
    """Success, in the shape that Consul, Nomad or Vault would give it, as far as a client has to parse it."""
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
