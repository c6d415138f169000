"""HTTP/1.1 as the tap reads and writes it: the head of a message, then its body.

httptools (Node's parser, in C) reads heads and chunks with a fraction of the CPU of a parser in Python. It knows a
fixed list of methods, without Vault's LIST. So each method is replaced by PUT for it, except CONNECT, whose target has
another form. Messages that httptools accepts but HTTP forbids are refused here.
"""

import re
from dataclasses import dataclass
from typing import Any

import httptools

Headers = list[tuple[bytes, bytes]]
"""Names in lower case, as the tap reads them."""
_LARGEST_HEAD_BYTES = 64 * 1024
_BODILESS = {204, 304}
_TOKEN = rb"[-!#$%&'*+.^_`|~0-9a-zA-Z]+"
_REASON = rb"[^\x00-\x08\x0a-\x1f\x7f]*"
_BARE_NEWLINE = re.compile(rb"(?<!\r)\n")
_STARTS_A_TOKEN = re.compile(_TOKEN)
_REQUEST_LINE = re.compile(rb"(%s) [\x21-\x7e]+ HTTP/1\.([01])\r\n" % _TOKEN)
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) [1-5]\d\d(?: %s)?\r\n" % _REASON)
_REPLY_HEAD = re.compile(rb"HTTP/1\.1 [2-5]\d\d %s\r\n(?:%s: [^\x00\r\n]*\r\n)*\r\n" % (_REASON, _TOKEN))


class ProtocolError(Exception):
    """A message is not HTTP/1.1, or is of a kind that the tap does not support."""


@dataclass(frozen=True, slots=True)
class Request:
    """A whole request, with its target in origin form."""

    method: str
    target: str
    headers: Headers
    body: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply, with only end-to-end headers."""

    status: int
    headers: Headers
    body: bytes
    reason: bytes = b""

    def header(self, name: bytes) -> bytes:
        """The header's value; b"" if missing. `name` is in lower case."""
        return next((value for key, value in self.headers if key.lower() == name), b"")


def origin_form(target: bytes) -> str:
    """The path and query of a request's target, which is a whole URL if the client uses a proxy."""
    text = target.decode("ascii", errors="replace")
    if "://" in text[:9]:
        rest = text.partition("://")[2]
        return "/" + rest.partition("/")[2]
    return text


@dataclass(slots=True)
class Head:
    """The part of a message before its body. `first` is the target of a request or the reason of a reply."""

    first: bytes
    headers: Headers
    method: str = ""
    status: int = 0
    keeps: bool = True
    """Whether the connection can have another message after this one."""
    length: int | None = 0
    """The length of the body in bytes; None if the body comes in chunks or ends with the connection."""
    chunked: bool = False

    @property
    def waits(self) -> bool:
        """Whether the client sends the body only after it has read `100 Continue`."""
        return any(name == b"expect" and value.lower() == b"100-continue" for name, value in self.headers)


def take_request(data: bytearray) -> Head | None:
    """Removes the head of a request from the start of `data`; None if it is incomplete. Raises ProtocolError."""
    head = _whole_head(data)
    if head is None:
        return None
    line = _first_line(_REQUEST_LINE, head)
    method, minor = line.groups()
    heard = _Heard()
    heard.feed(httptools.HttpRequestParser(heard), head if method == b"CONNECT" else b"PUT" + head[line.end(1) :])
    chunked, length, keeps, hosts = _framing(heard.fields, minor)
    if hosts != 1 and (hosts or minor == b"1"):
        raise ProtocolError(f"it has {hosts} Host headers")
    length = None if chunked else length or 0
    return Head(heard.first, heard.fields, method.decode(), keeps=keeps, length=length, chunked=chunked)


def take_reply(data: bytearray, *, to_head: bool) -> Head | None:
    """Removes the head of a reply from the start of `data`; None if it is incomplete. Raises ProtocolError.

    `to_head`: the request was HEAD, so no body follows.
    """
    head = _whole_head(data)
    if head is None:
        return None
    [minor] = _first_line(_STATUS_LINE, head).groups()
    heard = _Heard()
    parser = httptools.HttpResponseParser(heard)
    heard.feed(parser, head)
    status = parser.get_status_code()
    if status == 101:
        raise ProtocolError("it switches to another protocol")
    chunked, length, keeps, _ = _framing(heard.fields, minor)
    if status < 200 or status in _BODILESS or to_head:
        chunked, length = False, 0
    elif length is None and not chunked:
        keeps = False
    return Head(heard.first, heard.fields, status=status, keeps=keeps, length=length, chunked=chunked)


class Body:
    """Removes the body after a head from the received data."""

    def __init__(self, head: Head, most_bytes: float = float("inf")) -> None:
        self._head, self._most = head, most_bytes
        self._chunks = _Chunks() if head.chunked else None

    def take(self, data: bytearray, *, ended: bool = False) -> bytes | None:
        """The body, removed from the start of `data`; None if it is incomplete.

        `ended`: no more data will come. Raises ProtocolError.
        """
        length = self._head.length
        if self._chunks is not None:
            self._chunks.feed(data)
            body = bytes(self._chunks.body) if self._chunks.over else None
            length = len(self._chunks.body)
        elif length is None:
            body = bytes(data) if ended else None
            length = len(data)
        else:
            body = bytes(data[:length]) if len(data) >= length else None
        if length > self._most:
            raise ProtocolError(f"the body is over {self._most:.0f} bytes")
        if body is not None and self._chunks is None:
            del data[:length]
        return body


