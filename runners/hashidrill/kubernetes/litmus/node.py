"""Drains the node of an agent's pod, by Litmus: the node takes no pods any more, and those that it has leave it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from hashidrill.core.errors import FaultError
from hashidrill.core.faults.base import NoParams
from hashidrill.core.protocols.abc import Evidence, Hosts, Observer, Target, Undo
from hashidrill.core.protocols.capabilities import LitmusNode, NodeStatus, PodStatus
from hashidrill.core.protocols.rights import Right
from hashidrill.kubernetes.litmus.fault import LitmusFault
from hashidrill.kubernetes.observing import OF_KUBELET, SHARED, Effect, Replaced


@dataclass(frozen=True)
class Drained:
    """The node is cordoned and the pod is another one; afterwards the node takes pods, and that pod is ready."""

    async def before(self, hosts: Hosts, target: Target) -> Mapping[str, Any]:
        node = hosts.host(target.host).use(NodeStatus)
        name = await node.name()
        if not await node.takes_pods(name):
            raise FaultError(f"the node {name} of {target.host} is cordoned as it is: a drain of it would not show")
        return {**await Replaced().before(hosts, target), "node": name}

    async def look(self, hosts: Hosts, undo: Undo, *, present: bool) -> Evidence:
        pod = await Replaced().look(hosts, undo, present=present)
        name = str(undo.get("prior", {}).get("node", ""))
        takes = await hosts.host(undo["host"]).use(NodeStatus).takes_pods(name)
        asked = f"the node {name} takes {'no ' if present else ''}pods, and {pod.asked}"
        measured = f"the node {'takes pods' if takes else 'is cordoned'}; {pod.measured}"
        return Evidence(pod.ok and takes is not present, asked, measured)


class NodeDrain(LitmusFault[NoParams]):
    """Drains the node that the agent's pod is on, with every pod there.

    Limits: only where the attach file says `drain: true`, because the pods of others leave the node too. A node with
    more than one agent of the estate is refused, and so is one that is cordoned already.
    """

    kind: ClassVar[str] = "litmus.node_drain"
    observer: ClassVar[Observer] = Observer(f"{OF_KUBELET}, and what the node says of itself there", SHARED)
    injector: ClassVar[type[Any]] = LitmusNode
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({LitmusNode, NodeStatus, PodStatus})
    holds_down: ClassVar[bool] = True
    experiment: ClassVar[str] = "node-drain"

    def rights(self) -> Sequence[Right]:
        return [*super().rights(), Right("kubernetes", "nodes", access="get")]

    def env(self, agent: str) -> Mapping[str, str]:
        return {}

    def effect(self, agent: str) -> Effect:
        return Drained()
