"""The objects of Chaos Mesh that a run creates: what their status says, and how they go.

Each has a duration of its own after which the controller reverts it, however we die.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from hashidrill.kubernetes.chaos_mesh.vocabulary import CHAOS, CHAOS_MESH
from hashidrill.kubernetes.kubernetes import objects
from hashidrill.kubernetes.kubernetes.client import Cluster
from hashidrill.kubernetes.kubernetes.objects import GONE_WITHIN_S, Owned
from hashidrill.kubernetes.kubernetes.plurals import plural_of

OBJECTS = [(CHAOS_MESH, kind) for kind in CHAOS]
FORCED = "chaos-mesh.chaos-mesh.org/cleanFinalizer=forced"
_LONGEST_FAILURE = 300


async def check(cluster: Cluster, kind: str, spec: Mapping[str, Any]) -> None:
    """Raises FaultError where that cluster has no such kind, or would refuse or drop a part of the spec."""
    await objects.check(cluster, CHAOS_MESH, kind, spec)


async def create(cluster: Cluster, owned: Owned, kind: str, name: str, spec: Mapping[str, Any], *, once: bool) -> None:
    """Nothing when it is there already. Raises FaultError; then what was created is deleted again."""
    whole = dict(spec) if once else {**spec, "duration": owned.duration}
    await objects.create(cluster, CHAOS_MESH, kind, owned.metadata(name), whole)


async def remove(cluster: Cluster, kind: str, name: str, *, within_s: float = GONE_WITHIN_S) -> None:
    """Deletes it and waits until there is none. Raises FaultError with the commands that help where it stays."""
    helps = way_out(cluster, kind, name)
    await objects.remove(cluster, CHAOS_MESH, kind, name, said=said_of, way_out=helps, within_s=within_s)


def way_out(cluster: Cluster, kind: str, name: str) -> str:
    """What helps where a finalizer keeps an object: the controller is gone, or cannot revert."""
    plural = plural_of(kind)
    command = cluster.kubectl(f"annotate {plural} {name} {FORCED}")
    also = cluster.kubectl("delete podnetworkchaos --wait=false POD")
    extra = f"; then, for the pod that it was aimed at, `{also}`" if kind == "NetworkChaos" else ""
    return (
        f"its finalizer keeps it: see that chaos-controller-manager runs, and if the fault cannot be reverted, end it"
        f" by hand and let the object go: `{command}`{extra}"
    )


def said_of(found: Mapping[str, Any]) -> str:
    """What the status of an object says, and what it means where that is known. It proves nothing."""
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
            f"{deleted}no controller has taken it up: is chaos-controller-manager running? If it is, the"
            " CustomResourceDefinitions may be older than it, so that it cannot write to the object: update them"
        )
    if not conditions:
        return (
            f"{deleted}its status stays empty though a controller has it: the CustomResourceDefinition is older than"
            " the controller, which then injects nothing; update the definitions of Chaos Mesh to its version"
        )
    if conditions.get("Selected") is False:
        return f"{deleted}its controller selected nothing"
    held = " and ".join(name for name in ("AllInjected", "AllRecovered") if conditions.get(name)) or "nothing yet"
    return f"{deleted}its controller says {held}"


def _shortly(failure: str) -> str:
    """Chaosd answers with a stack trace in JSON, of which the message is all that helps."""
    if found := re.search(r'"message":"((?:[^"\\]|\\.)*)"', failure):
        return found[1].replace('\\"', '"').replace("\\n", " ").strip()
    return failure.strip().removeprefix(": ").partition("\n")[0][:_LONGEST_FAILURE]


async def ours(
    cluster: Cluster, datacenter: str, tell: Callable[[str], None] | None = None
) -> list[tuple[str, str, str]]:
    """(kind, name, run) of each object that runs of ours created for that datacenter; `tell` says what is not seen.

    Raises FaultError.
    """
    return await objects.ours(cluster, OBJECTS, datacenter, tell)
