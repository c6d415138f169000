"""Faults by Litmus on what the pod of an agent sends, by netem."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator

from hashidrill.core.experiment.strict import Strict
from hashidrill.core.faults.base import Cases
from hashidrill.core.protocols.abc import Observer
from hashidrill.core.protocols.capabilities import AgentApi, LitmusPod
from hashidrill.core.units import Percent
from hashidrill.kubernetes.litmus.fault import LitmusFault, milliseconds, percentage
from hashidrill.kubernetes.litmus.seen import BY_EFFECT, Container, Delay, Seen, SeenFault, SeenParams
from hashidrill.kubernetes.observing import Effect, Slow

Interface = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.@-]{1,15}$")]
Share = Annotated[Percent, Field(ge=0.01)]
_ALL = Percent("100%")


class LatencyParams(Strict):
    """How much later what the pod sends leaves it."""

    delay: Delay
    """From 20ms to 2s."""
    interface: Interface = "eth0"
    """The pod's network interface."""
    container: Container | None = None
    """The container whose network is meant; none: that of the product."""


class PodNetworkLatency(LitmusFault[LatencyParams]):
    """Delays everything that the pod of the agent sends.

    Limits: only where the attach file says `netem: true`. What passes between agents is delayed too, and is not
    measured.
    """

    kind: ClassVar[str] = "litmus.pod_network_latency"
    observer: ClassVar[Observer] = Observer("the agent's own API, asked from this machine")
    Params: ClassVar[type[Strict]] = LatencyParams
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({LitmusPod, AgentApi})
    by_netem: ClassVar[bool] = True
    experiment: ClassVar[str] = "pod-network-latency"
    cases: ClassVar[Cases] = Cases(each=({"delay": "200ms"},))

    def env(self, agent: str) -> Mapping[str, str]:
        return {
            "NETWORK_LATENCY": milliseconds(self.params.delay),
            "JITTER": "0",
            "NETWORK_INTERFACE": self.params.interface,
            "TARGET_CONTAINER": self.params.container or agent,
        }

    def effect(self, agent: str) -> Effect:
        return Slow(float(self.params.delay))


class LossParams(SeenParams):
    """Which share of the packets that the pod sends is lost."""

    percent: Share = _ALL
    """Share of the packets."""
    effect: Seen = "silent"
    """What is seen of it: the agent is `silent` or `slow`, its container `restarted`, its pod `replaced`; required
    below 100%.
    """
    interface: Interface = "eth0"
    """The pod's network interface."""

    @model_validator(mode="after")
    def _of_a_part(self) -> LossParams:
        if self.percent < 1 and "effect" not in self.model_fields_set:
            raise ValueError(
                f"a loss of {self.percent} leaves the agent answering, and nobody outside counts packets: say by"
                " `effect` what is seen of it, or ask for 100%"
            )
        return self


class PodNetworkLoss(SeenFault[LossParams]):
    """Loses packets that the pod of the agent sends: with all of them it falls silent.

    Limits: only where the attach file says `netem: true`. Nobody outside counts lost packets: a loss that does not do
    what `effect` says makes the run INVALID. A liveness probe that fails meanwhile restarts the container.
    """

    kind: ClassVar[str] = "litmus.pod_network_loss"
    observer: ClassVar[Observer] = BY_EFFECT
    Params: ClassVar[type[Strict]] = LossParams
    by_netem: ClassVar[bool] = True
    experiment: ClassVar[str] = "pod-network-loss"
    cases: ClassVar[Cases] = Cases(each=({}, {"percent": "100%", "effect": "silent"}))

    def env(self, agent: str) -> Mapping[str, str]:
        return {
            "NETWORK_PACKET_LOSS_PERCENTAGE": percentage(self.params.percent),
            "NETWORK_INTERFACE": self.params.interface,
            "TARGET_CONTAINER": self.container(agent),
        }


class CorruptionParams(SeenParams):
    """Which share of the packets that the pod sends is corrupted."""

    percent: Share = _ALL
    """Share of the packets."""
    interface: Interface = "eth0"
    """The pod's network interface."""


class PodNetworkCorruption(SeenFault[CorruptionParams]):
    """Corrupts packets that the pod of the agent sends.

    Limits: those of `litmus.pod_network_loss`. The receiver drops corrupted packets, so that it looks like a loss.
    """

    kind: ClassVar[str] = "litmus.pod_network_corruption"
    observer: ClassVar[Observer] = BY_EFFECT
    Params: ClassVar[type[Strict]] = CorruptionParams
    by_netem: ClassVar[bool] = True
    experiment: ClassVar[str] = "pod-network-corruption"
    cases: ClassVar[Cases] = Cases(each=({"effect": "silent"},))

    def env(self, agent: str) -> Mapping[str, str]:
        return {
            "NETWORK_PACKET_CORRUPTION_PERCENTAGE": percentage(self.params.percent),
            "NETWORK_INTERFACE": self.params.interface,
            "TARGET_CONTAINER": self.container(agent),
        }
