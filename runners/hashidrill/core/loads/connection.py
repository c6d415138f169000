"""One connection of the thin client. Imported when a connection is opened: checking an experiment needs none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httptools

from hashidrill.core.loads.answer import Answer, Headers


class Connection(asyncio.Protocol):
    """One connection with at most one call, an opaque object, in flight. Without a call, it is in `idle`."""

    def __init__(
        self, idle: list[Connection], ended: Callable[[Any, Answer], None], lost: Callable[[Connection], None]
    ) -> None:
        self._idle, self._ended, self._lost = idle, ended, lost
        self._transport: Any = None
        self._parser: Any = httptools.HttpResponseParser(self)
        self._call: object = None
        self._keep = True
        self._answer: Answer | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []

    @property
    def usable(self) -> bool:
        return self._call is None and not self._transport.is_closing()

    def close(self) -> None:
        """Aborts the connection. A call in flight is forgotten."""
        self._call = None
        if self._transport is not None:
            self._transport.abort()

    def send(self, request: bytes, call: object) -> None:
        self._call = call
        self._transport.write(request)

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        broken = ""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            broken = f"not HTTP: {error}"
        # not inside the parser, which would hide what the callback raises
        answer, call = self._answer, self._call
        if answer is not None and call is not None:
            self._answer = self._call = None
            if self._keep and not broken:
                self._idle.append(self)
            self._ended(call, answer)
        if broken:
            self._fail(broken)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost(self)
        self._fail(f"connection lost: {exc or 'closed by the other side'}")

    def _fail(self, text: str) -> None:
        call = self._call
        self.close()
        if call is not None:
            self._ended(call, Answer(0, error=text))

    # the parser's side

    def on_message_begin(self) -> None:
        self._headers, self._body = [], []

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # `100 Continue` and other 1xx come before the answer
            return
        if not self._parser.should_keep_alive():
            self._keep = False
            self._transport.close()
        if self._call is None or self._answer is not None:
            self._keep = False
            self._transport.abort()  # no request is waiting
        else:
            self._answer = Answer(status, b"".join(self._body), headers=Headers(self._headers))
