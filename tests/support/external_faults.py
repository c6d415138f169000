"""Chaos Mesh and Litmus on a fake datacenter whose hosts are pods: cases, worlds, and how an effect is taken away."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fake_kubernetes import FakeKubernetes, TimedApi
from fake_litmus import FakeLitmus
from fault_cases import each_of, fault_of, of_package
from hashidrill.core.engine.inject import planned
from hashidrill.core.protocols.capabilities import (
    AgentApi,
    ChaosMachine,
    ChaosPod,
    LitmusNode,
    LitmusPod,
    NodeStatus,
    PodStatus,
)
from hashidrill.kubernetes.chaos_mesh.objects import of_machine, of_pod
from hashidrill.kubernetes.litmus.engines import AimedAt, AimedAtNode, WatchedNode
from hashidrill.kubernetes.objects import Owned
from hashidrill.kubernetes.pods import Watched
from hashidrill.testing.fakes import FakeDatacenter

OWNED = Owned("run-1", "staging", "amelie@laptop", 90.0)
CHAOS_MESH_CASES = each_of(of_package("kubernetes.chaos_mesh").values())
LITMUS_CASES = each_of(of_package("kubernetes.litmus").values())


def chaos_world(world=None, *, netem=True, owner="StatefulSet"):
    """(a datacenter whose hosts are pods, with a chaosd each; its Kubernetes)."""
    world = world or FakeDatacenter()
    kubernetes = FakeKubernetes(world, pods=list(world.hosts), owner=owner)
    cluster = kubernetes.cluster()
    for name, host in world.hosts.items():
        host.parts |= {
            ChaosPod: of_pod(cluster, OWNED, name, netem=netem),
            PodStatus: Watched(cluster, name),
            ChaosMachine: of_machine(cluster, OWNED, f"http://{host.address}:31767", netem=netem),
            AgentApi: TimedApi(host, kubernetes),
        }
    return world, kubernetes


class ChangedApi(TimedApi):
    """The API of an agent behind Litmus's proxy."""

    async def api(self, method, path, *, agent, timeout_s=5.0, **others):
        answer = await super().api(method, path, agent=agent, timeout_s=timeout_s, **others)
        return self.kubernetes.shown(self.host.name, answer)


def litmus_world(world=None, *, netem=True, owner="StatefulSet", drain=True):
    """(a datacenter whose hosts are pods; its Kubernetes with Litmus)."""
    world = world or FakeDatacenter()
    kubernetes = FakeLitmus(world, pods=list(world.hosts), owner=owner)
    cluster = kubernetes.cluster()
    for name, host in world.hosts.items():
        host.parts |= {
            LitmusPod: AimedAt(cluster, OWNED, netem, "litmus-admin", name),
            PodStatus: Watched(cluster, name),
            AgentApi: ChangedApi(host, kubernetes),
            NodeStatus: WatchedNode(cluster, name),
            LitmusNode: AimedAtNode(cluster, OWNED, netem, "litmus-admin", name, tuple(world.hosts), drain),
        }
    return world, kubernetes


def disarm_chaos(kubernetes, undo):
    """Takes the effect away, and leaves the object and its status as they are."""
    made = kubernetes.objects[undo["object"]["kind"].lower(), undo["object"]["name"]]
    action, pod = made["spec"].get("action"), kubernetes.pods[undo["host"]]
    if action == "pod-kill":
        pod["metadata"]["uid"] = undo["prior"]["uid"]
    elif action == "container-kill":
        pod["status"]["containerStatuses"][0]["restartCount"] = undo["prior"]["restarts"]
    else:
        kubernetes.expire()


def disarm_litmus(kubernetes, undo):
    """Takes the effect away; engine and ChaosResult stay, and say that it passed."""
    kubernetes.expire()
    prior, pod = undo["prior"], kubernetes.pods[undo["host"]]
    pod["metadata"]["uid"] = prior.get("uid", pod["metadata"]["uid"])
    for one in pod["status"]["containerStatuses"]:
        one["restartCount"] = prior.get("restarts", one["restartCount"])


@dataclass(frozen=True)
class System:
    """One injector. `silent` is a kind of its faults that needs no parameters and makes the agent silent."""

    name: str
    cases: Any
    world: Callable[..., Any]
    disarm: Callable[..., None]
    silent: str
    no_effect: str
    """The mode of its controller that claims success and does nothing."""
    claims: str
    """What is told of an effect that was taken away behind its back."""
    controllers: dict[str, str]
    """The modes of its controller that inject nothing, and what is told of each."""

    def __repr__(self):
        return self.name


CHAOS_MESH = System(
    "chaos_mesh",
    CHAOS_MESH_CASES,
    chaos_world,
    disarm_chaos,
    "chaos_mesh.physical.process",
    "lies",
    "says AllInjected",
    {
        "absent": "no controller has started on it: is chaos-controller-manager running?",
        "old-crd": "its status stays empty although a controller has started: the CustomResourceDefinition is older",
        "fails": "its controller failed: Failed to apply chaos: no",
        "lies": "its controller says AllInjected",
    },
)
LITMUS = System(
    "litmus",
    LITMUS_CASES,
    litmus_world,
    disarm_litmus,
    "litmus.pod_http_reset_peer",
    "passes",
    "Pass of 100 without a single probe, which says nothing",
    {
        "absent": "no operator has started on it: is chaos-operator running",
        "old-crd": "its status stays empty although an operator has started: the CustomResourceDefinition is older",
        "no-runner": "has started no runner: is there a ServiceAccount litmus-admin",
        "skips": "Litmus did not run ",
        "fails": "its ChaosResult says Error, Error: failed to inject: no",
        "passes": "its ChaosResult says Completed, Pass of 100 without a single probe",
    },
)
SYSTEMS = (CHAOS_MESH, LITMUS)


async def put_on(world, kind, params):
    """(the fault, its undo as a fresh process would read it) of a fault on consul-1."""
    fault = fault_of(world, kind, params)
    undo = await planned(fault, world.target("consul-1"), "0-x")
    await fault.apply(undo)
    return fault, json.loads(json.dumps(dict(undo)))
