"""Observes a tap from outside: one exchange over its own connection, in hand-written HTTP/1.1.

The observer shares no code with the tap, not even the parser of replies. It sends its request in pieces, to see after
which piece a reset comes. The request is a GET that a Consul agent answers by itself, with or without a leader.
"""

import asyncio
import contextlib
import http.client
import io
from dataclasses import dataclass
from urllib.parse import urlsplit

PAUSE_S = 0.1
"""How long to wait between two pieces for a reset that does not need the next piece."""
TURNS = 40
"""The observer also waits for this many turns of the event loop, which the tap shares: on a busy or suspended machine,
time passes without any progress, and a reset could seem to need the next piece.
"""
PATIENCE_S = 2.0
"""A later reply counts as none: agents answer within milliseconds."""
_OWN_PATH = "/v1/agent/members"
_WATCHED_PATH = "/v1/catalog/nodes?stale"
_LOWEST_INDEX = 4
"""From this index on, half of an index differs from the requested index and from the one below it."""


class _EndError(Exception):
    """Raised when the exchange is over; the text describes it."""


@dataclass(frozen=True)
class _Reply:
    status: int
    headers: dict[str, str]


async def exchange(url: str, fault: str) -> str:
    """The name of the fault that hit this exchange, or its result: `200`, `refused`.

    `fault` decides the kind of exchange: faults of reused connections need two requests, index-backwards a blocking
    query.
    """
    split = urlsplit(url)
    try:
        reader, writer = await asyncio.open_connection(split.hostname, split.port)
    except OSError:
        return "refused"
    try:
        if fault == "index-backwards":
            return await _watched(reader, writer)
        return await _asked(reader, writer, reused=fault.endswith("-reused"))
    except _EndError as over:
        return str(over)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _asked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, reused: bool) -> str:
    where = "fresh"
    if reused:
        where = "reused"
        await _whole(reader, writer, _OWN_PATH)
    _send(writer, f"GET {_OWN_PATH} HTTP/1.1\r\nHost: tap\r\nContent-Length: 1\r\n\r\n")
    if await _reset_comes(reader):
        return f"reset-before-{where}"
    _send(writer, " ")
    return _named(await _reply(reader, where))


async def _watched(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    first = await _whole(reader, writer, _WATCHED_PATH)
    index = int(first.headers.get("x-consul-index", "0"))
    if index < _LOWEST_INDEX:
        return f"an index of {index}"
    again = await _whole(reader, writer, f"{_WATCHED_PATH}&index={index - 1}")
    backwards = int(again.headers.get("x-consul-index", "0")) < index - 1
    return "index-backwards" if backwards else _named(again)


async def _whole(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> _Reply:
    _send(writer, f"GET {path} HTTP/1.1\r\nHost: tap\r\n\r\n")
    return await _reply(reader, "fresh")


def _send(writer: asyncio.StreamWriter, text: str) -> None:
    writer.write(text.encode())


async def _reset_comes(reader: asyncio.StreamReader) -> bool:
    """Whether the fault strikes before the rest of the request has arrived."""
    reading = asyncio.ensure_future(reader.read(1))
    try:
        await asyncio.wait({reading}, timeout=PAUSE_S)
        for _ in range(TURNS):
            if reading.done():
                break
            await asyncio.sleep(0)
        else:
            return False
        early = await reading
    except ConnectionError:
        return True
    finally:
        reading.cancel()
        await asyncio.wait({reading})
    raise _EndError("an answer before its question" if early else "closed before its question")


async def _reply(reader: asyncio.StreamReader, where: str) -> _Reply:
    try:
        async with asyncio.timeout(PATIENCE_S):
            head = await reader.readuntil(b"\r\n\r\n")
    except TimeoutError:
        raise _EndError("hang") from None
    except ConnectionError:
        raise _EndError(f"reset-after-{where}") from None
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        raise _EndError("reply-dropped") from None
    reply = _parsed(head)
    try:
        async with asyncio.timeout(PATIENCE_S):
            await reader.readexactly(int(reply.headers.get("content-length", "0")))
    except TimeoutError:
        raise _EndError("slow-body") from None
    except (asyncio.IncompleteReadError, ConnectionError):
        raise _EndError("truncated-body") from None
    return reply


def _parsed(head: bytes) -> _Reply:
    """Uses Python's own parser, because the tap uses others."""
    first, _, rest = head.partition(b"\r\n")
    headers = http.client.parse_headers(io.BytesIO(rest))
    return _Reply(int(first.split()[1]), {name.lower(): value for name, value in headers.items()})


def _named(reply: _Reply) -> str:
    after = reply.headers.get("retry-after")
    if after is None:
        return str(reply.status)
    return f"{reply.status}-retry-after" + ("" if after.isdecimal() else "-date")
