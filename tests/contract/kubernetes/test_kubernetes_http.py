"""The same API server behind real HTTP: TLS by the kubeconfig's CA, its token, and calls that end."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import anyio
import pytest
import trustme

from fake_kubernetes import FakeKubernetes
from hashidrill.kubernetes import client
from hashidrill.kubernetes.chaos_mesh import objects
from hashidrill.kubernetes.client import ClusterError, cluster_of
from hashidrill.kubernetes.objects import Owned, ours
from hashidrill.kubernetes.vocabulary import CHAOS_MESH
from hashidrill.testing.fakes import FakeDatacenter

TOKEN = "a-token-of-ours"
OWNED = Owned("run-1", "staging", "me", 60.0)
SPEC = {"action": "pod-failure"}


class Server:
    """`hold` keeps every answer back until it is set."""

    def __init__(self, folder):
        self.fake = FakeKubernetes(FakeDatacenter(), pods=["consul-1"])
        self.fake.token = TOKEN
        self.hold = None
        ca, outer = trustme.CA(), self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *words):
                pass

            def handle_any(self):
                if outer.hold is not None:
                    outer.hold.wait(30)
                    self.close_connection = True
                    return
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                parts = urlsplit(self.path)
                token = self.headers.get("Authorization", "")
                code, data = outer.fake.answer(self.command, parts.path, parse_qs(parts.query), body, token)
                sent = json.dumps(data).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(sent)))
                self.end_headers()
                self.wfile.write(sent)

            do_GET = do_POST = do_DELETE = handle_any  # noqa: N815 - the names that http.server calls

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        ca.issue_cert("127.0.0.1").configure_cert(context)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()
        self.ca, self.folder = ca, folder

    @property
    def url(self):
        return f"https://127.0.0.1:{self.server.server_port}"

    def cluster(self, *, token=TOKEN, ca=None, url=""):
        path = self.folder / "kubeconfig"
        pem = base64.b64encode((ca or self.ca).cert_pem.bytes()).decode()
        server = {"server": url or self.url, "certificate-authority-data": pem}
        path.write_text(
            json.dumps(
                {
                    "current-context": "here",
                    "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "consul"}}],
                    "clusters": [{"name": "c", "cluster": server}],
                    "users": [{"name": "u", "user": {"token": token}}],
                }
            )
        )
        return cluster_of({"kubeconfig": str(path)})

    def close(self):
        if self.hold is not None:
            self.hold.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(10)


@pytest.fixture
def server(tmp_path):
    one = Server(tmp_path)
    yield one
    one.close()


def asked(cluster, what):
    async def go():
        try:
            return await what(cluster)
        finally:
            await cluster.aclose()

    return anyio.run(go)


@pytest.mark.long
def test_an_object_is_created_found_by_its_labels_and_gone(server):
    async def go(cluster):
        pod = objects.of_pod(cluster, OWNED, "consul-1", netem=False)
        made = pod.object_of("PodChaos", "0-x")
        await pod.check("PodChaos", SPEC)
        await pod.create(made, SPEC, once=False)
        found = await ours(cluster, objects.OBJECTS, "staging")
        said = await pod.said(made)
        await pod.remove(made)
        return (
            found,
            said,
            await ours(cluster, objects.OBJECTS, "staging"),
            [one["metadata"]["name"] for one in await cluster.listed("v1", "Pod")],
        )

    found, said, after, pods = asked(server.cluster(), go)
    assert found == [("PodChaos", OWNED.named("0-x"), "run-1")]
    assert said == "its controller says AllInjected"
    assert (after, pods) == ([], ["consul-1"])
    assert server.fake.world.hosts["consul-1"].process is not None


def test_another_token_and_another_ca_are_told_apart(server):
    with pytest.raises(ClusterError, match="log in again") as refused:
        asked(server.cluster(token="wrong"), lambda cluster: cluster.listed("v1", "Pod"))
    assert refused.value.status == 401
    assert "wrong" not in str(refused.value).replace("HTTP", "")
    with pytest.raises(ClusterError, match=r"(?i)certificate"):
        asked(server.cluster(ca=trustme.CA()), lambda cluster: cluster.listed("v1", "Pod"))


@pytest.mark.long
def test_a_server_that_never_answers_ends_each_kind_of_call(server, monkeypatch):
    monkeypatch.setattr(client, "ANSWERS_WITHIN_S", 0.3)
    server.hold = threading.Event()
    for what in (
        lambda cluster: cluster.listed("v1", "Pod"),
        lambda cluster: cluster.get(CHAOS_MESH.api, "PodChaos", "x"),
        lambda cluster: cluster.create(CHAOS_MESH.api, "PodChaos", {"metadata": {"name": "x"}, "spec": {}}),
        lambda cluster: cluster.delete(CHAOS_MESH.api, "PodChaos", "x"),
    ):
        with pytest.raises(ClusterError, match=r"no answer within 0\.3s"):
            asked(server.cluster(), what)


def test_nobody_there_is_told_with_what_to_try(server):
    with pytest.raises(ClusterError, match=r"does `kubectl --context here -n consul get pods` work\?"):
        asked(server.cluster(url="https://127.0.0.1:1"), lambda cluster: cluster.listed("v1", "Pod"))
