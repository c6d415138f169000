"""The objects of Chaos Mesh that a run creates, each aimed at one pod or one machine.

Each has a duration, after which the controller reverts it even if hashidrill has died.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hashidrill.core.protocols.rights import Right
from hashidrill.kubernetes import objects
from hashidrill.kubernetes.client import Cluster
from hashidrill.kubernetes.objects import GONE_WITHIN_S, Owned
from hashidrill.kubernetes.vocabulary import CHAOS, CHAOS_MESH, plural_of

OBJECTS = [(CHAOS_MESH, kind) for kind in CHAOS]
FORCED = "chaos-mesh.chaos-mesh.org/cleanFinalizer=forced"
_LONGEST_FAILURE = 300


async def remove(cluster: Cluster, kind: str, name: str, *, within_s: float = GONE_WITHIN_S) -> None:
    """Deletes the object and waits until it is gone. If it stays, raises FaultError with the commands that help."""
    helps = way_out(cluster, kind, name)
    await objects.remove(cluster, CHAOS_MESH, kind, name, said=said_of, way_out=helps, within_s=within_s)


def way_out(cluster: Cluster, kind: str, name: str) -> str:
    """A remedy for an object that a finalizer keeps: the controller is gone, or cannot revert."""
    plural = plural_of(kind)
    command = cluster.kubectl(f"annotate {plural} {name} {FORCED}")
    also = cluster.kubectl("delete podnetworkchaos --wait=false POD")
    extra = f"; then, for the pod that it was aimed at, `{also}`" if kind == "NetworkChaos" else ""
    return (
        f"its finalizer keeps it: check that chaos-controller-manager runs; if the fault cannot be reverted, end it by"
        f" hand and release the object: `{command}`{extra}"
    )


def said_of(found: Mapping[str, Any]) -> str:
    """The status of an object and, if known, what it means. It proves nothing."""
    status = found.get("status") or {}
    conditions = {one.get("type"): one.get("status") == "True" for one in status.get("conditions") or ()}
    records = (status.get("experiment") or {}).get("containerRecords") or ()
    failed = [
        str(event.get("message", ""))
        for record in records
        for event in record.get("events") or ()
        if event.get("type") == "Failed"
    ]
    finalizers = (found.get("metadata") or {}).get("finalizers") or ()
    deleted = "it is being deleted, and " if (found.get("metadata") or {}).get("deletionTimestamp") else ""
    if failed and not conditions.get("AllInjected"):
        return f"{deleted}its controller failed: {_shortly(failed[-1])}"
    if not conditions and not finalizers:
        return (
            f"{deleted}no controller has started on it: is chaos-controller-manager running? If it is, the"
            " CustomResourceDefinitions may be older than it, and it cannot write to the object: update them"
        )
    if not conditions:
        return (
            f"{deleted}its status stays empty although a controller has started: the CustomResourceDefinition is older"
            " than the controller, which then injects nothing; update Chaos Mesh's definitions to its version"
        )
    if conditions.get("Selected") is False:
        return f"{deleted}its controller selected nothing"
    held = " and ".join(name for name in ("AllInjected", "AllRecovered") if conditions.get(name)) or "nothing yet"
    return f"{deleted}its controller says {held}"


def _shortly(failure: str) -> str:
    if found := re.search(r'"message":"((?:[^"\\]|\\.)*)"', failure):
        return found[1].replace('\\"', '"').replace("\\n", " ").strip()
    return failure.strip().removeprefix(": ").partition("\n")[0][:_LONGEST_FAILURE]


@dataclass(frozen=True)
class AimedAt:
    """Objects aimed at one machine or one pod (hashidrill.core.protocols.capabilities.ChaosObjects)."""

    cluster: Cluster
    owned: Owned
    netem: bool
    aim: Mapping[str, Any]
    """The part of a spec that names the target."""

    def object_of(self, kind: str, fault_id: str) -> Mapping[str, str]:
        return {"kind": kind, "name": self.owned.named(fault_id), "namespace": self.cluster.namespace}

    async def check(self, kind: str, spec: Mapping[str, Any], rights: Sequence[Right] = ()) -> None:
        await objects.check(self.cluster, CHAOS_MESH, kind, {**spec, **self.aim}, rights)

    async def create(self, made: Mapping[str, str], spec: Mapping[str, Any], *, once: bool) -> None:
        whole = {**spec, **self.aim} if once else {**spec, **self.aim, "duration": self.owned.duration}
        await objects.create(self.cluster, CHAOS_MESH, made["kind"], self.owned.metadata(made["name"]), whole)

    async def said(self, made: Mapping[str, str]) -> str:
        found = await self.cluster.get(CHAOS_MESH.api, made["kind"], made["name"])
        return "" if found is None else said_of(found)

    async def remove(self, made: Mapping[str, str]) -> None:
        await remove(self.cluster, made["kind"], made["name"])


def of_machine(cluster: Cluster, owned: Owned, url: str, *, netem: bool) -> AimedAt:
    """The machine whose chaosd is at that URL."""
    return AimedAt(cluster, owned, netem, {"mode": "all", "address": [url]})


def of_pod(cluster: Cluster, owned: Owned, pod: str, *, netem: bool) -> AimedAt:
    """The pod of that name. The mode is `all`, because with `one` an empty selection is not an error."""
    return AimedAt(cluster, owned, netem, {"mode": "all", "selector": {"pods": {cluster.namespace: [pod]}}})