def request_bytes(request: Request) -> bytes:
    """The request's bytes on the wire, with Host first."""
    headers = sorted(request.headers, key=lambda pair: pair[0] != b"host")
    return f"{request.method} {request.target} HTTP/1.1\r\n".encode("ascii") + _written(headers) + request.body


def reply_bytes(reply: Reply, *, to_head: bool = False, last: bool = False) -> bytes:
    """The reply's bytes on the wire, with the length of the body, or in chunks if the reply says so. Raises
    ProtocolError.

    `to_head`: it answers a HEAD request, so the body is left out. `last`: the connection closes after it.
    """
    body, chunked, length = reply.body, False, b"%d" % len(reply.body)
    headers: Headers = []
    for pair in reply.headers:
        name = pair[0].lower()
        if name == b"content-length":
            length = pair[1] if to_head else length
        elif name == b"transfer-encoding":
            chunked = True
        elif name != b"connection":
            headers.append(pair)
    if chunked:
        headers.append((b"Transfer-Encoding", b"chunked"))
        body = (b"%x\r\n%s\r\n" % (len(body), body) if body else b"") + b"0\r\n\r\n"
    elif reply.status not in _BODILESS:
        headers.append((b"content-length", length))
    elif body:
        raise ProtocolError(f"a reply with status {reply.status} has no body")
    if last:
        headers.append((b"Connection", b"close"))
    head = b"HTTP/1.1 %d %s\r\n%s" % (reply.status, reply.reason, _written(headers))
    if not _REPLY_HEAD.fullmatch(head) or head.count(b"\n") != len(headers) + 2:
        raise ProtocolError(f"the head of the reply is not HTTP: {head[:200]!r}")
    return head if to_head else head + body


class _Heard:
    """Receives one head from a parser of httptools.

    The parser refers to this object, but this object not to the parser: to collect a reference cycle for each message
    would take as long as to read the message.
    """

    def __init__(self) -> None:
        self._whole = False
        self.first = b""
        self.fields: Headers = []

    def feed(self, parser: Any, head: bytes) -> None:
        """Raises ProtocolError."""
        try:
            parser.feed_data(head)
        except httptools.HttpParserUpgrade:
            pass  # the client offers another protocol; HTTP goes on unless the tap agrees
        except httptools.HttpParserError as error:
            raise ProtocolError(str(error)) from None
        if not self._whole:
            raise ProtocolError("the head is incomplete")

    def on_url(self, part: bytes) -> None:
        self.first += part

    on_status = on_url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name.lower(), value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        self._whole = True


class _Chunks:
    """Decodes a body in chunks, without its trailers."""

    def __init__(self) -> None:
        self.body = bytearray()
        self.over = False
        self._parser: Any = httptools.HttpRequestParser(self)
        self._parser.feed_data(b"PUT / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n")

    def feed(self, data: bytearray) -> None:
        """Decodes and removes lines of `data` one by one, because the body ends with a line. Raises ProtocolError."""
        try:
            while data and not self.over:
                size = data.find(b"\n") + 1 or len(data)
                self._parser.feed_data(data[:size])
                del data[:size]
        except httptools.HttpParserError as error:
            raise ProtocolError(str(error)) from None

    def on_body(self, part: bytes) -> None:
        self.body += part

    def on_message_complete(self) -> None:
        self.over = True


def _whole_head(data: bytearray) -> bytes | None:
    end = data.find(b"\r\n\r\n") + 4
    if end > 3:
        head = bytes(data[:end])
        del data[:end]
        return head
    if data and (not _STARTS_A_TOKEN.match(data) or _BARE_NEWLINE.search(data) or len(data) > _LARGEST_HEAD_BYTES):
        raise ProtocolError(f"{bytes(data[:20])!r} is not HTTP/1.1")
    return None


def _first_line(form: re.Pattern[bytes], head: bytes) -> re.Match[bytes]:
    line = form.match(head)
    if line is None:
        raise ProtocolError(f"{head[:20]!r} is not HTTP/1.1")
    return line


def _framing(fields: Headers, minor: bytes) -> tuple[bool, int | None, bool, int]:
    """(body in chunks?, its length if given, connection kept?, number of Host headers). Raises ProtocolError."""
    chunked, length, keeps, hosts = False, None, minor == b"1", 0
    for name, value in fields:
        if name == b"host":
            hosts += 1
        elif name == b"content-length":
            length = int(value)
        elif name == b"transfer-encoding":
            if value.lower() != b"chunked":
                raise ProtocolError(f"the transfer coding {value!r} is not known")
            chunked = True
        elif name == b"connection" and b"close" in map(bytes.strip, value.lower().split(b",")):
            keeps = False
    return chunked, length, keeps, hosts


def _written(headers: Headers) -> bytes:
    return b"".join([b"%s: %s\r\n" % pair for pair in headers]) + b"\r\n"
