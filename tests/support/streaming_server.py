"""A server of Consul's streaming protocol: the byte, HTTP/2, a snapshot, and whatever a test publishes."""

import asyncio
from contextlib import asynccontextmanager

import h2.config
import h2.connection
import h2.events

from hashidrill.products.consul.loads.streams import fields


def event(index, *, end=False, payload=b""):
    body = b"\x08" + bytes([index]) + (b"\x10\x01" if end else b"")
    body += b"\x52" + bytes([len(payload)]) + payload if payload else b""
    return b"\x00" + len(body).to_bytes(4, "big") + body


class StreamingServer:
    """`refuse` answers a call with that gRPC status; `silent` accepts calls and says nothing."""

    def __init__(self):
        self.connections, self.calls, self.cancelled = [], [], 0
        self.refuse, self.silent = "", False
        self.port = 0

    def publish(self, payload, index=9):
        for connection in self.connections:
            for stream_id in list(connection.streams):
                connection.h2.send_data(stream_id, event(index, payload=payload))
            connection.flush()

    def drop(self):
        for connection in self.connections:
            connection.transport.abort()
        self.connections.clear()

    @asynccontextmanager
    async def running(self):
        server = await asyncio.get_running_loop().create_server(lambda: _Connection(self), "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            self.drop()
            server.close()
            await asyncio.sleep(0.05)


class _Connection(asyncio.Protocol):
    def __init__(self, server):
        self.server, self.streams, self.first = server, {}, True
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))

    def connection_made(self, transport):
        self.transport = transport
        self.server.connections.append(self)

    def flush(self):
        self.transport.write(self.h2.data_to_send())

    def data_received(self, data):
        if self.first:
            assert data[:1] == b"\x08"
            data, self.first = data[1:], False
            self.h2.initiate_connection()
        for happened in self.h2.receive_data(data):
            if isinstance(happened, h2.events.RequestReceived):
                assert dict(happened.headers)[b":path"] == b"/subscribe.StateChangeSubscription/Subscribe"
            elif isinstance(happened, h2.events.DataReceived):
                self._call(happened.stream_id, dict(fields(happened.data[5:])))
            elif isinstance(happened, h2.events.StreamReset):
                self.server.cancelled += 1
                self.streams.pop(happened.stream_id, None)
        self.flush()

    def _call(self, stream_id, request):
        self.server.calls.append(request)
        head = [(":status", "200"), ("content-type", "application/grpc")]
        if self.server.refuse:
            status = [("grpc-status", self.server.refuse), ("grpc-message", "no%20leader")]
            self.h2.send_headers(stream_id, [*head, *status], end_stream=True)
            return
        self.h2.send_headers(stream_id, head)
        self.streams[stream_id] = request
        if not self.server.silent:
            self.h2.send_data(stream_id, event(5, payload=b"in the snapshot") + event(5, end=True))
