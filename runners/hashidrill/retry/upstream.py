"""What is behind the tap: a real server, or a script. One `Link` serves the requests of one client connection."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

import h11

from hashidrill.errors import HashidrillError, UsageError

Headers = list[tuple[bytes, bytes]]
_HOP_BY_HOP = {
    b"connection", b"proxy-connection", b"keep-alive", b"te", b"trailer", b"upgrade", b"transfer-encoding",
    b"content-length", b"proxy-authorization", b"expect",
}  # fmt: skip
_READ_BYTES = 65536


class UpstreamError(HashidrillError):
    """The upstream cannot be reached, or does not speak HTTP. What was measured says nothing about the client."""

    exit_code = 3


@dataclass(frozen=True)
class Request:
    """A whole request, its target in origin form."""

    method: str
    target: str
    headers: Headers
    body: bytes


@dataclass(frozen=True)
class Reply:
    """A whole reply; the headers are end to end ones only."""

    status: int
    headers: Headers
    body: bytes
    reason: bytes = b""

    def header(self, name: bytes) -> bytes:
        return next((value for key, value in self.headers if key == name), b"")


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
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._http = h11.Connection(h11.CLIENT)

    async def ask(self, request: Request) -> Reply:
        try:
            if self._reader is None or self._reader.at_eof() or self._http.our_state is not h11.IDLE:
                await self._connect()
            return await self._exchange(request)
        except (OSError, h11.RemoteProtocolError, EOFError) as error:
            self.close()
            reason = str(error) or type(error).__name__
            raise UpstreamError(f"the upstream {self._upstream.url} did not answer: {reason}") from None
        except asyncio.CancelledError:
            self.close()  # half an exchange is left in it
            raise

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None

    async def _connect(self) -> None:
        self.close()
        up = self._upstream
        self._reader, self._writer = await asyncio.open_connection(up.host, up.port, ssl=up.tls, local_addr=up.local)
        self._http = h11.Connection(h11.CLIENT)

    async def _exchange(self, request: Request) -> Reply:
        if self._reader is None or self._writer is None:
            raise EOFError("the connection was closed")
        headers = [(name, value) for name, value in request.headers if name not in _HOP_BY_HOP]
        if request.body or request.method in {"POST", "PUT", "PATCH"}:
            headers.append((b"content-length", b"%d" % len(request.body)))
        head = h11.Request(method=request.method, target=request.target, headers=headers)
        data = self._http.send(head) or b""
        if request.body:
            data += self._http.send(h11.Data(data=request.body)) or b""
        self._writer.write(data + (self._http.send(h11.EndOfMessage()) or b""))
        await self._writer.drain()
        return await self._reply(self._reader)

    async def _reply(self, reader: asyncio.StreamReader) -> Reply:
        response: h11.Response | None = None
        body: list[bytes] = []
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                data = await reader.read(_READ_BYTES)
                if not data and self._http.their_state is not h11.SEND_BODY:
                    raise EOFError("it closed the connection")
                self._http.receive_data(data)
            elif isinstance(event, h11.Response):
                response = event
            elif isinstance(event, h11.Data):
                body.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                break
            elif isinstance(event, h11.ConnectionClosed):
                raise EOFError("it closed the connection")
        if response is None:
            raise EOFError("it ended before it began")
        headers = [(name, value) for name, value in response.headers if name not in _HOP_BY_HOP]
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
        else:
            self.close()
        return Reply(response.status_code, headers, b"".join(body), response.reason)


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
        value = [{"LockIndex": 0, "Key": path[7:], "Flags": 0, "Value": "dmFsdWU=", "CreateIndex": 42,
                  "ModifyIndex": 42}]  # fmt: skip
    elif path.startswith("/v1/session/"):
        value = {"ID": "adf4238a-882b-9ddc-4a9d-5b6758e4159e"}
    elif path.endswith("/leader"):
        value = "127.0.0.1:8300"
    elif path.startswith(("/v1/jobs", "/v1/nodes", "/v1/health/service", "/v1/catalog/nodes", "/v1/status/peers")):
        value = []
    body = b"" if request.method == "HEAD" else json.dumps(value).encode()
    return Reply(200, headers, body)
