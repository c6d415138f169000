"""For experiments whose own work nobody sees from outside: what of it an agent or its kubelet will show."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from hashidrill.core.experiment.strict import Strict
from hashidrill.core.faults.base import P
from hashidrill.core.protocols.abc import Hosts, Observer
from hashidrill.core.protocols.capabilities import AgentApi, LitmusPod, PodStatus
from hashidrill.core.units import Duration
from hashidrill.kubernetes.litmus.fault import LitmusFault
from hashidrill.kubernetes.observing import OF_AGENT, OF_KUBELET, SHARED, Effect, Replaced, Restarted, Silent, Slow

_LONGEST = Duration("2s")
Seen = Literal["silent", "slow", "restarted", "replaced"]
Container = Annotated[str, Field(min_length=1)]


def provable(value: Duration) -> Duration:
    if not 0.02 <= value <= _LONGEST:
        raise ValueError(f"must be from 20ms to {_LONGEST}, because the proof waits for nine answers; not {value}")
    return value


Delay = Annotated[Duration, AfterValidator(provable)]


BY_EFFECT = Observer(f"{OF_AGENT}; or {OF_KUBELET}, by `effect`", SHARED)
"""What faults look through whose effect the experiment says."""


class SeenParams(Strict):
    """What this machine will see of it."""

    effect: Seen
    """What is seen of it: `silent`, `slow`, `restarted` or `replaced`."""
    by: Delay | None = None
    """Of `slow`: how much longer each answer takes, from 20ms to 2s."""
    container: Container | None = None
    """Its name; none: that of the product."""

    @model_validator(mode="after")
    def _slow_by(self) -> SeenParams:
        if (self.effect == "slow") != (self.by is not None):
            raise ValueError("`effect: slow` says `by` how much, like 200ms; no other effect does")
        return self


class SeenFault(LitmusFault[P]):
    """Its parameters have what SeenParams has."""

    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({LitmusPod, AgentApi, PodStatus})
    """Those of every `effect`; one fault of them has one."""

    def __init__(self, params: P, hosts: Hosts) -> None:
        super().__init__(params, hosts)
        seen = PodStatus if self._params.effect in {"restarted", "replaced"} else AgentApi
        self.capabilities = frozenset({LitmusPod, seen})  # type: ignore[misc]

    @property
    def _params(self) -> SeenParams:
        return self.params  # type: ignore[return-value]

    def container(self, agent: str) -> str:
        """As the official charts name them: after the product."""
        return self._params.container or agent

    def effect(self, agent: str) -> Effect:
        params = self._params
        if params.by is not None:
            return Slow(float(params.by))
        others: dict[str, Effect] = {
            "silent": Silent(),
            "restarted": Restarted(self.container(agent)),
            "replaced": Replaced(),
        }
        return others[params.effect]
