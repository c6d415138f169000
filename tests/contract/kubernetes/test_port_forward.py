"""Agents in pods that this machine has no route to: reached through the API server, over real local sockets."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager

import anyio
import httpx2
import pytest
import trustme

from attached_estates import TOKEN, FakeEstate, attach_file
from fake_kubernetes import FakeKubernetes
from fake_port_forward import FakeForwards
from hashidrill.core.errors import AttachError
from hashidrill.core.experiment.model import DatacenterSpec
from hashidrill.core.protocols.capabilities import AgentApi
from hashidrill.core.util.tls import Tls
from hashidrill.kubernetes import port_forward
from hashidrill.kubernetes.attach_capabilities import located, reached, watched
from hashidrill.kubernetes.client import Cluster
from hashidrill.staging.attach.datacenter import AttachedDatacenter, attach
from hashidrill.staging.attach.http import Login, UnansweredError, Wire
from hashidrill.staging.attach.target import AttachTarget, read_target
from hashidrill.testing.fakes import FakeDatacenter
from http_scripts import Answer, Scripted

SERVERS = ["consul-1", "consul-2", "consul-3"]
PART = "  kubernetes: {{kubeconfig: kube, context: staging, namespace: consul, consul: {}}}\n"
BIG = 3_000_000


class There:
    """Three Consul servers in pods, each behind a local port that only the API server leads to."""

    def __init__(self, folder, stack, *, consul="{token_file: token}"):
        self.folder, self.fake = folder, FakeEstate(FakeDatacenter(servers=3))
        self.kubernetes = FakeKubernetes(self.fake.world, pods=SERVERS)
        self.routes, self.told = set(), []
        self.kubernetes.unrouted = self.unrouted
        self.forwards = FakeForwards()
        self.agents = {name: stack.enter_context(self.agent(name)) for name in SERVERS}
        self.forwards.pods = {name: one.port for name, one in self.agents.items()}
        self.file = attach_file(folder, PART.format(consul))

    async def unrouted(self, login, url):
        return "" if url in self.routes else "no route"

    def agent(self, name):
        def answer(_number, asked):
            if asked.path.startswith("/big"):
                return Answer(body=b"x" * BIG)
            if asked.path.startswith("/name"):
                return Answer(body=name.encode() + asked.body[-1:])
            url = f"http://{self.fake.world.hosts[name].address}:8500{asked.path}"
            said = self.fake._answer("consul", httpx2.Request(asked.method, url, headers=asked.headers))
            return Answer(said.status_code, said.content)

        return Scripted(answer)

    @asynccontextmanager
    async def reached(self):
        async with self.forwards.running():
            kubeconfig = {
                "current-context": "staging",
                "contexts": [{"name": "staging", "context": {"cluster": "c", "user": "u", "namespace": "other"}}],
                "clusters": [{"name": "c", "cluster": {"server": self.forwards.url}}],
                "users": [{"name": "u", "user": {"token": "ours"}}],
            }
            (self.folder / "kube").write_text(json.dumps(kubeconfig))
            target = await located(read_target(self.file, {}), self.kubernetes.cluster)
            handed = AttachTarget.received(json.loads(json.dumps(target.handed_over())))  # as the engine gets it
            async with reached(handed, self.told.append) as target:
                yield target

    def refused(self):
        async def main():
            async with self.reached():
                pytest.fail("it is reached")

        with pytest.raises(AttachError) as caught:
            anyio.run(main)
        return str(caught.value)


@pytest.fixture
def build(tmp_path):
    with ExitStack() as stack:
        yield lambda **said: There(tmp_path, stack, **said)


@pytest.fixture
def there(build):
    return build()


async def name_at(wire, url, body=b""):
    return (await wire.request("PUT", "/name", url=url, body=body, timeout_s=10)).body.decode()


@asynccontextmanager
async def attached(target):
    async with AsyncExitStack() as stack:
        yield await attach(target, stack)


def test_without_a_route_each_agent_is_asked_through_its_own_pod_and_one_line_says_so(there):
    async def main():
        async with there.reached() as target, attached(target) as (estate, wires):
            urls = {name: host.urls["consul"] for name, host in estate.hosts.items()}
            return urls, {name: await name_at(wires["consul"], urls[name]) for name in SERVERS}, estate

    urls, names, estate = anyio.run(main)
    assert urls.pop("client-1") == "http://10.73.0.31:8500", "it is no pod"
    assert names == {name: name for name in SERVERS}
    assert all(url.startswith("http://127.0.0.1:") for url in urls.values())
    assert [estate.hosts[name].address for name in SERVERS] == ["10.73.0.11", "10.73.0.12", "10.73.0.13"]
    pods = ", ".join(f"http://10.73.0.1{number}:8500" for number in (1, 2, 3))
    why = f"no consul answers from here at {pods} (no route)"
    assert there.told == [f"datacenter.kubernetes.consul: {why}: forwarded through {there.forwards.url}"]
    assert f"consul: forwarded through the API server: {why}" in estate.notes
    assert there.forwards.tokens == {b"Bearer ours"}


def test_with_a_route_to_one_pod_nothing_is_forwarded(there):
    """The one that answers is asked. Another may just be down: a forward would hide that."""
    there.routes = {"http://10.73.0.12:8500"}

    async def main():
        async with there.reached() as target:
            return target.logins["consul"]

    login = anyio.run(main)
    assert (login.address, login.forwards) == ("http://10.73.0.12:8500", {})
    assert (there.told, there.forwards.asked) == ([], [])


def test_answers_and_bodies_larger_than_a_message_arrive_whole_on_many_connections_at_once(there):
    async def main():
        async with there.reached() as target, Wire(target.logins["consul"]) as wire, anyio.create_task_group() as group:
            url, got = target.logins["consul"].forwards["consul-2"], []

            async def ask():
                got.append(len((await wire.request("GET", "/big", url=url, timeout_s=20)).body))

            for _ in range(8):
                group.start_soon(ask)
            got.append(await name_at(wire, url, b"y" * BIG))
        return got

    got = anyio.run(main)
    assert sorted(map(str, got)) == [str(BIG)] * 8 + ["consul-2y"]


@pytest.mark.lie
def test_an_agent_that_is_down_does_not_answer_though_the_forward_accepts(there):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        there.forwards.pods["consul-3"] = closed.getsockname()[1]

    async def main():
        async with there.reached() as target, Wire(target.logins["consul"]) as wire:
            with pytest.raises(UnansweredError):
                await name_at(wire, target.logins["consul"].forwards["consul-3"])
            del there.forwards.pods["consul-2"]
            with pytest.raises(UnansweredError):
                await name_at(wire, target.logins["consul"].forwards["consul-2"])

    anyio.run(main)
    assert len(there.told) == 1, "the way to the pods works"


def test_a_forward_follows_a_pod_of_a_daemon_set_that_comes_back_with_another_name(there, monkeypatch):
    pods = there.kubernetes.pods
    for name, pod in pods.items():
        pod["metadata"]["ownerReferences"][0]["kind"], pod["spec"]["nodeName"] = "DaemonSet", f"node-of-{name}"

    async def main():
        async with there.reached() as target, Wire(target.logins["consul"]) as wire:
            url = target.logins["consul"].forwards["consul-1"]
            assert await name_at(wire, url) == "consul-1"
            pods["consul-x"] = pods.pop("consul-1")
            pods["consul-x"]["metadata"]["name"] = "consul-x"
            there.forwards.pods["consul-x"] = there.forwards.pods.pop("consul-1")
            there.forwards.break_all()
            await anyio.sleep(0.5)  # until our own connections know
            return [await name_at(wire, url) for _ in range(2)]

    async def listed(*_):
        return list(pods.values())

    monkeypatch.setattr(Cluster, "listed", listed)
    assert anyio.run(main) == ["consul-1", "consul-1"], "the agent that is there now"
    assert len(there.told) == 1, "nothing broke"


def test_a_forward_that_breaks_is_made_again_and_the_pod_that_was_replaced_is_followed(there, monkeypatch):
    monkeypatch.setattr(port_forward, "_AGAIN_WITHIN_S", 0.2)

    async def main():
        async with there.reached() as target, Wire(target.logins["consul"]) as wire:
            url = target.logins["consul"].forwards["consul-1"]
            assert await name_at(wire, url) == "consul-1"
            there.forwards.pods["consul-1"] = there.agents["consul-2"].port  # a new pod of that name
            there.forwards.break_all()
            there.forwards.dead = True
            for _ in range(2):
                with pytest.raises(UnansweredError):
                    await name_at(wire, url)
            there.forwards.dead = False
            return await name_at(wire, url)

    assert anyio.run(main) == "consul-2"
    broke, again = there.told[1:]
    assert "forward to port 8500 of pod consul-1: " in broke
    assert broke.endswith("each new connection tries again")
    assert again == f"Kubernetes {there.forwards.url} forwards to pods again"


def test_an_api_server_that_is_away_for_a_moment_costs_no_request(there):
    async def main():
        async with there.reached() as target, Wire(target.logins["consul"]) as wire, anyio.create_task_group() as group:
            there.forwards.dead = True

            async def back():
                await anyio.sleep(0.6)
                there.forwards.dead = False

            group.start_soon(back)
            return await name_at(wire, target.logins["consul"].forwards["consul-1"])

    assert anyio.run(main) == "consul-1"
    assert len(there.told) == 1


def test_without_the_right_to_forward_one_message_says_which_and_where_it_comes_from(there):
    there.forwards.status = 403
    said = there.refused()
    assert (
        "datacenter.kubernetes.consul: no consul answers from here at http://10.73.0.11:8500, http://10.73.0.12:8500, "
        in said
    )
    assert "HTTP 403: our role lacks get or create on pods/portforward; `hashidrill staging acl kubernetes" in said
    assert said.endswith("or run hashidrill in a pod of that cluster")


def test_with_an_address_in_the_file_a_refusal_is_told_and_ends_nothing(build):
    there = build(consul='{token_file: token, address: "http://lb.example:80"}')
    there.forwards.status = 403

    async def main():
        async with there.reached() as target:
            return target.logins["consul"]

    login = anyio.run(main)
    assert (login.address, login.forwards) == ("http://lb.example:80", {})
    assert "and forwarding failed: " in there.told[0]


def test_agents_that_the_file_has_urls_for_are_asked_there(build):
    there = build(consul='{token_file: token, agents: {consul-1: "http://a:1"}}')

    async def main():
        async with there.reached() as target:
            return target.logins["consul"].forwards

    assert anyio.run(main) == {}


def test_a_run_keeps_the_forward_of_a_pod_that_comes_back_and_reverts_over_it_when_it_is_cancelled(there):
    answers = []

    async def main():
        with anyio.CancelScope() as run:
            async with (
                there.reached() as target,
                attached(target) as (estate, wires),
                watched(target, there.kubernetes.cluster) as looks,
            ):
                spec = DatacenterSpec.model_validate(estate.as_datacenter())
                datacenter = AttachedDatacenter(spec, target, estate, wires, pods=looks)
                host = datacenter.host("consul-2")
                before = dict(host.urls)
                assert await datacenter.endpoints("host:consul-2") == [before["consul"]]
                there.kubernetes.pods["consul-2"]["status"]["podIP"] = "10.73.0.92"
                with anyio.move_on_after(1.5):
                    await datacenter.keep(there.told.append)
                assert (host.address, host.urls) == ("10.73.0.92", before)
                run.cancel()
                with anyio.CancelScope(shield=True):
                    answers.append(await host.use(AgentApi).api("PUT", "/name", agent="consul"))

    anyio.run(main)
    assert [answer.body for answer in answers] == [b"consul-2"]
    [moved] = [text for text in there.told if "came back" in text]
    assert moved.endswith("(before: 10.73.0.12), and the forwards to it, including those of loads, lead there")
    assert TOKEN not in " ".join(there.told)


@pytest.mark.lie
@pytest.mark.parametrize(("status", "routed"), [(200, True), (500, True), (404, False), (502, False)])
def test_a_proxy_that_accepts_every_connection_is_no_route_and_is_given_no_token(there, status, routed):
    heard = []

    def answer(_number, asked):
        heard.append(asked)
        return Answer(status)

    with Scripted(answer) as proxy:
        login = read_target(there.file, {}).logins["consul"]
        cluster = Cluster(None, "consul", "staging", "")
        assert anyio.run(cluster.unrouted, login, proxy.url) == ("" if routed else f"HTTP {status}")
    [asked] = heard
    assert login.headers
    assert TOKEN not in str(asked.headers)


@pytest.mark.lie
def test_a_proxy_with_a_certificate_of_its_own_is_no_route():
    authority, login = trustme.CA(), Login("consul", "", Tls())
    made = authority.issue_cert("127.0.0.1")

    async def main():
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.configure_cert(context)
        server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0, ssl=context)
        async with server:
            url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            return await Cluster(None, "consul", "staging", "").unrouted(login, url)

    assert anyio.run(main).startswith("its certificate is not accepted: ")
