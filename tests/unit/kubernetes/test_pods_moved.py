"""A pod of an agent that is made again, with another address, in the middle of a run."""

import copy

import anyio
import httpx2
import pytest
from test_agents_in_pods import There

from hashidrill.core.experiment.model import DatacenterSpec
from hashidrill.core.protocols.capabilities import AgentApi
from hashidrill.kubernetes.pods import located, watched
from hashidrill.staging.attach.datacenter import AttachedDatacenter
from hashidrill.staging.attach.discovery import discover
from hashidrill.staging.attach.http import Login, Wire
from virtual_time import ran, run

NEW, OTHER = "10.73.0.92", "10.73.0.93"


class Followed:
    """A datacenter of pods while a run goes on: `told` is what was said, `api` what an agent answers."""

    def __init__(self, there, datacenter, wires):
        self.there, self.datacenter, self.wires, self.told = there, datacenter, wires, []

    async def moved(self, name, address):
        """The pod is there again, with that address."""
        self.there.kubernetes.pods[name]["status"]["podIP"] = address
        self.there.fake.world.hosts[name].address = address
        await anyio.sleep(3)

    async def answers(self, name):
        host = self.datacenter.host(name)
        return (await host.use(AgentApi).api("GET", "/v1/agent/self", agent="consul")).status


@ran
async def during(there, case):
    target = await located(there.target, there.kubernetes.cluster)
    wires = there.fake.wires(target)
    estate = await discover(target, wires)
    spec = DatacenterSpec.model_validate(estate.as_datacenter())
    async with watched(target, there.kubernetes.cluster) as looks:
        datacenter = AttachedDatacenter(
            spec,
            target,
            estate,
            wires,
            make_transport=lambda login: there.fake.transport(login.service),
            pods=looks,
        )
        one = Followed(there, datacenter, wires)
        async with anyio.create_task_group() as group:
            group.start_soon(datacenter.keep, one.told.append)
            await anyio.sleep(2)
            await case(one)
            group.cancel_scope.cancel()
    return one


@pytest.fixture
def there(tmp_path):
    return There(tmp_path)


@pytest.mark.lie
@pytest.mark.parametrize("name", ["consul-1", "consul-2"])
def test_faults_probes_and_interlocks_ask_the_agent_at_its_new_address(there, name):
    """The datacenter was attached at consul-1: what is asked of nobody in particular is asked there."""

    async def case(one):
        old, probes = one.datacenter.host(name).address, one.datacenter.probes()
        await one.moved(name, NEW)
        assert one.datacenter.host(name).address == NEW
        assert await one.answers(name) == 200
        assert (await one.wires["consul"].request("GET", "/v1/status/leader")).status == 200
        assert (await one.wires["consul"].request("GET", "/v1/agent/self", url=f"http://{old}:8500")).status == 200
        client = httpx2.AsyncClient(transport=one.datacenter.services[0].transport)
        assert (await client.get(f"http://{old}:8500/v1/agent/self")).status_code == 200
        before = len(there.fake.asked)
        for probe in probes:
            await probe.sample()
        asked = {request.url.host for request in there.fake.asked[before:]}
        assert NEW in asked
        assert old not in asked

    one = during(there, case)
    assert [text for text in one.told if f"{name}: pod {name} came back at {NEW} (before: " in text]


def test_an_agent_that_moved_and_leads_is_known_by_its_name(there):
    async def case(one):
        leads = there.fake.world.consul.leader
        await one.moved(leads, NEW)
        [target] = await one.datacenter.select("consul:leader")
        assert (target.host, target.address) == (leads, NEW)

    during(there, case)


@pytest.mark.lie
def test_a_pod_that_gets_the_address_of_another_one_is_asked_there_itself(there):
    async def case(one):
        old = one.datacenter.host("consul-2").address
        await one.moved("consul-2", NEW)
        await one.moved("consul-3", old)
        assert [one.datacenter.host(f"consul-{number}").address for number in (2, 3)] == [NEW, old]
        before = len(there.fake.asked)
        assert [await one.answers("consul-2"), await one.answers("consul-3")] == [200, 200]
        assert [asked.url.host for asked in there.fake.asked[before:]] == [NEW, old]

    during(there, case)


