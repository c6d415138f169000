"""What all faults share that others inject: an object that is created, told about, deleted, and never believed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from hashidrill.core.errors import FaultError
from hashidrill.core.faults.base import BaseFault, P
from hashidrill.core.protocols.abc import Claim, Evidence, HappensOnce, Place, Target, Undo
from hashidrill.core.protocols.capabilities import ChaosObjects, PodStatus
from hashidrill.core.protocols.claims import AGENT, ANSWERS, HOST, needs, spoils, takes
from hashidrill.core.protocols.rights import Right
from hashidrill.kubernetes.kubernetes.plurals import System, plural_of

if TYPE_CHECKING:
    from hashidrill.kubernetes.observing import Effect

OBJECT = "the object of another injector"
"""A claim: one fault of theirs on a host at a time, so that what was not reverted is known by it."""


class InjectedFault(BaseFault[P]):
    """One object, aimed at the target alone. `undo` also holds `object`: its kind, name and namespace."""

    system: ClassVar[System]
    injector: ClassVar[type[Any]]
    """The capability that says whom it is aimed at."""
    seen_within_s: ClassVar[float]
    """How long its injector may take, and whoever reports."""
    by_netem: ClassVar[bool] = False
    no_netem: ClassVar[str]
    """Why it is refused where the kernel of the node has no netem."""
    accesses: ClassVar[Sequence[str]] = ("create", "delete", "get", "list")

    @property
    def object_kind(self) -> str:
        raise NotImplementedError

    def spec(self, agent: str) -> Mapping[str, Any]:
        """Of the object, without whom it is aimed at and how long it lasts."""
        raise NotImplementedError

    def effect(self, agent: str) -> Effect:
        raise NotImplementedError

    def wanted(self, undo: Undo) -> Mapping[str, Any]:
        """The same as `spec`, for a fault whose object names more than its own host. Pure."""
        return self.spec(undo["agent"])

    @property
    def observed_within_s(self) -> float:
        return self.seen_within_s

    def uses(self, place: Place) -> Sequence[Claim]:
        return (needs(HOST), takes(AGENT), takes(OBJECT), spoils(ANSWERS))

    def rights(self) -> Sequence[Right]:
        name = f"{plural_of(self.object_kind)}.{self.system.group}"
        rights = [Right("kubernetes", name, access=access) for access in self.accesses]
        rights.append(Right("kubernetes", "customresourcedefinitions.apiextensions.k8s.io", name, "get"))
        rights.append(Right("kubernetes", "pods", access="list"))  # which host is which pod
        if PodStatus in self.capabilities:
            rights.append(Right("kubernetes", "pods", access="get"))
        return rights

    def plan(self, target: Target, *, fault_id: str) -> Undo:
        made = self._objects(target.host).object_of(self.object_kind, fault_id)
        return {**super().plan(target, fault_id=fault_id), "object": dict(made)}

    async def prior(self, target: Target) -> Mapping[str, Any]:
        """Raises FaultError where the cluster would refuse it, or nobody could see it. Creates nothing."""
        objects = self._objects(target.host)
        if self.by_netem and not objects.netem:
            raise FaultError(self.no_netem)
        await objects.check(self.object_kind, self.wanted(self.plan(target, fault_id="")))
        return await self.effect(target.agent).before(self.hosts, target)

    async def apply(self, undo: Undo) -> None:
        await self._objects(undo["host"]).create(
            undo["object"], self.wanted(undo), once=isinstance(self, HappensOnce) and self.once
        )

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        """By the effect alone; where that is not as asked, `measured` says what the controller says."""
        seen = await self.effect(undo["agent"]).look(self.hosts, undo, present=present)
        objects = self._objects(undo["host"])
        if present:
            return seen if seen.ok else replace(seen, measured=f"{seen.measured}; {await told(objects, undo)}")
        left = await objects.said(undo["object"])
        asked = f"{seen.asked}, and no object of ours"
        if left:
            name = f"{undo['object']['kind']} {undo['object']['name']}"
            return replace(seen, ok=False, asked=asked, measured=f"{seen.measured}; {name} is there: {left}")
        return replace(seen, asked=asked)

    async def revert(self, undo: Undo) -> None:
        await self._objects(undo["host"]).remove(undo["object"])

    def _objects(self, host: str) -> ChaosObjects:
        found: ChaosObjects = self.hosts.host(host).use(self.injector)
        return found


async def told(objects: ChaosObjects, undo: Undo) -> str:
    """What whoever injects says of the object, or why nobody says it."""
    try:
        return await objects.said(undo["object"]) or "there is no object of ours"
    except FaultError as error:
        return str(error)
