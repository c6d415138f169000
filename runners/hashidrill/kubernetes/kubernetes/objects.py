"""Objects that a run creates for somebody else's controller: their names, what they carry, and how they go.

Each has our run's id and owner. What a controller makes of one is for the room of that controller to say.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hashidrill.core.errors import FaultError, WaitTimeoutError
from hashidrill.core.util.wait import wait_until
from hashidrill.kubernetes.kubernetes.client import Cluster, ClusterError
from hashidrill.kubernetes.kubernetes.crd import dropped, problems, schema_of
from hashidrill.kubernetes.kubernetes.plurals import System, plural_of

OURS = {"app.kubernetes.io/managed-by": "hashidrill"}
RUN, DATACENTER = "hashidrill/run", "hashidrill/datacenter"
OWNER, FAULT = "hashidrill/owner", "hashidrill/fault"
GONE_WITHIN_S = 30.0
"""How long a deleted object may take: its controller first reverts what it did. Less than one try of a revert."""
TOLD_AFTER_S = 5.0
"""A controller that works takes a second or two: who waits longer is told for what."""
_LOOKS_AGAIN_S = 5.0
"""How long the next try waits for a deletion that was waited for already: its controller had its time."""
_LONGEST_NAME, _LONGEST_LABEL = 53, 63
"""Controllers make names and labels of their own from that of an object."""


@dataclass(frozen=True)
class Owned:
    """Whose objects these are, and how long each lasts when nobody deletes it."""

    run: str
    datacenter: str
    who: str
    deadline_s: float

    def named(self, fault_id: str) -> str:
        """A name that Kubernetes takes, this run's and this fault's alone."""
        text = re.sub(r"[^a-z0-9]+", "-", f"hashidrill-{self.run}-{fault_id}".lower())
        digest = hashlib.sha256(f"{self.run}/{fault_id}".encode()).hexdigest()[:10]
        return f"{text[: _LONGEST_NAME - len(digest) - 1].strip('-')}-{digest}"

    def metadata(self, name: str) -> dict[str, Any]:
        labels = {**OURS, RUN: label(self.run), DATACENTER: label(self.datacenter)}
        return {"name": name, "labels": labels, "annotations": {OWNER: self.who, FAULT: name}}

    @property
    def seconds(self) -> int:
        return max(1, round(self.deadline_s))

    @property
    def duration(self) -> str:
        return f"{self.seconds}s"


def label(text: str) -> str:
    """As Kubernetes takes it for the value of a label."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:_LONGEST_LABEL].strip("-_.")


async def check(cluster: Cluster, system: System, kind: str, spec: Mapping[str, Any]) -> None:
    """Raises FaultError where that cluster has no such kind, or would refuse or drop a part of the spec."""
    definition = await cluster.definition(plural_of(kind), system.group)
    if definition is None:
        raise FaultError(
            f"Kubernetes {cluster.server} knows no {kind} of {system.group}; is {system.name} installed there?"
        )
    schema = schema_of(definition, system.version)
    if schema is None:
        raise FaultError(
            f"Kubernetes {cluster.server} serves no {kind} of {system.api}, the version that hashidrill speaks"
        )
    wrong = list(problems(spec, schema.get("properties", {}).get("spec", {}), closed=system.closed))
    if wrong:
        told = "".join(f"\n  {each}" for each in wrong)
        raise FaultError(f"{kind}: the cluster's own definition of it refuses this:{told}")


async def create(
    cluster: Cluster, system: System, kind: str, metadata: Mapping[str, Any], spec: Mapping[str, Any]
) -> None:
    """Nothing when it is there already. Raises FaultError; then what was created is deleted again."""
    name = str(metadata["name"])
    if await cluster.get(system.api, kind, name) is not None:
        return  # from a try before: its name is this fault's alone
    made = await cluster.create(system.api, kind, {"metadata": metadata, "spec": spec})
    if lost := list(dropped(spec, made.get("spec", {}))):
        await cluster.delete(system.api, kind, name)
        raise FaultError(
            f"{kind} {name}: the API server dropped {', '.join(lost)}: its definition is older than what was asked for;"
            f" update the CustomResourceDefinitions of {system.name}"
        )


async def remove(
    cluster: Cluster,
    system: System,
    kind: str,
    name: str,
    *,
    said: Callable[[Mapping[str, Any]], str],
    way_out: str,
    within_s: float = GONE_WITHIN_S,
) -> None:
    """Deletes it and waits until there is none: `within_s` in all, however often it is tried.

    Raises FaultError with the `way_out` where it stays.
    """
    waited_s = cluster.since_deletion_s(kind, name)
    if not await cluster.delete(system.api, kind, name):
        return
    left_s = within_s if not waited_s else max(_LOOKS_AGAIN_S, within_s - waited_s)
    told = left_s < within_s

    async def gone() -> tuple[bool | None, str]:
        nonlocal told
        found = await cluster.get(system.api, kind, name)
        if found is None:
            return True, ""
        if not told and cluster.since_deletion_s(kind, name) >= TOLD_AFTER_S:
            told = True
            cluster.tell(
                f"{kind} {name} is still there {TOLD_AFTER_S:g}s after it was deleted: {said(found)}; it is waited for"
                f" up to {within_s:g}s"
            )
        return None, said(found)

    try:
        await wait_until(f"{kind} {name} to be gone", gone, within_s=left_s, gap_s=0.3)
    except WaitTimeoutError as error:
        raise FaultError(f"{error}; {way_out}") from None


async def ours(
    cluster: Cluster, kinds: Iterable[tuple[System, str]], datacenter: str, tell: Callable[[str], None] | None = None
) -> list[tuple[str, str, str]]:
    """(kind, name, run) of each object that runs of ours, whichever they were, created for that datacenter.

    Kinds that the cluster does not have hold none. Those that we may not list are told: the role of an experiment gives
    its own kinds alone, and whoever has it could create no others. Raises FaultError, also when none may be listed.
    """
    labels = {**OURS, DATACENTER: label(datacenter)}
    found: list[tuple[str, str, str]] = []
    hidden: dict[str, ClusterError] = {}
    seen = False
    for system, kind in kinds:
        try:
            listed = await cluster.listed(system.api, kind, labels)
        except ClusterError as error:
            if error.forbidden:
                hidden[kind] = error
            elif not error.absent:
                raise
            continue
        seen = True
        for one in listed:
            metadata = one.get("metadata", {})
            found.append((kind, str(metadata.get("name")), str(metadata.get("labels", {}).get(RUN, ""))))
    if hidden and not seen:
        raise next(iter(hidden.values()))
    if hidden and tell is not None:
        tell(f"Kubernetes {cluster.server}: we may not list {', '.join(hidden)}: what others left of these is not seen")
    return found