@pytest.mark.lie
@pytest.mark.parametrize("there_again", [True, False])
def test_a_pod_of_a_daemon_set_that_comes_back_with_another_name_is_followed_on_its_node_alone(there, there_again):
    """The DaemonSet's pod on another node does not replace it, though it has an address too."""
    pods = there.kubernetes.pods
    for number, pod in enumerate(pods.values()):
        pod["metadata"]["ownerReferences"][0]["kind"], pod["spec"]["nodeName"] = "DaemonSet", f"node-{number}"

    async def case(one):
        gone = pods.pop("consul-2")
        for name, node, address in (("consul-y", "node-9", OTHER), ("consul-x", gone["spec"]["nodeName"], NEW)):
            if there_again or name == "consul-y":
                pods[name] = copy.deepcopy(gone)
                pods[name]["metadata"]["name"], pods[name]["spec"]["nodeName"] = name, node
                pods[name]["status"]["podIP"] = address
        there.fake.world.hosts["consul-2"].address = NEW
        before = one.datacenter.host("consul-2").address
        await anyio.sleep(3)
        assert one.datacenter.host("consul-2").address == (NEW if there_again else before)
        if there_again:
            assert await one.answers("consul-2") == 200

    told = during(there, case).told
    assert there_again == any(f"consul-2: pod consul-2 came back as consul-x at {NEW} (before: " in one for one in told)


def test_a_pod_that_comes_back_to_its_first_address_is_asked_there(there):
    async def case(one):
        old = one.datacenter.host("consul-2").address
        for address in (NEW, OTHER, old):
            await one.moved("consul-2", address)
            assert await one.answers("consul-2") == 200

    during(there, case)


def test_a_pod_that_is_being_deleted_or_has_no_address_yet_moves_nobody(there):
    async def case(one):
        pod = there.kubernetes.pods["consul-2"]
        pod["status"]["podIP"] = ""
        await anyio.sleep(3)
        pod["status"]["podIP"], pod["metadata"]["deletionTimestamp"] = NEW, "2026-01-01T00:00:00Z"
        await anyio.sleep(3)
        assert one.datacenter.host("consul-2").address == "10.73.0.12"

    assert not [text for text in during(there, case).told if "came back" in text]


def test_a_pod_that_nobody_makes_anew_is_told_once(there):
    async def case(one):
        del there.kubernetes.pods["consul-3"]
        await anyio.sleep(90)

    told = during(there, case).told
    assert [text for text in told if "is gone" in text] == [
        "consul-3: the pod consul-3 is gone; requests go to its old address"
    ]


def test_a_server_that_may_not_be_asked_any_more_is_told_once_and_the_rest_goes_on(there):
    async def case(one):
        there.kubernetes.refuses["GET", "pods"] = 403
        await anyio.sleep(20)
        assert await one.answers("consul-2") == 200

    [text] = [text for text in during(there, case).told if "not followed" in text]
    assert "pods" in text


def test_agents_that_are_no_pods_are_not_looked_after(tmp_path):
    there = There(tmp_path, '  consul: {address: "http://10.73.0.11:8500", token_file: token}\n')

    async def looked():
        async with watched(there.target, there.kubernetes.cluster) as looks:
            return looks

    assert run(looked()) is None


async def test_a_wire_asks_where_the_agent_is_now():
    asked = []

    def answer(request):
        asked.append(str(request.url))
        return httpx2.Response(200)

    wire = Wire(Login("consul", "http://a"), transport=httpx2.MockTransport(answer))
    wire.move("http://a", "http://b")
    wire.move("http://b", "http://c")
    await wire.request("GET", "/1")
    wire.move("http://c", "http://a")
    await wire.request("GET", "/2")
    assert asked == ["http://c/1", "http://a/2"]
