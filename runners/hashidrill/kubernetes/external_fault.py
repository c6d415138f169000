"""The base of Chaos Mesh's and Litmus's faults: one object, created and deleted; its status is never a proof."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

from hashidrill.core.errors import FaultError
from hashidrill.core.faults.base import BaseFault, P
from hashidrill.core.protocols.abc import Claim, Evidence, HappensOnce, Place, Target, Undo
from hashidrill.core.protocols.capabilities import ChaosObjects, PodStatus
from hashidrill.core.protocols.claims import AGENT, ANSWERS, HOST, needs, spoils, takes
from hashidrill.core.protocols.rights import Right
from hashidrill.core.units import Duration
from hashidrill.kubernetes.pod_observers import Effect, Slow, Uses
from hashidrill.kubernetes.rbac import EXEC
from hashidrill.kubernetes.vocabulary import System, plural_of

OBJECT = "the object of another injector"
"""A claim: one external fault on a host at a time, so that a left-over one can be identified."""
_LONGEST_DELAY = Duration("2s")


def _provable(value: Duration) -> Duration:
    if not 0.02 <= value <= _LONGEST_DELAY:
        raise ValueError(
            f"must be from 20ms to {_LONGEST_DELAY}, because the proof waits for nine answers; not {value}"
        )
    return value


Delay = Annotated[Duration, AfterValidator(_provable)]
Container = Annotated[str, Field(min_length=1)]
"""The name of a container. The official charts name the agent's container after the product."""


class ExternalFault(BaseFault[P]):
    """One object whose only target is the fault's host. `undo` also holds `object`: its kind, name and namespace."""

    system: ClassVar[System]
    injector: ClassVar[type[Any]]
    """The capability that names the target in the injector's cluster."""
    object_kind: ClassVar[str]
    seen_within_s: ClassVar[float]
    """How long the injector and the observer may take."""
    by_netem: ClassVar[bool] = False
    no_netem: ClassVar[str]
    """Why a node without netem is refused."""
    accesses: ClassVar[Sequence[str]] = ("create", "delete", "get", "list")
    shows: ClassVar[Effect | None] = None
    """The fault's effect, if it depends on no parameter; None: see `effect`."""

    def spec(self, agent: str) -> Mapping[str, Any]:
        """The object's spec without its target and its duration."""
        raise NotImplementedError

    def effect(self, agent: str) -> Effect:
        """What an observer sees: `shows`, or else answers that take `delay` longer."""
        return self.shows or Slow(float(self.params.delay))  # type: ignore[attr-defined]

    def wanted(self, undo: Undo) -> Mapping[str, Any]:
        """The spec of this fault's object; differs from `spec` if the object names more than the host. Pure."""
        return self.spec(undo["agent"])

    def impossible_in(self, cluster: Mapping[str, Any]) -> str:
        """Why that cluster cannot have the fault on the agent, by its attach file and its pods; "" if it can.

        `cluster`: `netem`, `lacks` and `drain` of the attach file, the agent's `node`, the `others` on that node, and
        whether agents are reached by a `forward`.
        """
        if self.by_netem and not cluster["netem"]:
            return self.no_netem
        if self.object_kind in cluster["lacks"]:
            return f"`lacks` of the attach file says that no {self.object_kind} can be injected there"
        if cluster["forward"] and (self.by_netem or self.object_kind == "NetworkChaos"):
            return (
                "it could not be proven: its agent is reached by a forward, which ends on the loopback inside the pod,"
                " behind the network that the fault breaks; run hashidrill in a pod of that cluster"
                " (`hashidrill staging acl kubernetes EXPERIMENT --job IMAGE`), or on a machine that routes to the pods"
            )
        return ""

    @property
    def sets_clock(self) -> bool:
        """Whether it sets the clock that an agent reads."""
        return self.object_kind == "TimeChaos"

    @property
    def observed_within_s(self) -> float:
        return self.seen_within_s

    def uses(self, place: Place) -> Sequence[Claim]:
        return (needs(HOST), takes(AGENT), takes(OBJECT), spoils(ANSWERS))

    def rights(self) -> Sequence[Right]:
        name = f"{plural_of(self.object_kind)}.{self.system.group}"
        rights = [Right("kubernetes", name, access=access) for access in self.accesses]
        rights.append(Right("kubernetes", "customresourcedefinitions.apiextensions.k8s.io", name, "get"))
        rights.append(Right("kubernetes", "pods", access="list"))  # to find the pod of each host
        if PodStatus in self.capabilities:
            # `Uses` runs a command in the pod, and does not read the kubelet's report
            of_pod = EXEC if isinstance(self.effect(""), Uses) else [Right("kubernetes", "pods", access="get")]
            rights.extend(of_pod)
        return rights

    def plan(self, target: Target, *, fault_id: str) -> Undo:
        made = self._objects(target.host).object_of(self.object_kind, fault_id)
        return {**super().plan(target, fault_id=fault_id), "object": dict(made)}

    async def prior(self, target: Target) -> Mapping[str, Any]:
        """Raises FaultError if the cluster would refuse the object or its effect could not be seen. Creates nothing."""
        objects = self._objects(target.host)
        if self.by_netem and not objects.netem:
            raise FaultError(self.no_netem)
        await objects.check(self.object_kind, self.wanted(self.plan(target, fault_id="")), self.rights())
        return await self.effect(target.agent).before(self.hosts, target)

    async def apply(self, undo: Undo) -> None:
        await self._objects(undo["host"]).create(
            undo["object"], self.wanted(undo), once=isinstance(self, HappensOnce) and self.once
        )

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        """Judges the effect alone. If the effect is not as expected, `measured` adds the controller's report."""
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
    """The injector's report on the object, or why there is none."""
    try:
        return await objects.said(undo["object"]) or "there is no object of ours"
    except FaultError as error:
        return str(error)
