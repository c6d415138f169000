"""Consul, Chaos Mesh and Litmus on the node, and `pods`, which plays a case with one kind of fault there."""

from __future__ import annotations

import time

import anyio
import pytest

from kubernetes import chaos_mesh, consul, litmus
from kubernetes.attached import attached, grant
from kubernetes.kinds import NAMESPACE, POD
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

        consul.wait_settled(node, NAMESPACE)
        began = time.monotonic()
        result = node.call_inside(lambda: anyio.run(whole))
        tell(f"{kind.label}: {time.monotonic() - began:.1f} s: {result}")
        return result

    yield play
    leftovers = node.kubectl("get", LEFT, "-n", NAMESPACE, "-o", "name")
    if leftovers:
        node.kubectl("delete", *leftovers.split(), "-n", NAMESPACE, "--wait=false")
    assert leftovers == ""
