"""Each kind of fault on pods that this node can do, on real pods of Consul, with no more rights than its role has."""

from __future__ import annotations

import time
from dataclasses import asdict

import anyio
import pytest

from hashidrill.core.engine.inject import planned
from hashidrill.core.errors import FaultError
from hashidrill.core.util.wait import wait_until
from hashidrill.testing.faults import check_fault
from kubernetes import chaos_mesh, consul, kinds, litmus
from kubernetes.attached import attached, grant
from kubernetes.kinds import NAMESPACE, POD
from polled import wait
from sandboxed_cases import CONSUL
from told_cases import fault_of, looked, seen

pytestmark = [
    pytest.mark.live,
    pytest.mark.kubernetes,
    pytest.mark.needs("kubernetes-node", f"consul {CONSUL}", "toxiproxy-server", "toxiproxy-cli"),
]
SETTINGS = {"litmus_account": litmus.ACCOUNT, "drain": True}
ALL = [pytest.param(kind, id=kind.label) for kind in (*kinds.OF_CHAOS_MESH, *kinds.OF_LITMUS)]
LASTING = [param for param in ALL if param.values[0].disarm is not None]


@pytest.fixture(scope="module")
def node(kubernetes_node, binary, tell):
    began = time.monotonic()
    consul.install(kubernetes_node, binary("consul", CONSUL).path, namespace=NAMESPACE)
    chaos_mesh.install(kubernetes_node)
    litmus.install(kubernetes_node, NAMESPACE)
    tell(f"Consul, Chaos Mesh and Litmus installed in {time.monotonic() - began:.1f} s")
    yield kubernetes_node
    consul.remove(kubernetes_node, NAMESPACE)


def led(node):
    """Returns once one server leads, and all of them vote."""
    peers = ["-n", NAMESPACE, "exec", "consul-server-0", "--", "/bin/consul", "operator", "raft", "list-peers"]

    def told():
        said = node.kubectl(*peers, check=False)
        return "leader" in said and said.count("true") == len(consul.SERVERS)

    consul.wait_ready(node, NAMESPACE)
    wait("a leader and three voters", told, 90, 0.5)


@pytest.fixture
def pods(node, tell):
    """`pods(kind, case)`: the case with the fault, its target and the datacenter, in the network of the node."""

    def play(kind, case, *, lasts_s=90.0):
        async def whole():
            grant(node, fault_of(None, kind.name, kind.params).rights(), NAMESPACE)
            async with attached(node, NAMESPACE, lasts_s=lasts_s, tell=tell, **SETTINGS) as datacenter:
                fault = fault_of(datacenter, kind.name, kind.params)
                [target] = [one for one in await datacenter.select("consul:servers") if one.host == POD]
                return await case(fault, target)

        led(node)
        began = time.monotonic()
        result = node.call_inside(lambda: anyio.run(whole))
        tell(f"{kind.label}: {time.monotonic() - began:.1f} s: {result}")
        return result

    yield play
    leftovers = node.kubectl("get", "podchaos,networkchaos,timechaos,chaosengines", "-n", NAMESPACE, "-o", "name")
    if leftovers:
        node.kubectl("delete", *leftovers.split(), "-n", NAMESPACE, "--wait=false")
    assert leftovers == ""


@pytest.mark.parametrize("kind", ALL)
def test_a_kind_is_proven_in_force_and_gone_with_the_rights_of_its_role(pods, kind):
    async def case(fault, target):
        report = await check_fault(fault, target, momentary=kind.disarm is None)
        return {"present": asdict(report.present), "gone": asdict(report.gone)}

    told = pods(kind, case)
    assert told["present"]["ok"]
    assert told["gone"]["ok"]


@pytest.mark.lie
@pytest.mark.parametrize("kind", LASTING)
def test_an_effect_that_is_taken_away_behind_its_back_is_noticed(node, pods, kind):
    """The object stays, and its controller says that it is in force."""

    async def case(fault, target):
        undo = await planned(fault, target, f"disarmed-{kind.label}")
        await fault.apply(undo)
        try:
            await seen(fault, undo, within_s=fault.observed_within_s)
            await anyio.to_thread.run_sync(kind.disarm, node)
            after = await looked(fault, undo, ok=False, within_s=30.0)
        finally:
            await fault.revert(undo)
        await seen(fault, undo, present=False, within_s=60.0)
        return after.ok, after.measured

    noticed, measured = pods(kind, case)
    assert not noticed, measured


@pytest.mark.parametrize("kind", LASTING)
def test_an_effect_is_over_by_itself_when_nobody_takes_it_back(pods, kind):
    """As after the death of the runner."""
    lasts_s = 25.0

    async def case(fault, target):
        undo = await planned(fault, target, f"alone-{kind.label}")
        began = time.monotonic()
        await fault.apply(undo)
        try:
            await seen(fault, undo, within_s=fault.observed_within_s)

            async def over():
                evidence = await fault.effect("consul").look(fault.hosts, undo, present=False)
                return (True if evidence.ok else None), evidence.measured

            await wait_until("the effect to be over", over, within_s=120, gap_s=0.5)
            took_s = time.monotonic() - began
        finally:
            await fault.revert(undo)
        await seen(fault, undo, present=False, within_s=60.0)
        return took_s

    took_s = pods(kind, case, lasts_s=lasts_s)
    assert took_s > lasts_s / 2


@pytest.mark.parametrize(
    ("name", "params", "said"),
    [
        ("chaos_mesh.network.delay", {"delay": "200ms"}, "modprobe sch_netem"),
        ("litmus.pod_network_latency", {"delay": "200ms"}, "modprobe sch_netem"),
        ("litmus.node_drain", {}, "the node node-1 also runs consul-server-0, consul-server-2"),
    ],
)
def test_what_this_node_cannot_do_is_refused_before_anything_is_created(pods, name, params, said):
    async def case(fault, target):
        with pytest.raises(FaultError) as told:
            await planned(fault, target, "refused")
        return str(told.value)

    assert said in pods(kinds.Kind(name, params), case)
