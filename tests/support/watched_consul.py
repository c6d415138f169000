"""As much of an agent as watches and views ask for: the health of a service, a watched key, indexes that go back."""

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web


@dataclass
class WatchedConsul:
    """`cache` holds the views that are open; `restart()` forgets them, as a restarted agent does."""

    index: int = 10
    state: bytes = b"[]"
    backend: str = "streaming"
    status: int = 200
    cache: set = field(default_factory=set)
    services: dict = field(default_factory=dict)
    checks: dict = field(default_factory=dict)
    waiting: int = 0
    asked: list = field(default_factory=list)
    puts: list = field(default_factory=list)
    registered_at_final_reads: list = field(default_factory=list)
    url: str = ""
    missing: int = 404
    delay_s: float = 0.0

    def __post_init__(self):
        self._changed = asyncio.Condition()

    async def change(self, state, index=None):
        async with self._changed:
            self.state, self.index = state, self.index + 1 if index is None else index
            self._changed.notify_all()

    def restart(self):
        self.cache.clear()

    async def _read(self, request):
        query = request.query
        self.asked.append((request.path_qs, query.get("index")))
        if "consistent" in query:
            self.registered_at_final_reads.append(len(self.services))
        await asyncio.sleep(self.delay_s)
        if self.status != 200:
            return web.Response(status=self.status, text="rate limit exceeded")
        headers = {"X-Consul-Query-Backend": self.backend}
        if "cached" in query:
            headers["X-Cache"] = "HIT" if query["tag"] in self.cache else "MISS"
            self.cache.add(query["tag"])
        if int(query.get("index", 0)) >= self.index:  # Consul waits only for an index that is above
            wait_s = float(query["wait"].removesuffix("ms")) / 1e3
            self.waiting += 1
            try:
                async with asyncio.timeout(wait_s), self._changed:
                    await self._changed.wait_for(lambda: self.index > int(query["index"]))
            except TimeoutError:
                pass
            finally:
                self.waiting -= 1
        return web.Response(body=self.state, headers={**headers, "X-Consul-Index": str(self.index)})

    async def _put(self, request):
        body = await request.text()
        await asyncio.sleep(self.delay_s)
        self.puts.append((request.path, body))
        parts = request.path.split("/")
        if parts[2] == "catalog":
            told = json.loads(body)
            if parts[-1] == "register":
                self.services[told["Service"]["ID"]] = told
                self.checks[told["Check"]["CheckID"]] = told["Check"]["Status"]
            else:
                self.services.pop(told["ServiceID"], None)
        elif parts[-1] == "register":
            self.services[json.loads(body)["ID"]] = json.loads(body)
            self.checks[json.loads(body)["Check"]["CheckID"]] = "passing"
        elif "deregister" in parts:
            if self.services.pop(parts[-1], None) is None:
                return web.Response(status=self.missing, text="Unknown service ID")
            self.checks.pop(f"service:{parts[-1]}")
        elif parts[-1] not in self.checks:
            return web.Response(status=404, text="Unknown check ID")
        else:
            self.checks[parts[-1]] = json.loads(body)["Status"]
        return web.Response()

    @asynccontextmanager
    async def running(self):
        app = web.Application()
        app.router.add_get("/v1/health/service/{name}", self._read)
        app.router.add_get("/v1/kv/{key:.*}", self._read)
        app.router.add_put("/v1/agent/{rest:.*}", self._put)
        app.router.add_put("/v1/catalog/{rest:.*}", self._put)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()
