"""The objects that a run creates for an injector's controller: names, validation and removal."""

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
    """The schema of that version; None if the definition does not serve that version."""
    for one in definition.get("spec", {}).get("versions", ()):
        if one.get("name") == version and one.get("served"):
            found: Mapping[str, Any] = one.get("schema", {}).get("openAPIV3Schema", {})
            return found
    return None


def problems(value: Any, schema: Mapping[str, Any], at: str = "spec", *, closed: bool = False) -> Iterator[str]:
    """Everything that the server would refuse or drop, with its place; the schema may leave fields open.

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
        yield f"{at}: {shown(value)} is not an allowed value: {near(str(value), map(str, schema['enum']))}"
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
            then = "nothing would read it" if schema.get("x-kubernetes-preserve-unknown-fields") else "would drop it"
            yield f"{at}.{name}: the cluster's definition does not have it, and {then}: {near(name, known)}"
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{at}.{name}: is missing"


def dropped(sent: Any, kept: Any, at: str = "spec") -> Iterator[str]:
    """The places of values that were sent but not kept; values that the server added do not count."""
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
    """Whether the value matches; True for patterns that Python cannot read, about which the server decides."""
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
"""How long a deleted object may take to vanish: its controller first reverts. Less than one attempt to revert."""
TOLD_AFTER_S = 5.0
"""A working controller takes a second or two: after this time, the wait is explained."""
_LOOKS_AGAIN_S = 5.0
"""How long a later attempt waits again for the same deletion, whose controller has already had its time."""
_LONGEST_NAME, _LONGEST_LABEL = 53, 63
"""Controllers make longer names and labels from the name of an object."""


@dataclass(frozen=True)
class Owned:
    """The owner of a run's objects, and how long the objects last if they are not deleted."""

    run: str
    datacenter: str
    who: str
    deadline_s: float

    def named(self, fault_id: str) -> str:
        """A name that Kubernetes accepts and that is unique to this run and this fault."""
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
    """Raises FaultError if that cluster lacks the kind, refuses or drops a part of the spec, or denies a right."""
    definition = await cluster.definition(plural_of(kind), system.group)
    if definition is None:
        raise FaultError(
            f"Kubernetes {cluster.server} has no {kind} of {system.group}; is {system.name} installed there?"
        )
    schema = schema_of(definition, system.version)
    if schema is None:
        raise FaultError(
            f"Kubernetes {cluster.server} serves no {kind} of {system.api}, the version that hashidrill uses"
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
    """Creates the object unless it exists. Raises FaultError, after deleting the object that it created."""
    name = str(metadata["name"])
    if await cluster.get(system.api, kind, name) is not None:
        return  # from an earlier attempt: only this fault uses its name
    made = await cluster.create(system.api, kind, {"metadata": metadata, "spec": spec})
    if lost := list(dropped(spec, made.get("spec", {}))):
        await cluster.delete(system.api, kind, name)
        raise FaultError(
            f"{kind} {name}: the API server dropped {', '.join(lost)}: its definition is older than the request needs;"
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
    """Deletes the object and waits until it is gone: `within_s` in all, over all attempts.

    Raises FaultError with the `way_out` if the object stays.
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
                f"{kind} {name} still exists {TOLD_AFTER_S:g}s after it was deleted: {said(found)}; waiting for up to"
                f" {within_s:g}s"
            )
        return None, said(found)

    try:
        await wait_until(f"{kind} {name} to be gone", gone, within_s=left_s, gap_s=0.3)
    except WaitTimeoutError as error:
        raise FaultError(f"{error}; {way_out}") from None


async def ours(
    cluster: Cluster, kinds: Iterable[tuple[System, str]], datacenter: str, tell: Callable[[str], None] | None = None
) -> list[tuple[str, str, str]]:
    """(kind, name, run) of each object that any hashidrill run created for that datacenter.

    A kind that the cluster does not have counts as having no objects. `tell` receives the kinds that we may not list:
    an experiment's role covers only its own kinds. Raises FaultError, also if we may list no kind at all.
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
        tell(f"Kubernetes {cluster.server}: we may not list {', '.join(hidden)}: others' objects of these are unseen")
    return found
