"""What Litmus adds to a host: the pod of its agent, and the node of that pod."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hashidrill.core.errors import FaultError
from hashidrill.kubernetes.kubernetes.client import Cluster
from hashidrill.kubernetes.kubernetes.objects import Owned
from hashidrill.kubernetes.litmus import engines


@dataclass(frozen=True)
class AimedAt:
    """Engines that name one pod and nobody else (hashidrill.core.protocols.capabilities.LitmusPod)."""

    cluster: Cluster
    owned: Owned
    netem: bool
    account: str
    """The ServiceAccount as which experiments run."""
    pod: str

    def object_of(self, kind: str, fault_id: str) -> Mapping[str, str]:
        return {"kind": kind, "name": self.owned.named(fault_id), "namespace": self.cluster.namespace}

    async def whole(self, spec: Mapping[str, Any], *, once: bool) -> dict[str, Any]:
        """The whole of an engine, from what is the fault's own."""
        aim = {"selectors": {"pods": [{"namespace": self.cluster.namespace, "names": self.pod}]}}
        return engines.whole(spec, aim, self.account, lasts_s=self.lasts_s(once=once))

    def lasts_s(self, *, once: bool) -> int:
        return 1 if once else max(2, self.owned.seconds)

    async def check(self, kind: str, spec: Mapping[str, Any]) -> None:
        await engines.check(self.cluster, await self.whole(spec, once=False), spec)

    async def create(self, made: Mapping[str, str], spec: Mapping[str, Any], *, once: bool) -> None:
        await engines.create(self.cluster, self.owned, made["name"], await self.whole(spec, once=once))

    async def said(self, made: Mapping[str, str]) -> str:
        return await engines.said(self.cluster, made["name"])

    async def remove(self, made: Mapping[str, str]) -> None:
        await engines.remove(self.cluster, made["name"])


@dataclass(frozen=True)
class AimedAtNode(AimedAt):
    """Engines that name the node of one pod (hashidrill.core.protocols.capabilities.LitmusNode)."""

    agents: Sequence[str]
    """The pods of all agents of the estate: only one of them may be on that node."""
    allowed: bool
    """Whether the estate's file allows nodes to be drained."""

    async def whole(self, spec: Mapping[str, Any], *, once: bool) -> dict[str, Any]:
        """Raises FaultError where the node may not be drained."""
        if not self.allowed:
            raise FaultError(
                "services.kubernetes.drain of the attach file does not say that nodes may be drained: every pod of the"
                " node leaves it, not only those of the agents"
            )
        node = await node_of(self.cluster, self.pod)
        pods = await self.cluster.listed("v1", "Pod")
        there = {one["metadata"]["name"] for one in pods if (one.get("spec") or {}).get("nodeName") == node}
        if others := sorted(there & {*self.agents} - {self.pod}):
            raise FaultError(
                f"the node {node} also runs {', '.join(others)}: to drain it takes more than one agent at a time;"
                " spread them over nodes by anti-affinity"
            )
        return engines.whole(spec, {}, self.account, lasts_s=self.lasts_s(once=once), more={"TARGET_NODE": node})


@dataclass(frozen=True)
class WatchedNode:
    """The node of a pod (hashidrill.core.protocols.capabilities.NodeStatus)."""

    cluster: Cluster
    pod: str

    async def name(self) -> str:
        return await node_of(self.cluster, self.pod)

    async def takes_pods(self, name: str) -> bool:
        found = await self.cluster.node(name)
        return found is not None and not (found.get("spec") or {}).get("unschedulable")


async def node_of(cluster: Cluster, pod: str) -> str:
    """Raises FaultError where the pod is on none."""
    found = await cluster.get("v1", "Pod", pod)
    if name := ((found or {}).get("spec") or {}).get("nodeName"):
        return str(name)
    raise FaultError(f"the pod {pod} is on no node")
