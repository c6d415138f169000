"""Link faults through a real toxiproxy of somebody else: measured through its proxies, and only our toxics go."""

import http.client
import json
import threading
import time
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import anyio
import pytest

from hashidrill.core.protocols import registry
from hashidrill.core.protocols.capabilities import EstateLinks
from hashidrill.staging.attach.http import Login, Wire
from hashidrill.staging.attach.links import HostLinks, hello_of_http, links_of
from hashidrill.testing.fakes import FakeDatacenter
from hashidrill.testing.faults import check_fault
from ports import free_ports
from toxiproxies import served

pytestmark = [pytest.mark.live, pytest.mark.long]
CASES = (
    ("network.latency", {"delay": "300ms"}),
    ("network.reset", {}),
    ("network.timeout", {}),
    ("network.timeout", {"timeout": "400ms"}),
)


class Agent(BaseHTTPRequestHandler):
    """Answers as an agent's API does."""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'"10.73.0.11:8300"')

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    """With room for as many connections at once as an agent has: a full backlog looks like a link that hangs."""

    request_queue_size = 128
    daemon_threads = True


@pytest.fixture(scope="module")
def estate(toxiproxy):
    """(port of the agent, port of the proxy, URL of the API), of a toxiproxy with a toxic and a proxy of others."""
    api, proxy, other = free_ports(3)
    agent = Server(("127.0.0.1", 0), Agent)
    threading.Thread(target=agent.serve_forever, daemon=True).start()
    port = agent.server_address[1]
    try:
        with served(toxiproxy.path, "127.0.0.1", api):
            theirs = {"name": "of-ben", "type": "latency", "stream": "upstream", "attributes": {"latency": 7}}
            for name, listen, upstream in (("web", proxy, f"127.0.0.1:{port}"), ("theirs", other, "127.0.0.9:1")):
                body = {"name": name, "listen": f"127.0.0.1:{listen}", "upstream": upstream, "enabled": True}
                ask(api, "POST", "/proxies", body)
                ask(api, "POST", f"/proxies/{name}/toxics", theirs)
            yield port, proxy, api
    finally:
        agent.shutdown()
        agent.server_close()


def ask(port, method, path, body=None):
    """As its operators would, by another client than ours."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request(method, path, None if body is None else json.dumps(body))
        answer = connection.getresponse()
        said = answer.read()
        assert answer.status < 300, said
        return said
    finally:
        connection.close()


def took_s(port):
    began = time.monotonic()
    ask(port, "GET", "/v1/status/leader")
    return time.monotonic() - began


@pytest.mark.parametrize(("kind", "params"), CASES)
def test_it_keeps_its_contract_through_the_proxy_and_touches_nothing_of_others(kind, params, estate):
    port, _, api = estate
    before = json.loads(ask(api, "GET", "/proxies"))

    async def main():
        async with Wire(Login("toxiproxy", f"http://127.0.0.1:{api}")) as wire:
            links = {name: one for name, one in (await links_of(wire)).items() if one.leads_to("x", "127.0.0.1")}
            assert set(links) == {"web"}
            world = FakeDatacenter()
            hello = partial(hello_of_http, f"http://127.0.0.1:{port}", "/v1/status/leader")
            world.hosts["consul-1"].parts = {EstateLinks: HostLinks("x", links, wire, "run-1", lambda _: hello())}
            cls = registry.fault(kind)
            fault = cls(cls.Params.model_validate({**params, "port": port}), world)
            return await check_fault(fault, world.target("consul-1"))

    report = anyio.run(main)
    assert json.loads(ask(api, "GET", "/proxies")) == before
    assert "toxics in 1 of 1" in report.present.measured
    assert report.present.figures["links"] == 1


def test_a_client_of_the_link_feels_it_while_it_is_in_force(estate):
    """Not our observer: an ordinary client of the proxy, before, while and after."""
    port, proxy, api = estate

    async def main():
        async with Wire(Login("toxiproxy", f"http://127.0.0.1:{api}")) as wire:
            links = HostLinks("x", await links_of(wire), wire, "run-1", lambda _: b"")
            toxic = registry.fault("network.latency")
            params = toxic.Params.model_validate({"delay": "400ms", "port": port})
            names = links.toxic_names("0-slow", 1)
            free_s = took_s(proxy)
            await links.add_toxics("web", names, toxic(params, None).toxics())
            slow_s = took_s(proxy)
            await links.remove_toxics("web", names)
            return free_s, slow_s, took_s(proxy)

    before_s, during_s, after_s = anyio.run(main)
    assert during_s > 0.39
    assert min(before_s, after_s) < during_s
