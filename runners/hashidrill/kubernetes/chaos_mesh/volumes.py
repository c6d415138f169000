"""Faults on the volume of an agent's pod, by Chaos Mesh, that the agent's own writes show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from hashidrill.core.experiment.strict import Strict
from hashidrill.core.faults.base import Cases
from hashidrill.core.protocols.abc import Observer
from hashidrill.core.protocols.capabilities import AgentApi, ChaosPod
from hashidrill.core.protocols.rights import Right
from hashidrill.core.units import Duration
from hashidrill.kubernetes.chaos_mesh.fault import ChaosMeshFault
from hashidrill.kubernetes.chaos_mesh.pods import provable
from hashidrill.kubernetes.observing import Effect, SlowWrites


class IoLatencyParams(Strict):
    """Which operations of a volume take longer, and by how much."""

    delay: Annotated[Duration, AfterValidator(provable)]
    """Of each operation, from 20ms to 2s."""
    volume: Annotated[str, Field(pattern=r"^/[\w./-]*$", description="Where it is mounted in the pod")]
    op: Literal["fsync", "write"] = "fsync"
    """Which operations wait: `fsync` or `write`."""
    container: Annotated[str, Field(min_length=1)] | None = None
    """Its name; none: that of the product, as the official charts name it."""


class IoLatency(ChaosMeshFault[IoLatencyParams]):
    """Delays operations on a volume of the leader's pod: every write that it commits waits for them.

    Limits: Consul, and its leader: no write waits for the disk of a follower. A token needs `write` on
    `hashidrill/nothing/`.
    """

    kind: ClassVar[str] = "chaos_mesh.io.latency"
    observer: ClassVar[Observer] = Observer("how long writes through the agent take, which change nothing")
    Params: ClassVar[type[Strict]] = IoLatencyParams
    injector: ClassVar[type[Any]] = ChaosPod
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({ChaosPod, AgentApi})
    cases: ClassVar[Cases] = Cases(
        each=(
            {"delay": "300ms", "volume": "/consul/data"},
            {"delay": "100ms", "volume": "/consul/data", "op": "write", "container": "server"},
        )
    )

    @property
    def object_kind(self) -> str:
        return "IOChaos"

    def rights(self) -> Sequence[Right]:
        return [*super().rights(), Right("consul", "key_prefix", "hashidrill/nothing/", "write")]

    def spec(self, agent: str) -> Mapping[str, Any]:
        return {
            "action": "latency",
            "delay": f"{round(self.params.delay * 1000)}ms",
            "percent": 100,
            "volumePath": self.params.volume,
            "methods": [self.params.op.upper()],
            "containerNames": [self.params.container or agent],
        }

    def effect(self, agent: str) -> Effect:
        return SlowWrites(float(self.params.delay))
