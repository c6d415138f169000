"""Cases of the faults of Litmus on a fake datacenter, and how each is taken away behind its back."""

from __future__ import annotations

from fake_kubernetes import TimedApi
from fake_litmus import FakeLitmus
from fault_cases import each_of, of_package
from hashidrill.core.protocols.capabilities import AgentApi, LitmusNode, LitmusPod, NodeStatus, PodStatus
from hashidrill.kubernetes.kubernetes.objects import Owned
from hashidrill.kubernetes.kubernetes.pods import Watched
from hashidrill.kubernetes.litmus.hosts import AimedAt, AimedAtNode, WatchedNode
from hashidrill.testing.fakes import FakeDatacenter

LITMUS_CASES = each_of(of_package("kubernetes.litmus").values())
OWNED = Owned("run-1", "staging", "amelie@laptop", 90.0)


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


def disarm(kubernetes, undo):
    """Takes the effect away; engine and ChaosResult stay, and say that it passed."""
    kubernetes.expire()
    prior, pod = undo["prior"], kubernetes.pods[undo["host"]]
    pod["metadata"]["uid"] = prior.get("uid", pod["metadata"]["uid"])
    for one in pod["status"]["containerStatuses"]:
        one["restartCount"] = prior.get("restarts", one["restartCount"])
