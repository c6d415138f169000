"""What Chaos Mesh adds to a host: the pod of its agent, or the machine that a chaosd runs on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hashidrill.kubernetes.chaos_mesh import objects
from hashidrill.kubernetes.chaos_mesh.vocabulary import CHAOS_MESH
from hashidrill.kubernetes.kubernetes.client import Cluster
from hashidrill.kubernetes.kubernetes.objects import Owned


@dataclass(frozen=True)
class AimedAt:
    """Objects that name one machine or one pod and nobody else
    (hashidrill.core.protocols.capabilities.ChaosObjects).
    """

    cluster: Cluster
    owned: Owned
    netem: bool
    aim: Mapping[str, Any]
    """What of a spec says whom it is aimed at."""

    def object_of(self, kind: str, fault_id: str) -> Mapping[str, str]:
        return {"kind": kind, "name": self.owned.named(fault_id), "namespace": self.cluster.namespace}

    async def check(self, kind: str, spec: Mapping[str, Any]) -> None:
        await objects.check(self.cluster, kind, {**spec, **self.aim})

    async def create(self, made: Mapping[str, str], spec: Mapping[str, Any], *, once: bool) -> None:
        aimed = {**spec, **self.aim}
        await objects.create(self.cluster, self.owned, made["kind"], made["name"], aimed, once=once)

    async def said(self, made: Mapping[str, str]) -> str:
        found = await self.cluster.get(CHAOS_MESH.api, made["kind"], made["name"])
        return "" if found is None else objects.said_of(found)

    async def remove(self, made: Mapping[str, str]) -> None:
        await objects.remove(self.cluster, made["kind"], made["name"])


def of_machine(cluster: Cluster, owned: Owned, url: str, *, netem: bool) -> AimedAt:
    """The machine whose chaosd is at that URL."""
    return AimedAt(cluster, owned, netem, {"mode": "all", "address": [url]})


def of_pod(cluster: Cluster, owned: Owned, pod: str, *, netem: bool) -> AimedAt:
    """The pod of that name. `all` of it: with `one`, an empty selection would be no error."""
    return AimedAt(cluster, owned, netem, {"mode": "all", "selector": {"pods": {cluster.namespace: [pod]}}})
