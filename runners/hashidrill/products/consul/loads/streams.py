"""`consul.streams`: thousands of subscriptions to a service's health, directly at the servers, over few connections.

It opens the streams that agents would open for their views, but needs no agents: one process opens a datacenter's
worth of streams. It speaks Consul's own streaming protocol. On the server's RPC port the byte 0x08 announces gRPC,
which is HTTP/2 without TLS; each call of /subscribe.StateChangeSubscription/Subscribe is one stream. Consul's
subscribe.proto defines the messages; the few fields used here have the same numbers in 1.10.3 (proto/pbsubscribe)
and 1.22.2 (proto/private/pbsubscribe).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar
from urllib.parse import unquote, urlsplit

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
from pydantic import Field

from hashidrill.core.experiment.strict import Strict
from hashidrill.core.loads.base import LoadContext, Timeout
from hashidrill.core.loads.http_client import connected
from hashidrill.core.loads.schedule import CANCELLED
from hashidrill.core.protocols.abc import EmitOperation, LoadCost, Operation, Reason
from hashidrill.core.protocols.rights import Right
from hashidrill.core.units import Duration, Quantity, Rate
from hashidrill.products.consul import rights
from hashidrill.products.consul.loads.base import ConsulLoad, newest_ns
from hashidrill.products.consul.loads.kv import Via
from hashidrill.products.consul.loads.views import Count, Establish, Held, Service

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
    """(number, value) of each field of a protobuf message. Raises ValueError for any other bytes."""
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
    """One message of a stream: Raft's `index` and the kind of payload; `raw` holds the whole message."""

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
    """One stream. `on_event` is called for each event; `ended` receives the reason when the stream ends."""

    stream_id: int
    on_event: Callable[[Event], None]
    ended: asyncio.Future[str]
    buffer: bytearray = field(default_factory=bytearray)


class SubscribeConnection(asyncio.Protocol):
    """One connection to a server. When the connection ends, all its subscriptions end with the same reason."""

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

    # called by the load

    def subscribe(self, service: str, on_event: Callable[[Event], None], *, index: int = 0) -> Subscription:
        """Raises ConnectionError if the connection is closed or allows no further stream."""
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
        """Ends the subscription; does nothing if it has already ended."""
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

    # called by asyncio

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
            headers = {_text(header[0]): _text(header[1]) for header in event.headers}
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


def _text(part: bytes | str) -> str:
    return part.decode(errors="replace") if isinstance(part, bytes) else part


def _feed(subscription: Subscription, data: bytes) -> None:
    """Passes on each complete message, which follows one byte for compression and four bytes for its length."""
    buffer = subscription.buffer
    buffer += data
    while len(buffer) >= _PREFIX.size:
        compressed, length = _PREFIX.unpack_from(buffer)
        if compressed or length > _MAX_MESSAGE_BYTES:
            raise ValueError("a message is compressed, or larger than 64 MiB")
        end = _PREFIX.size + length
        if len(buffer) < end:
            return
        message = bytes(buffer[_PREFIX.size : end])
        del buffer[:end]
        subscription.on_event(Event.parse(message))


_SAMPLE_EVERY_S = 1.0
_AGAIN_AFTER_S = 1.0
_NS = 1_000_000_000


