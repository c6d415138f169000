"""Faults on the pod of an agent, by Chaos Mesh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

from hashidrill.core.experiment.strict import Strict
from hashidrill.core.faults.base import Cases, NoParams, P
from hashidrill.core.protocols.abc import Observer
from hashidrill.core.protocols.capabilities import AgentApi, ChaosPod, PodStatus
from hashidrill.core.units import Duration
from hashidrill.kubernetes.chaos_mesh.fault import ChaosMeshFault
from hashidrill.kubernetes.observing import OF_AGENT, OF_KUBELET, SHARED, Effect, Failed, Replaced, Restarted, Slow

_LONGEST = Duration("2s")


def provable(value: Duration) -> Duration:
    if not 0.02 <= value <= _LONGEST:
        raise ValueError(f"must be from 20ms to {_LONGEST}, because the proof waits for nine answers; not {value}")
    return value


class _PodFault(ChaosMeshFault[P]):
    injector: ClassVar[type[Any]] = ChaosPod
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({ChaosPod, PodStatus})
    holds_down: ClassVar[bool] = True

    @property
    def object_kind(self) -> str:
        return "PodChaos"


class PodKillParams(Strict):
    """How the pod is deleted."""

    grace: Duration = Field(default=Duration("0s"), le=600)
    """How long the pod may take to end by itself, in whole seconds."""


class PodKill(_PodFault[PodKillParams]):
    """Deletes the pod of the agent; its StatefulSet starts another one of that name.

    Limits: only a pod of a StatefulSet: another one does not come back under its name. The new pod usually has another
    address, and the run does not follow it: name the agent's URL under `agents`, by a name that does.
    """

    kind: ClassVar[str] = "chaos_mesh.pod_kill"
    observer: ClassVar[Observer] = Observer(OF_KUBELET, SHARED)
    Params: ClassVar[type[Strict]] = PodKillParams
    once: ClassVar[bool] = True
    cases: ClassVar[Cases] = Cases(momentary=True)

    def spec(self, agent: str) -> Mapping[str, Any]:
        return {"action": "pod-kill", "gracePeriod": round(self.params.grace)}

    def effect(self, agent: str) -> Effect:
        return Replaced()


class PodFailure(_PodFault[NoParams]):
    """Keeps the pod of the agent from running: Chaos Mesh swaps its images for one that does nothing.

    Limits: the containers restart when it begins and when it ends.
    """

    kind: ClassVar[str] = "chaos_mesh.pod_failure"
    observer: ClassVar[Observer] = Observer(f"{OF_KUBELET}, and {OF_AGENT}", SHARED)
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({ChaosPod, PodStatus, AgentApi})

    def spec(self, agent: str) -> Mapping[str, Any]:
        return {"action": "pod-failure"}

    def effect(self, agent: str) -> Effect:
        return Failed()


class ContainerKillParams(Strict):
    """Which container is killed."""

    container: Annotated[str, Field(min_length=1)] | None = None
    """Its name; none: that of the product, as the official charts have it."""


class ContainerKill(_PodFault[ContainerKillParams]):
    """Kills a container in the pod of the agent; its kubelet starts it again.

    Limits: a kubelet that backs off waits longer after each kill.
    """

    kind: ClassVar[str] = "chaos_mesh.container_kill"
    observer: ClassVar[Observer] = Observer(OF_KUBELET, SHARED)
    Params: ClassVar[type[Strict]] = ContainerKillParams
    once: ClassVar[bool] = True
    cases: ClassVar[Cases] = Cases(momentary=True)

    def _container(self, agent: str) -> str:
        """As the official charts name them: after the product."""
        return self.params.container or agent

    def spec(self, agent: str) -> Mapping[str, Any]:
        return {"action": "container-kill", "containerNames": [self._container(agent)]}

    def effect(self, agent: str) -> Effect:
        return Restarted(self._container(agent))


class DelayParams(Strict):
    """How much later what the pod sends leaves it."""

    delay: Annotated[Duration, AfterValidator(provable)]
    """From 20ms to 2s."""


class NetworkDelay(_PodFault[DelayParams]):
    """Delays everything that the pod of the agent sends, by netem.

    Limits: only where the attach file says `netem: true`. What passes between agents is delayed too, and is not
    measured.
    """

    kind: ClassVar[str] = "chaos_mesh.network.delay"
    observer: ClassVar[Observer] = Observer("the agent's own API, asked from this machine")
    Params: ClassVar[type[Strict]] = DelayParams
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({ChaosPod, AgentApi})
    holds_down: ClassVar[bool] = False
    by_netem: ClassVar[bool] = True
    cases: ClassVar[Cases] = Cases(each=({"delay": "200ms"},))

    @property
    def object_kind(self) -> str:
        return "NetworkChaos"

    def spec(self, agent: str) -> Mapping[str, Any]:
        latency = f"{round(self.params.delay * 1000)}ms"
        return {"action": "delay", "direction": "to", "delay": {"latency": latency, "jitter": "0ms"}}

    def effect(self, agent: str) -> Effect:
        return Slow(float(self.params.delay))
