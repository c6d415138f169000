"""The part of an API server and its kubelets that forwards ports of pods, over real sockets.

It speaks `v4.channel.k8s.io` as k8s.io/kubelet does: the port on both channels first, then data, then the end.
"""

import asyncio
import struct
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, urlsplit

import wsproto
from wsproto import events

from scripted_server import serving

PROTOCOL = "v4.channel.k8s.io"


class FakeForwards:
    """`pods`: the local port that an agent of that pod has. `status` refuses everything; `dead` ends all at once."""

    def __init__(self):
        self.pods, self.status, self.dead = {}, 0, False
        self.asked, self.tokens = [], set()
        self.url = ""
        self._writers = set()

    @asynccontextmanager
    async def running(self):
        async with serving(self._serve) as self.url:
            yield self

    def break_all(self):
        """As an API server that ends: every connection is reset."""
        for writer in [*self._writers]:
            writer.transport.abort()

    async def _serve(self, reader, writer):
        self._writers.add(writer)
        try:
            await self._forward(reader, writer)
        finally:
            self._writers.discard(writer)

    async def _forward(self, reader, writer):
        if self.dead:
            return
        socket = wsproto.WSConnection(wsproto.ConnectionType.SERVER)
        agent = back = None
        while data := await reader.read(65536):
            socket.receive_data(data)
            for event in socket.events():
                if isinstance(event, events.Request):
                    there, agent = await self._joined(event, socket, writer)
                    if agent is None:
                        return
                    back = asyncio.create_task(self._back(there, socket, writer))
                elif isinstance(event, events.BytesMessage):
                    assert event.data[:1] == b"\0", "data is on channel 0"
                    agent.write(event.data[1:])
                elif isinstance(event, events.CloseConnection | events.Ping):
                    writer.write(socket.send(event.response()))
        if agent is not None:
            agent.close()
            back.cancel()

    async def _joined(self, request, socket, writer):
        """A connection to the pod's port; (None, None) for one that is refused, or to which no one listens."""
        if refused := self._refusal(request):
            writer.write(socket.send(events.RejectConnection(status_code=refused)))
            return None, None
        path, query = request.target.partition("?")[::2]
        pod, port = path.split("/")[-2], int(parse_qs(query)["ports"][0])
        writer.write(socket.send(events.AcceptConnection(subprotocol=PROTOCOL)))
        for channel in (0, 1):
            writer.write(self._message(socket, channel, struct.pack("<H", port)))
        try:
            return await asyncio.open_connection("127.0.0.1", self.pods[pod])
        except OSError as error:
            writer.write(self._message(socket, 1, f"error forwarding port {port}: {error}".encode()))
            return None, None

    def _refusal(self, request):
        path = urlsplit(request.target).path
        pod = path.split("/")[-2]
        self.asked.append(pod)
        self.tokens |= {value for name, value in request.extra_headers if name.lower() == b"authorization"}
        assert path == f"/api/v1/namespaces/consul/pods/{pod}/portforward"
        assert request.subprotocols == [PROTOCOL]
        return self.status or (0 if pod in self.pods else 404)

    @staticmethod
    def _message(socket, channel, data):
        return socket.send(events.BytesMessage(bytes([channel]) + data))

    async def _back(self, there, socket, writer):
        while data := await there.read(65536):
            writer.write(self._message(socket, 0, data))
        writer.close()  # without a goodbye, as kubelets do
