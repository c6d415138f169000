"""Any other fault of Chaos Mesh on a pod, as its own manifest says it, where its effect is one that can be seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, field_validator, model_validator

from hashidrill.core.experiment.strict import Strict
from hashidrill.core.faults.base import Cases
from hashidrill.core.protocols.abc import Observer
from hashidrill.core.protocols.capabilities import AgentApi, ChaosPod
from hashidrill.core.protocols.registry import near
from hashidrill.core.units import Duration
from hashidrill.kubernetes.chaos_mesh.fault import ChaosMeshFault
from hashidrill.kubernetes.chaos_mesh.pods import provable
from hashidrill.kubernetes.chaos_mesh.vocabulary import CHAOS
from hashidrill.kubernetes.observing import OF_AGENT, Effect, Silent, Slow

_WHOM = ("mode", "value", "selector", "duration", "remoteCluster", "address")
_NETEM = {"delay", "loss", "corrupt", "duplicate", "netem"}


class ResourceParams(Strict):
    """What is asked of Chaos Mesh, and what of it this machine will see."""

    chaos: str
    """The kind of the object that is created: `NetworkChaos`, `IOChaos`, `StressChaos`, `TimeChaos`, `HTTPChaos`, ."""
    spec: dict[str, Any]
    """Its `spec`, without `mode`, `selector` and `duration`: `on` says whom it hits, and hashidrill how long it lasts.
    """
    effect: Literal["silent", "slow"]
    """What is seen of it: the agent is `silent`, or `slow`."""
    by: Annotated[Duration, AfterValidator(provable)] | None = None
    """Of `slow`: how much longer each answer takes, from 20ms to 2s."""

    @field_validator("chaos")
    @classmethod
    def _of_a_pod(cls, value: str) -> str:
        known = [one for one in CHAOS if one != "PhysicalMachineChaos"]
        if value not in known:
            raise ValueError(f"{value!r} is no kind of Chaos Mesh that injects into a pod: {near(value, known)}")
        return value

    @field_validator("spec")
    @classmethod
    def _aims_at_nobody(cls, value: dict[str, Any]) -> dict[str, Any]:
        if said := [name for name in _WHOM if name in value]:
            raise ValueError(
                f"{' and '.join(said)} does not belong into it: `on` says whom it hits, and hashidrill how long"
            )
        return value

    @model_validator(mode="after")
    def _cuts_somebody_off(self) -> ResourceParams:
        """Chaos Mesh takes a partition without the other side, and its controller says AllInjected."""
        other = [name for name in ("target", "externalTargets") if self.spec.get(name)]
        if self.chaos == "NetworkChaos" and self.spec.get("action") == "partition" and not other:
            raise ValueError("a partition needs somebody on the other side: `target` or `externalTargets`")
        return self

    @model_validator(mode="after")
    def _seen(self) -> ResourceParams:
        if (self.effect == "slow") != (self.by is not None):
            raise ValueError("`effect: slow` says `by` how much, like 200ms; no other effect does")
        if self.spec.get("action") in {"pod-kill", "container-kill"}:
            raise ValueError("use chaos_mesh.pod_kill or chaos_mesh.container_kill, which can be proven")
        return self


class Resource(ChaosMeshFault[ResourceParams]):
    """A fault of Chaos Mesh on the agent's pod, in its own words, that makes the agent silent or slow.

    Limits: a field that the cluster's own definition does not have is an error. A fault that makes the agent neither
    silent nor slow for this machine cannot be proven, and the run is INVALID.
    """

    kind: ClassVar[str] = "chaos_mesh.resource"
    observer: ClassVar[Observer] = Observer(OF_AGENT)
    Params: ClassVar[type[Strict]] = ResourceParams
    injector: ClassVar[type[Any]] = ChaosPod
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({ChaosPod, AgentApi})
    cases: ClassVar[Cases] = Cases(
        each=(
            {"chaos": "HTTPChaos", "spec": {"target": "Request", "port": 8500, "abort": True}, "effect": "silent"},
            {
                "chaos": "NetworkChaos",
                "spec": {"action": "delay", "delay": {"latency": "300ms"}},
                "effect": "slow",
                "by": "300ms",
            },
        )
    )

    @property
    def object_kind(self) -> str:
        return self.params.chaos

    @property
    def by_netem(self) -> bool:  # type: ignore[override]
        return self.params.chaos == "NetworkChaos" and self.params.spec.get("action") in _NETEM

    def spec(self, agent: str) -> Mapping[str, Any]:
        return self.params.spec

    def effect(self, agent: str) -> Effect:
        return Silent() if self.params.by is None else Slow(float(self.params.by))
