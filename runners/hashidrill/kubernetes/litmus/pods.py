"""Faults by Litmus that take the pod of an agent, or a container in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from hashidrill.core.experiment.strict import Strict
from hashidrill.core.faults.base import Cases, P
from hashidrill.core.protocols.abc import Observer
from hashidrill.core.protocols.capabilities import LitmusPod, PodStatus
from hashidrill.kubernetes.litmus.fault import LitmusFault
from hashidrill.kubernetes.litmus.seen import Container
from hashidrill.kubernetes.observing import OF_KUBELET, SHARED, Effect, Replaced, Restarted


class _Taken(LitmusFault[P]):
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({LitmusPod, PodStatus})
    holds_down: ClassVar[bool] = True
    once: ClassVar[bool] = True


class PodDeleteParams(Strict):
    """How the pod is deleted."""

    force: bool = True
    """The pod gets no time to end by itself."""


class PodDelete(_Taken[PodDeleteParams]):
    """Deletes the pod of the agent; its StatefulSet starts another one of that name.

    Limits: those of `chaos_mesh.pod_kill`.
    """

    kind: ClassVar[str] = "litmus.pod_delete"
    observer: ClassVar[Observer] = Observer(OF_KUBELET, SHARED)
    Params: ClassVar[type[Strict]] = PodDeleteParams
    experiment: ClassVar[str] = "pod-delete"
    cases: ClassVar[Cases] = Cases(each=({}, {"force": False}), momentary=True)

    def env(self, agent: str) -> Mapping[str, str]:
        return {"FORCE": "true" if self.params.force else "false"}

    def effect(self, agent: str) -> Effect:
        return Replaced()


class ContainerKillParams(Strict):
    """Which container is killed, and how."""

    container: Container | None = None
    """Its name; none: that of the product, as the official charts have it."""
    signal: Literal["KILL", "TERM"] = "KILL"
    """The signal that ends the container: `KILL` or `TERM`."""


class ContainerKill(_Taken[ContainerKillParams]):
    """Kills a container in the pod of the agent; its kubelet starts it again.

    Limits: a kubelet that backs off waits longer after each kill.
    """

    kind: ClassVar[str] = "litmus.container_kill"
    observer: ClassVar[Observer] = Observer(OF_KUBELET, SHARED)
    Params: ClassVar[type[Strict]] = ContainerKillParams
    experiment: ClassVar[str] = "container-kill"
    cases: ClassVar[Cases] = Cases(each=({"signal": "TERM"},), momentary=True)

    def env(self, agent: str) -> Mapping[str, str]:
        return {"TARGET_CONTAINER": self.params.container or agent, "SIGNAL": f"SIG{self.params.signal}"}

    def effect(self, agent: str) -> Effect:
        return Restarted(self.params.container or agent)
