"""A small Consul: KV and the endpoints that probes ask, on a real socket, with the illnesses that tests need."""

import asyncio
import base64
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web


@dataclass
class FakeConsul:
    """`kv` is what it holds. Nothing is answered until `answering` is set; `kv_status` answers KV with an error.

    `lie` acknowledges writes and keeps none; `drops(n)` says of the write number n whether it is one of those.
    """

    kv: dict = field(default_factory=dict)
    puts: list = field(default_factory=list)
    queries: list = field(default_factory=list)
    peers: list = field(default_factory=list)
    answering: asyncio.Event = field(default_factory=asyncio.Event)
    came: int = 0
    """Requests for keys that have come, answered or not."""
    kv_status: int = 0
    lie: bool = False
    drops: Callable = field(default=lambda _n: False)
    leader: str = "127.0.0.1:8300"
    healthy: bool = True
    url: str = ""
    port: int = 0

    async def _kv(self, request):
        body = await request.read()
        self.came += 1
        await self.answering.wait()
        self.peers.append(request.transport.get_extra_info("peername")[0])
        if self.kv_status:
            return web.Response(status=self.kv_status, text="No cluster leader")
        key = request.match_info["key"]
        if request.method == "PUT":
            self.puts.append((key, body))
            if not (self.lie or self.drops(len(self.puts))):
                self.kv[key] = body
            return web.json_response(True)
        if request.method == "DELETE":
            self.kv = {k: v for k, v in self.kv.items() if not k.startswith(key)}
            return web.json_response(True)
        self.queries.append("&".join(request.query))
        if "recurse" in request.query:
            found = {k: v for k, v in self.kv.items() if k.startswith(key)}
            entries = [{"Key": k, "Value": base64.b64encode(v).decode()} for k, v in found.items()]
            return web.json_response(entries) if entries else web.Response(status=404)
        return web.Response(body=self.kv[key]) if key in self.kv else web.Response(status=404)

    async def _leader(self, request):
        await self.answering.wait()
        return web.json_response(self.leader)

    async def _health(self, request):
        return web.json_response({"Healthy": self.healthy}, status=200 if self.healthy else 429)

    @asynccontextmanager
    async def running(self, port=0):
        app = web.Application()
        app.router.add_route("*", "/v1/kv/{key:.*}", self._kv)
        app.router.add_get("/v1/status/leader", self._leader)
        app.router.add_get("/v1/operator/autopilot/health", self._health)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        self.port = runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.answering.set()
        try:
            yield self
        finally:
            self.answering.set()
            await site.stop()
            for _ in range(5):  # what was accepted last becomes a connection, which the clean-up then closes
                await asyncio.sleep(0)
            await runner.cleanup()


@asynccontextmanager
async def resets_reused_connections():
    """A server that answers the first request of a connection and, having read the second, resets the connection.

    Yields its URL and the list of bodies that reached it.
    """
    bodies = []

    async def serve(reader, writer):
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].split()[0])
                bodies.append(await reader.readexactly(length))
                if len(bodies) > 1:
                    writer.transport.abort()
                    return
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ntrue")
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", bodies
