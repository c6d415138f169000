"""Consul's own streaming protocol, as an agent speaks it to a server: many subscriptions over one connection.

On the server's RPC port the byte 0x08 says that gRPC follows: HTTP/2 without TLS, one stream for each call of
/subscribe.StateChangeSubscription/Subscribe. The messages are those of Consul's subscribe.proto, of which the few
fields used here have the same numbers in 1.10.3 (proto/pbsubscribe) and 1.22.2 (proto/private/pbsubscribe).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

RPC_PORT = 8300
_GRPC_BYTE = b"\x08"
_PATH = "/subscribe.StateChangeSubscription/Subscribe"
_SERVICE_HEALTH = 1
_WINDOW_BYTES = 1 << 20
_CONNECTION_WINDOW_BYTES = 1 << 30
_MAX_MESSAGE_BYTES = 1 << 26
_PREFIX = struct.Struct(">?I")


def subscribe_request(service: str, index: int = 0) -> bytes:
    """SubscribeRequest: 1 Topic (ServiceHealth), 2 Key, 4 Index."""
    key = service.encode()
    message = b"\x08" + _varint(_SERVICE_HEALTH) + b"\x12" + _varint(len(key)) + key
    return message + (b"\x20" + _varint(index) if index else b"")


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of each field of a protobuf message. Raises ValueError for what is none."""
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _read_varint(message, at)
            yield number, value
            continue
        length, at = {1: (8, at), 5: (4, at)}.get(wire) or _read_varint(message, at)
        if wire not in (1, 2, 5) or at + length > len(message):
            raise ValueError(f"not a protobuf message: field {number} of wire type {wire}")
        yield number, message[at : at + length]
        at += length


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise ValueError("not a protobuf message: a number that does not end")
        byte = message[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at


@dataclass(slots=True)
class Event:
    """One message of a stream: `index` of Raft, and which kind of payload; `raw` is all of it."""

    index: int
    end_of_snapshot: bool
    new_snapshot: bool
    raw: bytes

    @classmethod
    def parse(cls, raw: bytes) -> Event:
        """Event: 1 Index, 2 EndOfSnapshot, 3 NewSnapshotToFollow, 4 EventBatch, 10 ServiceHealth. Raises ValueError."""
        found = dict(fields(raw))
        return cls(int(found.get(1, 0)), bool(found.get(2)), bool(found.get(3)), raw)


@dataclass(slots=True)
class Subscription:
    """One stream. `on_event` is called for each event, `ended` holds the reason once there are no more."""

    stream_id: int
    on_event: Callable[[Event], None]
    ended: asyncio.Future[str]
    buffer: bytearray = field(default_factory=bytearray)


class SubscribeConnection(asyncio.Protocol):
    """One connection to a server. When it ends, all its subscriptions do, with the reason."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        self._h2.local_settings = h2.settings.Settings(
            client=True,
            initial_values={
                h2.settings.SettingCodes.ENABLE_PUSH: 0,
                h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: _WINDOW_BYTES,
            },
        )
        self._subscriptions: dict[int, Subscription] = {}
        self._transport: Any = None
        self.closed = False

    # for the load

    def subscribe(self, service: str, on_event: Callable[[Event], None], *, index: int = 0) -> Subscription:
        """Raises ConnectionError when the connection takes no more."""
        if self.closed:
            raise ConnectionError("the connection is closed")
        try:
            stream_id = self._h2.get_next_available_stream_id()
            self._h2.send_headers(stream_id, self._headers())
            message = subscribe_request(service, index)
            self._h2.send_data(stream_id, _PREFIX.pack(False, len(message)) + message, end_stream=True)
        except h2.exceptions.H2Error as error:
            raise ConnectionError(f"no further stream: {error}") from None
        subscription = Subscription(stream_id, on_event, self._loop.create_future())
        self._subscriptions[stream_id] = subscription
        self._flush()
        return subscription

    def cancel(self, subscription: Subscription) -> None:
        """End it. Nothing when it has ended."""
        if self._subscriptions.pop(subscription.stream_id, None) is None or self.closed:
            return
        self._h2.reset_stream(subscription.stream_id, error_code=h2.errors.ErrorCodes.CANCEL)
        self._flush()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _headers(self) -> list[tuple[str, str]]:
        host, port = self._transport.get_extra_info("peername")[:2]
        return [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", _PATH),
            (":authority", f"{host}:{port}"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
        ]

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(_CONNECTION_WINDOW_BYTES)
        self._transport.write(_GRPC_BYTE)
        self._flush()

    def data_received(self, data: bytes) -> None:
        try:
            for event in self._h2.receive_data(data):
                self._take(event)
            self._flush()
        except (h2.exceptions.H2Error, ValueError) as error:
            self._end_all(f"not Consul's streaming protocol: {error}")
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_all(f"connection lost: {exc or 'closed by the other side'}")

    def _flush(self) -> None:
        if data := self._h2.data_to_send():
            self._transport.write(data)

    def _take(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.DataReceived):
            self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            if (subscription := self._subscriptions.get(event.stream_id)) is not None:
                _feed(subscription, event.data)
        elif isinstance(event, (h2.events.ResponseReceived, h2.events.TrailersReceived)):
            headers = _texts(event.headers)
            if "grpc-status" in headers or headers.get(":status", "200") != "200":
                said = unquote(headers.get("grpc-message", ""))
                self._end(event.stream_id, f"gRPC status {headers.get('grpc-status', headers.get(':status'))}: {said}")
        elif isinstance(event, h2.events.StreamReset):
            self._end(event.stream_id, f"the stream was reset: {event.error_code}")
        elif isinstance(event, h2.events.StreamEnded):
            self._end(event.stream_id, "the stream ended")
        elif isinstance(event, h2.events.ConnectionTerminated):
            self._end_all("the server closed the connection")
            self.close()

    def _end(self, stream_id: int, reason: str) -> None:
        subscription = self._subscriptions.pop(stream_id, None)
        if subscription is not None and not subscription.ended.done():
            subscription.ended.set_result(reason)

    def _end_all(self, reason: str) -> None:
        self.closed = True
        for stream_id in list(self._subscriptions):
            self._end(stream_id, reason)


def _texts(headers: Iterable[Any]) -> dict[str, str]:
    return {_text(header[0]): _text(header[1]) for header in headers}


def _text(part: bytes | str) -> str:
    return part.decode(errors="replace") if isinstance(part, bytes) else part


def _feed(subscription: Subscription, data: bytes) -> None:
    """Hand on each whole message: a byte that says whether it is compressed, four of its length, and the message."""
    buffer = subscription.buffer
    buffer += data
    while len(buffer) >= _PREFIX.size:
        compressed, length = _PREFIX.unpack_from(buffer)
        if compressed or length > _MAX_MESSAGE_BYTES:
            raise ValueError("a message that is compressed, or over 64 MiB")
        end = _PREFIX.size + length
        if len(buffer) < end:
            return
        message = bytes(buffer[_PREFIX.size : end])
        del buffer[:end]
        subscription.on_event(Event.parse(message))
