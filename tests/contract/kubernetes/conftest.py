"""Consul, Chaos Mesh and Litmus on the node, and `pods`, which plays a case with one kind of fault there."""

from __future__ import annotations

import time

import anyio
import pytest

from kubernetes import chaos_mesh, consul, litmus
from kubernetes.attached import attached, grant
from kubernetes.kinds import NAMESPACE, POD
from polled import wait
from sandboxed_cases import CONSUL
from told_cases import fault_of

SETTINGS = {"litmus_account": litmus.ACCOUNT, "drain": True}
LEFT = "podchaos,networkchaos,stresschaos,timechaos,chaosengines"


@pytest.fixture(scope="module")
def node(kubernetes_node, binary, tell):
    began = time.monotonic()

    def injectors():
        chaos_mesh.install(kubernetes_node)
        litmus.install(kubernetes_node, NAMESPACE)

    consul.install(kubernetes_node, binary("consul", CONSUL).path, namespace=NAMESPACE, meanwhile=injectors)
    tell(f"Consul, Chaos Mesh and Litmus installed in {time.monotonic() - began:.1f} s")
    yield kubernetes_node
    consul.remove(kubernetes_node, NAMESPACE)


def led(node):
    """Returns once all pods are ready, one server leads, and all of them vote and know each other's addresses.

    The status of the set may still be that of before a pod was killed, and gossip keeps the address that a killed pod
    had for 30 s after it was found dead (memberlist's DeadNodeReclaimTime, as Consul sets it).
    """
    of_consul = ["-n", NAMESPACE, "exec", "consul-server-0", "--", "/bin/consul"]
    addresses = ["-n", NAMESPACE, "get", "pods", "-l", "component=server", "-o", "jsonpath={.items[*].status.podIP}"]
    ready = [
        "-n",
        NAMESPACE,
        "wait",
        "--for=condition=Ready",
        "--timeout=0s",
        *(f"pod/{each}" for each in consul.SERVERS),
    ]

    def told():
        if node.kubectl(*ready, check=False).count("condition met") < len(consul.SERVERS):
            return False
        said = node.kubectl(*of_consul, "operator", "raft", "list-peers", check=False)
        members = node.kubectl(*of_consul, "members", check=False)
        known = all(f" {one}:8301 " in members for one in node.kubectl(*addresses).split())
        return known and "leader" in said and said.count("true") == len(consul.SERVERS)

    consul.wait_ready(node, NAMESPACE)
    wait("three pods, a leader and three voters at their pods' addresses", told, 90, 0.5)


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
    leftovers = node.kubectl("get", LEFT, "-n", NAMESPACE, "-o", "name")
    if leftovers:
        node.kubectl("delete", *leftovers.split(), "-n", NAMESPACE, "--wait=false")
    assert leftovers == ""
