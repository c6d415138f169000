"""Cases of the faults of Chaos Mesh on a fake datacenter, and how each is taken away behind its back."""

from __future__ import annotations

from fake_kubernetes import FakeKubernetes, TimedApi
from hashidrill.core.protocols.capabilities import AgentApi, ChaosMachine, ChaosPod, PodStatus
from hashidrill.kubernetes.chaos_mesh.hosts import of_machine, of_pod
from hashidrill.kubernetes.kubernetes.objects import Owned
from hashidrill.kubernetes.kubernetes.pods import Watched
from hashidrill.testing.fakes import FakeDatacenter

HTTP_ABORT = {"target": "Request", "port": 8500, "abort": True}
CHAOS_MESH_CASES = [
    ("chaos_mesh.pod_kill", {}),
    ("chaos_mesh.pod_failure", {}),
    ("chaos_mesh.container_kill", {}),
    ("chaos_mesh.network.delay", {"delay": "200ms"}),
    ("chaos_mesh.time", {"offset": "10m", "direction": "behind"}),
    ("chaos_mesh.time", {"offset": "5s"}),
    ("chaos_mesh.http.abort", {}),
    ("chaos_mesh.http.delay", {"delay": "300ms", "port": 8500}),
    ("chaos_mesh.io.latency", {"delay": "300ms", "volume": "/consul/data"}),
    ("chaos_mesh.io.latency", {"delay": "100ms", "volume": "/consul/data", "op": "write", "container": "server"}),
    ("chaos_mesh.physical.process", {}),
    ("chaos_mesh.physical.process", {"signal": "KILL", "restart": "systemctl start consul"}),
    ("chaos_mesh.physical.disk_fill", {"size": "20MB", "path": "/var/lib/consul"}),
    ("chaos_mesh.physical.cpu", {"workers": 4}),
    ("chaos_mesh.physical.cpu", {"workers": 2, "load": "50%"}),
    ("chaos_mesh.physical.partition", {"from": "servers"}),
    ("chaos_mesh.physical.partition", {"from": "host:consul-3", "direction": "in", "device": "ens5"}),
    ("chaos_mesh.physical.bandwidth", {"rate": "64KB/s"}),
    ("chaos_mesh.resource", {"chaos": "HTTPChaos", "spec": HTTP_ABORT, "effect": "silent"}),
    (
        "chaos_mesh.resource",
        {
            "chaos": "NetworkChaos",
            "spec": {"action": "delay", "delay": {"latency": "300ms"}},
            "effect": "slow",
            "by": "300ms",
        },
    ),
]
MOMENTARY = {"chaos_mesh.pod_kill", "chaos_mesh.container_kill"}
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
