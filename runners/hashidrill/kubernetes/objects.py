"""The objects that a run creates for an injector's controller: names, validation and removal."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anyio

from hashidrill.core.errors import FaultError, WaitTimeoutError
from hashidrill.core.protocols.registry import near
from hashidrill.core.protocols.rights import Right
from hashidrill.core.units import shown
from hashidrill.core.util.wait import wait_until
from hashidrill.kubernetes.client import Cluster, ClusterError
from hashidrill.kubernetes.vocabulary import System, plural_of

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (Mapping,),
    "array": (list, tuple),
}


def schema_of(definition: Mapping[str, Any], version: str) -> Mapping[str, Any] | None:
    """The schema of a version that is served; None when that version is not."""
    for one in definition.get("spec", {}).get("versions", ()):
        if one.get("name") == version and one.get("served"):
            found: Mapping[str, Any] = one.get("schema", {}).get("openAPIV3Schema", {})
            return found
    return None


def problems(value: Any, schema: Mapping[str, Any], at: str = "spec", *, closed: bool = False) -> Iterator[str]:
    """Everything that the server would refuse or drop, with its place; fields that the schema leaves open pass.

    `closed`: if a schema names fields, unknown ones are problems even if the server would keep them, because nothing
    reads them.
    """
    if schema.get("x-kubernetes-int-or-string"):
        if not isinstance(value, int | str):
            yield f"{at}: expected a number or a text, got {shown(value)}"
        return
    wanted = schema.get("type", "")
    if wanted in _TYPES and (
        not isinstance(value, _TYPES[wanted]) or (isinstance(value, bool) != (wanted == "boolean"))
    ):
        yield f"{at}: expected {_a(wanted)}, got {shown(value)}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at}: {shown(value)} is not one of them: {near(str(value), map(str, schema['enum']))}"
    yield from _out_of_bounds(value, schema, at)
    if isinstance(value, Mapping):
        yield from _of_fields(value, schema, at, closed=closed)
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from problems(item, schema.get("items", {}), f"{at}[{number}]", closed=closed)


def _out_of_bounds(value: Any, schema: Mapping[str, Any], at: str) -> Iterator[str]:
    if "pattern" in schema and isinstance(value, str) and not _matches(schema["pattern"], value):
        yield f"{at}: {shown(value)} does not match {schema['pattern']}"
    if "minimum" in schema and value < schema["minimum"]:
        yield f"{at}: must be at least {schema['minimum']}, got {value}"
    if "maximum" in schema and value > schema["maximum"]:
        yield f"{at}: must be at most {schema['maximum']}, got {value}"


def _of_fields(value: Mapping[str, Any], schema: Mapping[str, Any], at: str, *, closed: bool) -> Iterator[str]:
    known: Mapping[str, Any] = schema.get("properties", {})
    others = schema.get("additionalProperties")
    kept = schema.get("x-kubernetes-preserve-unknown-fields") and not (closed and known)
    left_open = bool(others) or kept or not schema
    for name, item in value.items():
        if name in known:
            yield from problems(item, known[name], f"{at}.{name}", closed=closed)
        elif isinstance(others, Mapping):
            yield from problems(item, others, f"{at}.{name}", closed=closed)
        elif not left_open:
            then = "nobody would read it" if schema.get("x-kubernetes-preserve-unknown-fields") else "would drop it"
            yield f"{at}.{name}: the cluster's definition does not have it, and {then}: {near(name, known)}"
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{at}.{name}: is missing"


def dropped(sent: Any, kept: Any, at: str = "spec") -> Iterator[str]:
    """The places of values that were sent but not kept; added ones do not count."""
    if isinstance(sent, Mapping):
        for name, value in sent.items():
            if not isinstance(kept, Mapping) or name not in kept:
                yield f"{at}.{name}"
            else:
                yield from dropped(value, kept[name], f"{at}.{name}")
    elif isinstance(sent, list | tuple):
        for number, value in enumerate(sent):
            if not isinstance(kept, list) or len(kept) <= number:
                yield f"{at}[{number}]"
            else:
                yield from dropped(value, kept[number], f"{at}[{number}]")


def _matches(pattern: str, value: str) -> bool:
    """Whether it matches; the server decides about patterns that Python cannot read."""
    try:
        return re.search(pattern, value) is not None
    except re.error:
        return True


def _a(wanted: str) -> str:
    return f"an {wanted}" if wanted[0] in "aio" else f"a {wanted}"


OURS = {"app.kubernetes.io/managed-by": "hashidrill"}
RUN, DATACENTER = "hashidrill/run", "hashidrill/datacenter"
OWNER, FAULT = "hashidrill/owner", "hashidrill/fault"
GONE_WITHIN_S = 30.0
"""How long a deleted object may take: its controller first reverts what it did. Less than one try of a revert."""
TOLD_AFTER_S = 5.0
"""A working controller takes a second or two: after this time, the wait is explained."""
_LOOKS_AGAIN_S = 5.0
"""How long the next try waits for a deletion that was waited for already: its controller had its time."""
_LONGEST_NAME, _LONGEST_LABEL = 53, 63
"""Controllers make names and labels of their own from that of an object."""


@dataclass(frozen=True)
class Owned:
    """The owner of these objects, and their lifetime without a deletion."""

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
    """The text as a valid value of a Kubernetes label."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:_LONGEST_LABEL].strip("-_.")


async def check(
    cluster: Cluster, system: System, kind: str, spec: Mapping[str, Any], rights: Sequence[Right] = ()
) -> None:
    """Raises FaultError where that cluster lacks the kind, refuses or drops a part of the spec, or denies a right."""
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
    await _check_rights(cluster, rights)


async def _check_rights(cluster: Cluster, rights: Sequence[Right]) -> None:
    lacking: list[str] = []

    async def ask(right: Right) -> None:
        if not await cluster.may(right.access, right.resource, right.name):
            lacking.append(f"{right.access} {right.resource}")

    async with anyio.create_task_group() as group:
        for right in rights:
            if right.service == "kubernetes":
                group.start_soon(ask, right)
    if lacking:
        raise FaultError(
            f"Kubernetes {cluster.server}: we may not {', '.join(sorted(lacking))} in namespace {cluster.namespace};"
            " `hashidrill staging acl kubernetes EXPERIMENT` prints the role that allows it"
        )


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
