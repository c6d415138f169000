"""Cases of the faults of Chaos Mesh on a fake datacenter, and how each is taken away behind its back."""

from __future__ import annotations

from fake_kubernetes import FakeKubernetes, TimedApi
from fault_cases import each_of, of_package
from hashidrill.core.protocols.capabilities import AgentApi, ChaosMachine, ChaosPod, PodStatus
from hashidrill.kubernetes.chaos_mesh.hosts import of_machine, of_pod
from hashidrill.kubernetes.kubernetes.objects import Owned
from hashidrill.kubernetes.kubernetes.pods import Watched
from hashidrill.testing.fakes import FakeDatacenter

CHAOS_MESH_CASES = each_of(of_package("kubernetes.chaos_mesh").values())
OWNED = Owned("run-1", "staging", "amelie@laptop", 90.0)


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


def disarm(kubernetes, undo):
    """Takes the effect away, and leaves the object and its status as they are."""
    made = kubernetes.objects[undo["object"]["kind"].lower(), undo["object"]["name"]]
    action, pod = made["spec"].get("action"), kubernetes.pods[undo["host"]]
    if action == "pod-kill":
        pod["metadata"]["uid"] = undo["prior"]["uid"]
    elif action == "container-kill":
        pod["status"]["containerStatuses"][0]["restartCount"] = undo["prior"]["restarts"]
    else:
        kubernetes.expire()
