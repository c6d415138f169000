"""A toxiproxy's API in memory, and links through it: what a connection meets is what its proxies hold just then."""

import json
import random
from urllib.parse import unquote

import httpx2

from hashidrill.core.protocols.capabilities import Toxic
from hashidrill.staging.attach.http import Login, Wire
from hashidrill.staging.attach.links import HostLinks, link_of
from hashidrill.testing.fakes import pass_through

API = "http://10.73.0.90:8474"


class FakeToxiproxy:
    """`proxies` by name, as its API shows them; `asked` has what changed anything."""

    def __init__(self, **upstreams):
        self.proxies = {
            name.replace("_", "-"): {
                "name": name.replace("_", "-"),
                "listen": f"[::]:{21000 + number}",
                "upstream": upstream,
                "enabled": True,
                "toxics": [],
            }
            for number, (name, upstream) in enumerate(upstreams.items())
        }
        self.asked = []
        self.refuses = None

    def toxics(self, proxy):
        return {one["name"]: one for one in self.proxies[proxy]["toxics"]}

    def put(self, proxy, name, kind="latency", **attributes):
        """By somebody else."""
        self.proxies[proxy]["toxics"].append(
            {"name": name, "type": kind, "stream": "downstream", "toxicity": 1.0, "attributes": attributes}
        )

    def wire(self):
        return Wire(Login("toxiproxy", API), transport=httpx2.MockTransport(self._answer))

    def _answer(self, request):
        path = [unquote(part) for part in request.url.raw_path.decode().split("/")[1:]]
        if request.method != "GET":
            self.asked.append((request.method, *path))
        if self.refuses == request.method:
            return httpx2.Response(500, text="it is on fire")
        if path == ["proxies"]:
            return httpx2.Response(200, json=self.proxies)
        proxy = self.proxies.get(path[1])
        if proxy is None:
            return httpx2.Response(404, json={"error": "proxy not found"})
        if request.method == "GET":
            return httpx2.Response(200, json=proxy)
        return self._changed(request, proxy, path)

    def _changed(self, request, proxy, path):
        if request.method == "POST":
            toxic = json.loads(request.content)
            if any(one["name"] == toxic["name"] for one in proxy["toxics"]):
                return httpx2.Response(409, json={"error": "toxic already exists"})
            proxy["toxics"].append(toxic)
            return httpx2.Response(200, json=toxic)
        left = [one for one in proxy["toxics"] if one["name"] != path[3]]
        found = len(left) < len(proxy["toxics"])
        proxy["toxics"] = left
        return httpx2.Response(204 if found else 404)


class FakeLinks(HostLinks):
    """As the real ones, but that a connection is played, with what the proxy holds now."""

    def __init__(self, host, address, toxiproxy, *, run="run-1", knows=(8500,)):
        links = {name: link_of(one, "10.73.0.90") for name, one in toxiproxy.proxies.items()}
        mine = {name: link for name, link in links.items() if link.leads_to(host, address)}
        super().__init__(host, mine, toxiproxy.wire(), run, lambda port: b"hello" if port in knows else b"")
        self._toxiproxy, self._dice = toxiproxy, random.Random(7)

    async def exchange_through(self, proxy, request):
        held = [
            Toxic(one["type"], one["attributes"], one["stream"], one["toxicity"])
            for one in self._toxiproxy.proxies[proxy]["toxics"]
        ]
        return [
            pass_through([one for one in held if self._dice.random() < one.toxicity], request, self._dice, 0.001)
            for _ in range(request.connections)
        ]
