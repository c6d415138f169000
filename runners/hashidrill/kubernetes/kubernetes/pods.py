"""Pods as their kubelets report them to the API server, and which of them is which host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hashidrill.core.protocols.capabilities import PodSeen
from hashidrill.kubernetes.kubernetes.client import Cluster


@dataclass(frozen=True)
class Watched:
    """A pod as its kubelet reports it to the API server (hashidrill.core.protocols.capabilities.PodStatus)."""

    cluster: Cluster
    name: str

    async def pod(self) -> PodSeen | None:
        found = await self.cluster.get("v1", "Pod", self.name)
        return None if found is None else seen(found)


def seen(found: Mapping[str, Any]) -> PodSeen:
    """A pod of the API."""
    metadata, status = found["metadata"], found.get("status") or {}
    owners = [one["kind"] for one in metadata.get("ownerReferences") or () if one.get("controller")]
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions") or ())
    running = {one["name"]: int(one["restartCount"]) for one in status.get("containerStatuses") or ()}
    leaving = bool(metadata.get("deletionTimestamp"))
    return PodSeen(metadata["name"], metadata["uid"], ready and not leaving, owners[0] if owners else "", running)


def pod_of(pods: Sequence[Mapping[str, Any]], host: str, address: str, *, by_address: bool = False) -> tuple[str, str]:
    """(its name, why there is none): the one pod with that host's name, else the one with its address.

    `by_address`: the other way round, where each host is known to be a pod, and a name might be that of another one.
    """
    named = [one["metadata"]["name"] for one in pods if one["metadata"]["name"] == host]
    placed = [one["metadata"]["name"] for one in pods if (one.get("status") or {}).get("podIP") == address]
    at = (placed or named) if by_address else (named or placed)
    if len(at) == 1:
        return str(at[0]), ""
    if at:
        return "", f"the pods {', '.join(sorted(at))} all have the address {address}, and none the name {host}"
    return "", f"no pod there has the name {host} or the address {address}"
