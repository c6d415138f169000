"""Any other experiment of a ChaosHub on a pod, as its own folder says it, where its effect is one that can be seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field, field_validator

from hashidrill.core.experiment.strict import Strict
from hashidrill.core.faults.base import Cases
from hashidrill.core.protocols.abc import Observer
from hashidrill.kubernetes.litmus.seen import BY_EFFECT, SeenFault, SeenParams

_OF_HASHIDRILL = {
    "TOTAL_CHAOS_DURATION": "hashidrill says how long",
    "TARGET_PODS": "`on` says whom it hits",
    "NODE_LABEL": "`on` says whom it hits",
    "PODS_AFFECTED_PERC": "`on` says whom it hits",
    "TARGET_NODE": "a node is more than one agent",
    "TARGET_NODES": "a node is more than one agent",
    "TARGET_CONTAINER": "it is the parameter `container`",
}
_NETEM = {
    "pod-network-latency",
    "pod-network-loss",
    "pod-network-corruption",
    "pod-network-duplication",
    "pod-network-rate-limit",
}
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$")]


class ExperimentParams(SeenParams):
    """Which experiment, and what is said to it."""

    experiment: Name
    """The name of a ChaosExperiment in that namespace: the name of its folder in the ChaosHub."""
    env: dict[str, str] = Field(default={})
    """What is said to it, as texts; `on` says whom it hits, and hashidrill how long it lasts."""

    @field_validator("experiment")
    @classmethod
    def _on_a_pod(cls, value: str) -> str:
        if value.startswith("node-") or value.endswith("-service-kill"):
            raise ValueError(f"{value} hits a node with all that runs there, and `on` names one agent")
        return value

    @field_validator("env")
    @classmethod
    def _aims_at_nobody(cls, value: dict[str, str]) -> dict[str, str]:
        if wrong := [f"{name}: {_OF_HASHIDRILL[name]}" for name in value if name in _OF_HASHIDRILL]:
            raise ValueError("; ".join(wrong))
        return value


class Experiment(SeenFault[ExperimentParams]):
    """An experiment of a ChaosHub on the agent's pod, in its own words.

    Limits: a name in `env` that the ChaosExperiment does not list is an error. Other experiments on nodes are refused:
    a node is more than one agent.
    """

    kind: ClassVar[str] = "litmus.experiment"
    observer: ClassVar[Observer] = BY_EFFECT
    Params: ClassVar[type[Strict]] = ExperimentParams
    cases: ClassVar[Cases] = Cases(
        each=(
            {"experiment": "pod-dns-error", "env": {"TARGET_HOSTNAMES": '["a"]'}, "effect": "silent"},
            {"experiment": "pod-network-duplication", "effect": "slow", "by": "300ms"},
        )
    )

    @property
    def experiment(self) -> str:  # type: ignore[override]
        return self.params.experiment

    @property
    def by_netem(self) -> bool:  # type: ignore[override]
        return self.params.experiment in _NETEM

    def env(self, agent: str) -> Mapping[str, str]:
        return {"TARGET_CONTAINER": self.container(agent), **self.params.env}
