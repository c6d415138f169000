"""Faults by Litmus that take CPU, memory or disk from the pod of an agent: `effect` says what is seen of that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field

from hashidrill.core.experiment.strict import Strict
from hashidrill.core.faults.base import Cases
from hashidrill.core.protocols.abc import Observer
from hashidrill.core.units import Percent, Size
from hashidrill.kubernetes.litmus.fault import percentage
from hashidrill.kubernetes.litmus.seen import BY_EFFECT, SeenFault, SeenParams

_MEBIBYTE = 1024 * 1024
Workers = Annotated[int, Field(ge=1, le=64)]
Some = Annotated[Size, Field(ge=_MEBIBYTE)]


def _mebibytes(size: float) -> str:
    return str(max(1, round(size / _MEBIBYTE)))


class CpuParams(SeenParams):
    """How much CPU is taken."""

    cores: Annotated[int, Field(ge=1, le=256)] = 1
    """How many processes take it."""
    load: Annotated[Percent, Field(ge=0.01)] = Percent("100%")
    """Share of a core that each takes."""


class PodCpuHog(SeenFault[CpuParams]):
    """Takes CPU in the cgroup of the agent's container.

    Limits: nobody outside the pod sees its CPU: hashidrill proves what the agent shows of it, and no more. A container
    without a CPU limit may show nothing; the run is then INVALID.
    """

    kind: ClassVar[str] = "litmus.pod_cpu_hog"
    observer: ClassVar[Observer] = BY_EFFECT
    Params: ClassVar[type[Strict]] = CpuParams
    experiment: ClassVar[str] = "pod-cpu-hog"
    cases: ClassVar[Cases] = Cases(each=({"cores": 2, "load": "80%", "effect": "slow", "by": "300ms"},))

    def env(self, agent: str) -> Mapping[str, str]:
        return {
            "CPU_CORES": str(self.params.cores),
            "CPU_LOAD": percentage(self.params.load),
            "TARGET_CONTAINER": self.container(agent),
        }


class MemoryParams(SeenParams):
    """How much memory is taken."""

    size: Some
    """How much, from 1MiB."""
    workers: Workers = 1
    """How many processes take it."""


class PodMemoryHog(SeenFault[MemoryParams]):
    """Takes memory in the cgroup of the agent's container.

    Limits: nobody outside the pod sees its memory. The kernel may kill Litmus's own process first, and nothing is seen.
    """

    kind: ClassVar[str] = "litmus.pod_memory_hog"
    observer: ClassVar[Observer] = BY_EFFECT
    Params: ClassVar[type[Strict]] = MemoryParams
    experiment: ClassVar[str] = "pod-memory-hog"
    cases: ClassVar[Cases] = Cases(each=({"size": "512MiB", "effect": "restarted"},))

    def env(self, agent: str) -> Mapping[str, str]:
        return {
            "MEMORY_CONSUMPTION": _mebibytes(self.params.size),
            "NUMBER_OF_WORKERS": str(self.params.workers),
            "TARGET_CONTAINER": self.container(agent),
        }


class IoParams(SeenParams):
    """How much is written, and where."""

    percent: Annotated[Percent, Field(ge=0.01)] = Percent("10%")
    """Share of the free file system that the files take."""
    workers: Workers = 4
    """How many processes write."""
    path: Annotated[str, Field(pattern=r"^/[\w./-]*$")] | None = None
    """The folder, usually that of the agent's data; none: that of the container."""


class PodIoStress(SeenFault[IoParams]):
    """Writes and reads files in the agent's container, as fast as its disk allows.

    Limits: nobody outside the pod sees its disk. Other pods on that disk are slowed too.
    """

    kind: ClassVar[str] = "litmus.pod_io_stress"
    observer: ClassVar[Observer] = BY_EFFECT
    Params: ClassVar[type[Strict]] = IoParams
    experiment: ClassVar[str] = "pod-io-stress"
    cases: ClassVar[Cases] = Cases(each=({"path": "/consul/data", "effect": "slow", "by": "300ms"},))

    def env(self, agent: str) -> Mapping[str, str]:
        path = {} if self.params.path is None else {"VOLUME_MOUNT_PATH": self.params.path}
        return {
            "FILESYSTEM_UTILIZATION_PERCENTAGE": percentage(self.params.percent),
            "NUMBER_OF_WORKERS": str(self.params.workers),
            "TARGET_CONTAINER": self.container(agent),
            **path,
        }


class FillParams(SeenParams):
    """How full the container's ephemeral storage becomes."""

    percent: Annotated[Percent, Field(ge=0.01)] = Percent("80%")
    """Share of the limit."""
    of: Some | None = None
    """The limit, where the container has none."""


class DiskFill(SeenFault[FillParams]):
    """Fills the ephemeral storage of the agent's container.

    Limits: nobody outside the pod sees its disk. Data on a volume of its own is not in the ephemeral storage.
    """

    kind: ClassVar[str] = "litmus.disk_fill"
    observer: ClassVar[Observer] = BY_EFFECT
    Params: ClassVar[type[Strict]] = FillParams
    experiment: ClassVar[str] = "disk-fill"
    cases: ClassVar[Cases] = Cases(each=({"of": "64MiB", "effect": "replaced"},))

    def env(self, agent: str) -> Mapping[str, str]:
        of = {} if self.params.of is None else {"EPHEMERAL_STORAGE_MEBIBYTES": _mebibytes(self.params.of)}
        return {"FILL_PERCENTAGE": percentage(self.params.percent), "TARGET_CONTAINER": self.container(agent), **of}
