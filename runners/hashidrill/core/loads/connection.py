"""One connection of the thin client. Imported when the first client is made, because checking an experiment
makes none.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httptools

from hashidrill.core.loads.answer import Answer, LostError


class Connection(asyncio.Protocol):
    """One connection with at most one request in flight; `_reply` is the future of its answer."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: Any = None
        self._parser: Any = httptools.HttpResponseParser(self)
        self._reply: asyncio.Future[Answer] | None = None
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []

    @property
    def usable(self) -> bool:
        return self._transport is not None and self._reply is None and not self._transport.is_closing()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def send(self, request: bytes) -> asyncio.Future[Answer]:
        self._reply = self._loop.create_future()
        self._transport.write(request)
        return self._reply

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"not HTTP: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"connection lost: {exc or 'closed by the other side'}")

    def _fail(self, text: str) -> None:
        reply, self._reply = self._reply, None
        if reply is not None and not reply.done():
            reply.set_exception(LostError(text))
        self.close()

    # the parser's side

    def on_message_begin(self) -> None:
        self._headers, self._body = {}, []

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # `100 Continue` and its kind come before the answer
            return
        reply, self._reply = self._reply, None
        if not self._parser.should_keep_alive():
            self._transport.close()
        if reply is None:
            self.close()  # no request is waiting
        elif not reply.done():
            reply.set_result(Answer(status, b"".join(self._body), headers=self._headers))
