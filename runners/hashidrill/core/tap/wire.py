"""HTTP/1.1 in its plainest form, which everyday clients and agents speak: whole messages, read and written at once.

h11 knows all of HTTP/1.1 and refuses what is none, but takes the tap 0.1 ms more of a core for each request. So
httptools, a parser in C, reads a message that is there as a whole, with nothing in it that decides about the
connection; everything else (None) is for h11. What httptools read counts only where it is, written out again, what
came, byte by byte. What is taken here h11 takes too and reads the same, and what is written here it would write the
same.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import httptools

Headers = list[tuple[bytes, bytes]]
"""Names in lower case, as the tap reads them."""


@dataclass(frozen=True, slots=True)
class Request:
    """A whole request, its target in origin form."""

    method: str
    target: str
    headers: Headers
    body: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply; the headers are end to end ones only."""

    status: int
    headers: Headers
    body: bytes
    reason: bytes = b""

    def header(self, name: bytes) -> bytes:
        return next((value for key, value in self.headers if key == name), b"")


def origin_form(target: bytes) -> str:
    """The path and query of a request's target, which a client that uses a proxy gives as a whole URL."""
    text = target.decode("ascii", errors="replace")
    if "://" in text[:9]:
        rest = text.partition("://")[2]
        return "/" + rest.partition("/")[2]
    return text


_METHODS = {b"GET", b"PUT", b"POST", b"DELETE"}
_DECIDING = {b"connection", b"transfer-encoding", b"expect", b"upgrade"}
"""About the connection, or the length of the body."""
_MOST_DIGITS = 18
_BODILESS = {204, 304}


def plain_request(data: bytes) -> tuple[Request, int] | None:
    """The request that `data` begins with, and how long it is; None unless it is plain, and whole."""
    heard = _Heard()
    method = data.partition(b" ")[0]
    if method not in _METHODS or not heard.all_of(httptools.HttpRequestParser(heard), data):
        return None
    read = _read(heard.fields)
    if read is None:
        return None
    headers, length = read
    head = b"%s %s HTTP/1.1\r\n%s" % (method, heard.first, _written(heard.fields))
    if not head.isascii() or not data.startswith(head) or [name for name, _ in headers].count(b"host") != 1:
        return None
    end = len(head) + length
    return Request(method.decode(), origin_form(heard.first), headers, data[len(head) : end]), end


def plain_reply(data: bytes) -> Reply | None:
    """The reply, to anything but HEAD, that `data` is; None unless it is plain, whole, and there is nothing after."""
    heard = _Heard()
    parser: Any = httptools.HttpResponseParser(heard)
    if not heard.all_of(parser, data) or (read := _read(heard.fields)) is None:
        return None
    status: int = parser.get_status_code()
    headers, length = read
    if status not in _BODILESS and b"content-length" not in dict(headers):
        return None  # it goes on until its connection is closed
    body = data[len(data) - length :]
    head = _head(status, heard.first, heard.fields)
    return Reply(status, headers, body, heard.first) if head is not None and data == head + body else None


def request_bytes(request: Request) -> bytes | None:
    """What goes over the wire; `headers` without those that decide, and with one Host."""
    first = [pair for pair in request.headers if pair[0] == b"host"]
    if len(first) != 1:
        return None
    rest = [pair for pair in request.headers if pair[0] != b"host"]
    head = f"{request.method} {request.target} HTTP/1.1\r\n".encode("ascii")
    return head + _written(first + rest) + request.body


def reply_bytes(reply: Reply) -> bytes | None:
    """What goes over the wire as an answer to a plain request; None for what only h11 knows how to say or to refuse."""
    names = [name.lower() for name, _ in reply.headers]
    if not _DECIDING.isdisjoint(names) or names.count(b"content-length") > 1:
        return None
    if reply.status in _BODILESS and reply.body:
        return None
    head = _head(reply.status, reply.reason, reply.headers)
    return head + reply.body if head is not None and _sayable(reply) else None


class _Heard:
    """What a parser of httptools tells of the first message in some bytes; it goes on to those that follow.

    It does not hold its parser, which holds it: a cycle for each message takes as long to collect as to read it.
    """

    def __init__(self) -> None:
        self._whole = False
        self.first = b""
        """The target of a request, the reason of a reply."""
        self.fields: Headers = []
        """With the names as they came."""

    def all_of(self, parser: Any, data: bytes) -> bool:
        """Whether `data` begins with a whole message."""
        with contextlib.suppress(httptools.HttpParserError, httptools.HttpParserUpgrade):
            parser.feed_data(data)
        return self._whole

    def on_url(self, part: bytes) -> None:
        if not self._whole:
            self.first += part

    on_status = on_url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._whole:
            self.fields.append((name, value))

    def on_message_complete(self) -> None:
        self._whole = True


def _head(status: int, reason: bytes, fields: Headers) -> bytes | None:
    """None for what is no final reply, or not ASCII, or has a reason that h11 refuses."""
    head = b"HTTP/1.1 %d %s\r\n%s" % (status, reason, _written(fields))
    said = 200 <= status <= 599 and head.isascii() and reason.decode("ascii").isprintable()
    return head if said else None


def _read(fields: Headers) -> tuple[Headers, int] | None:
    """The header fields, and how long they say that the body is; None when that, or the connection, is not plain."""
    headers: Headers = []
    length = b""
    for name, value in fields:
        lower = name.lower()
        if value.strip() != value:  # h11 leaves out the spaces
            return None
        headers.append((lower, value))
        if lower == b"content-length":
            if length or not value.isdigit() or len(value) > _MOST_DIGITS:
                return None
            length = value
        elif lower in _DECIDING and (lower, value.lower()) != (b"connection", b"keep-alive"):
            return None
    return headers, int(length or 0)


def _sayable(reply: Reply) -> bool:
    """Whether its header fields are what h11 lets be said: nobody has looked at them yet."""
    return all(
        name.replace(b"-", b"").replace(b"_", b"").isalnum()
        and value.strip() == value
        and value.decode("latin-1").isprintable()
        for name, value in reply.headers
    )


def _written(headers: Headers) -> bytes:
    return b"".join([b"%s: %s\r\n" % pair for pair in headers]) + b"\r\n"