class Streams(ConsulLoad):
    """Opens `count` streaming subscriptions, spread over the servers that `via` selects.

    It also writes the signals `LOAD.open`, `LOAD.events` (per second) and `LOAD.lag` (99th percentile of the time from
    the sending of a change by `consul.service.churn` to the arrival of its event).
    """

    kind: ClassVar[str] = "consul.streams"
    not_by_address: ClassVar[str] = "it opens streams at the servers' port 8300, which requires an agent's certificate"
    asks: ClassVar[str] = "server"
    signals: ClassVar[Mapping[str, type[Quantity] | None]] = {
        "open": None,
        "establish": Rate,
        "events": Rate,
        "lag": Duration,
    }

    class Params(Strict):
        """An operation is the opening of a stream, up to the end of its first snapshot. A stream that ends is opened
        again.

        `events` is the rate of the events after the snapshots. `lag` is the 99th percentile of the delay between the
        sending of a change and its event, for changes by hashidrill's loads.
        """

        count: Annotated[Count, Field(description="The number of streams at a level of 100%")]
        service: Service = "hashidrill"
        connections: Annotated[int, Field(ge=1, le=1000, description="TCP connections to each server")] = 1
        port: Annotated[int, Field(ge=1, le=65535, description="The servers' RPC port")] = RPC_PORT
        establish: Establish = Rate("100/s")
        via: Via = "consul:servers"
        timeout: Timeout = Duration("30s")

    params: Params

    @classmethod
    def rights(cls, name: str, params: Any) -> Sequence[Right]:  # noqa: ARG003 - the signature of all loads
        return (rights.right("service", params.service), rights.right("node_prefix"))

    def __init__(self, name: str, params: Params, context: LoadContext) -> None:
        super().__init__(name, params, context)
        self._held = Held(context, params.count, params.establish, self._hold)
        self._connections: dict[tuple[str, int], SubscribeConnection] = {}
        self._turns: dict[tuple[str, int], asyncio.Lock] = {}
        self._events = 0
        self._lags_ns: list[int] = []

    @classmethod
    def cost(cls, params: Params) -> LoadCost:
        return LoadCost(opened_per_s=params.establish)

    async def run(self, emit: EmitOperation) -> None:
        self._emit = emit
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._sample())
                await self._held.run()
        finally:
            for connection in self._connections.values():
                connection.close()
            await asyncio.sleep(0)  # the transports close in the loop's next turn

    async def _hold(self, slot: int, due_ns: int) -> None:
        clock = self.context.clock
        servers = [urlsplit(endpoint).hostname or "" for endpoint in self.context.endpoints]
        server, number = servers[slot % len(servers)], slot // len(servers) % self.params.connections
        start_ns, outcome, error, reason = clock.now_ns(), "unknown", CANCELLED, Reason.CANCELLED.value
        connection, stream = None, _Stream(self)
        try:
            try:
                async with self._opening(due_ns):
                    connection = await self._connection(server, number)
                    stream.subscription = connection.subscribe(self.params.service, stream.event)
                    first: list[asyncio.Future[Any]] = [stream.subscription.ended, stream.opened]
                    await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
                if stream.opened.done():
                    outcome, error, reason = "ok", "", ""
                else:
                    outcome, error, reason = "fail", stream.subscription.ended.result(), Reason.NO_ANSWER
            except TimeoutError:
                outcome, error, reason = "fail", f"no snapshot within {self.params.timeout}", Reason.NO_ANSWER
            except OSError as failure:
                outcome, error, reason = "fail", f"could not connect: {failure}", Reason.NOT_SENT
            finally:
                key = f"{server}:{self.params.port}#{slot}"
                self._emit(
                    Operation(self.name, due_ns, start_ns, clock.now_ns(), outcome, key, error=error, reason=reason)
                )
            if outcome == "ok" and stream.subscription is not None:
                self._held.opened(slot)
                await stream.subscription.ended
                self._held.closed(slot)
        finally:
            if connection is not None and stream.subscription is not None:
                connection.cancel(stream.subscription)
        await asyncio.sleep(_AGAIN_AFTER_S)

    @asynccontextmanager
    async def _opening(self, due_ns: int) -> AsyncIterator[None]:
        with self.context.waiting.operation(due_ns):
            async with asyncio.timeout(float(self.params.timeout)):
                yield

    async def _connection(self, server: str, number: int) -> SubscribeConnection:
        place = server, number
        async with self._turns.setdefault(place, asyncio.Lock()):
            known = self._connections.get(place)
            if known is None or known.closed:
                local = None if self.context.local_address is None else (self.context.local_address, 0)
                known = await connected(SubscribeConnection, server, self.params.port, local=local)
                self._connections[place] = known
            return known

    def came(self, sent_ns: int | None) -> None:
        """Counts an event outside a snapshot; `sent_ns` is the send time of its change, if known."""
        self._events += 1
        if sent_ns is not None:
            self._lags_ns.append(self.context.clock.now_ns() - sent_ns)

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(_SAMPLE_EVERY_S)
            events, self._events = self._events, 0
            lags_ns, self._lags_ns = self._lags_ns, []
            self.context.sample("events", events / _SAMPLE_EVERY_S)
            if lags_ns:
                self.context.sample("lag", sorted(lags_ns)[int(0.99 * (len(lags_ns) - 1))] / _NS)


class _Stream:
    """Separates the snapshots of a stream from its other events."""

    def __init__(self, load: Streams) -> None:
        self._load = load
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.subscription: Subscription | None = None
        self._in_snapshot = True
        self._newest_ns = 0

    def event(self, event: Event) -> None:
        # a deregistration repeats the mark of the previous change, so only a new mark gives this event's send time
        sent_ns = newest_ns(event.raw)
        news, self._newest_ns = sent_ns > self._newest_ns, max(sent_ns, self._newest_ns)
        if event.new_snapshot:
            self._in_snapshot = True
        elif event.end_of_snapshot:
            self._in_snapshot = False
            if not self.opened.done():
                self.opened.set_result(None)
        elif not self._in_snapshot:
            self._load.came(sent_ns if news else None)
