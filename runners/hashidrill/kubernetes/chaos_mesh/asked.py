"""Faults on the pod of an agent that its own answers show: its clock, and its HTTP API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from hashidrill.core.experiment.strict import Strict
from hashidrill.core.faults.base import Cases, P
from hashidrill.core.protocols.abc import Observer
from hashidrill.core.protocols.capabilities import AgentApi, ChaosPod
from hashidrill.core.units import Duration
from hashidrill.kubernetes.chaos_mesh.fault import ChaosMeshFault
from hashidrill.kubernetes.chaos_mesh.pods import provable
from hashidrill.kubernetes.observing import LEAST_SKEW_S, OF_AGENT, Effect, Silent, Skewed, Slow
from hashidrill.staging.attach.product import attachables

_LONGEST = Duration("24h")


def _tellable(value: Duration) -> Duration:
    if not LEAST_SKEW_S <= value <= _LONGEST:
        raise ValueError(f"must be from {LEAST_SKEW_S:g}s to {_LONGEST}: answers say whole seconds; not {value}")
    return value


class _Asked(ChaosMeshFault[P]):
    injector: ClassVar[type[Any]] = ChaosPod
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({ChaosPod, AgentApi})


class TimeParams(Strict):
    """How wrong the clock is, and which way."""

    offset: Annotated[Duration, AfterValidator(_tellable)]
    """How wrong the clock is; from 5s to 24h."""
    direction: Literal["ahead", "behind"] = "ahead"
    """Which way the clock is moved: `ahead` or `behind`."""
    container: Annotated[str, Field(min_length=1)] | None = None
    """Its name; none: that of the product, as the official charts have it."""


class Time(_Asked[TimeParams]):
    """Sets the clock that the agent reads ahead or behind; that of its node stays as it is.

    Limits: only the wall clock (`CLOCK_REALTIME`): timers that count on the monotonic clock do not see it.
    """

    kind: ClassVar[str] = "chaos_mesh.time"
    observer: ClassVar[Observer] = Observer("the time in the agent's own answers, beside this machine's clock")
    Params: ClassVar[type[Strict]] = TimeParams
    cases: ClassVar[Cases] = Cases(each=({"offset": "10m", "direction": "behind"}, {"offset": "5s"}))

    @property
    def object_kind(self) -> str:
        return "TimeChaos"

    def spec(self, agent: str) -> Mapping[str, Any]:
        sign = "" if self.params.direction == "ahead" else "-"
        container = self.params.container or agent
        return {
            "timeOffset": f"{sign}{round(self.params.offset * 1000)}ms",
            "clockIds": ["CLOCK_REALTIME"],
            "containerNames": [container],
        }

    def effect(self, agent: str) -> Effect:
        return Skewed(float(self.params.offset) * (1 if self.params.direction == "ahead" else -1))


class PortParams(Strict):
    """Which port of the pod."""

    port: int | None = Field(default=None, ge=1, le=65535)
    """Of the pod; none: that of the product's API, like 8500."""


class _Http(_Asked[P]):
    @property
    def object_kind(self) -> str:
        return "HTTPChaos"

    def _of(self, agent: str, what: Mapping[str, Any]) -> Mapping[str, Any]:
        """That of the product's API, where no port is named. Every path: `*`."""
        port: int | None = getattr(self.params, "port", None)
        return {"target": "Request", "port": port or attachables([agent])[agent].port, "path": "*", **what}


class HttpAbort(_Http[PortParams]):
    """Breaks off every request to a port of the agent's pod.

    Limits: plain HTTP: over TLS, Chaos Mesh sees no requests. A port that is not the API's cannot be seen: the run is
    INVALID.
    """

    kind: ClassVar[str] = "chaos_mesh.http.abort"
    observer: ClassVar[Observer] = Observer(OF_AGENT)
    Params: ClassVar[type[Strict]] = PortParams

    def spec(self, agent: str) -> Mapping[str, Any]:
        return self._of(agent, {"abort": True})

    def effect(self, agent: str) -> Effect:
        return Silent()


class HttpDelayParams(PortParams):
    """How much later requests arrive."""

    delay: Annotated[Duration, AfterValidator(provable)]
    """From 20ms to 2s."""


class HttpDelay(_Http[HttpDelayParams]):
    """Delays every request to a port of the agent's pod.

    Limits: those of `chaos_mesh.http.abort`.
    """

    kind: ClassVar[str] = "chaos_mesh.http.delay"
    observer: ClassVar[Observer] = Observer("the agent's own API, asked from this machine")
    Params: ClassVar[type[Strict]] = HttpDelayParams
    cases: ClassVar[Cases] = Cases(each=({"delay": "300ms", "port": 8500},))

    def spec(self, agent: str) -> Mapping[str, Any]:
        return self._of(agent, {"delay": f"{round(self.params.delay * 1000)}ms"})

    def effect(self, agent: str) -> Effect:
        return Slow(float(self.params.delay))
