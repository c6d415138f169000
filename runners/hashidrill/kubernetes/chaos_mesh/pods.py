"""Faults on the pod of an agent, by Chaos Mesh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from hashidrill.core.experiment.strict import Strict
from hashidrill.core.faults.base import Cases, NoParams, P
from hashidrill.core.protocols.abc import Observer
from hashidrill.core.protocols.capabilities import AgentApi, ChaosPod, PodStatus
from hashidrill.core.protocols.registry import near
from hashidrill.core.protocols.rights import Right
from hashidrill.core.units import Bandwidth, Duration, Percent, Size
from hashidrill.kubernetes.external_fault import Container, Delay, ExternalFault
from hashidrill.kubernetes.pod_observers import (
    LEAST_MEMORY,
    LEAST_SKEW_S,
    OF_AGENT,
    OF_API,
    OF_CGROUP,
    OF_KUBELET,
    SHARED,
    Effect,
    Failed,
    NarrowAnswers,
    Replaced,
    Restarted,
    Silent,
    Skewed,
    Slow,
    SlowWrites,
    Uses,
)
from hashidrill.kubernetes.vocabulary import CHAOS, CHAOS_MESH
from hashidrill.staging.attach.product import attachables

_LONGEST_SKEW = Duration("24h")
_WHOM = ("mode", "value", "selector", "duration", "remoteCluster", "address")
_NETEM = {"delay", "loss", "corrupt", "duplicate", "netem"}


class ChaosMeshFault(ExternalFault[P]):
    """A fault by one object of Chaos Mesh. `injector` is ChaosPod or ChaosMachine."""

    system = CHAOS_MESH
    injector = ChaosPod
    seen_within_s = 30.0
    """The controller needs seconds to start on an object, and the kubelet needs seconds to report."""
    no_netem = (
        "it needs netem in the kernel of the node, and services.kubernetes.netem of the attach file does not say that"
        " the nodes have it: without netem the object fails, cannot be deleted, and blocks the recovery of other faults"
        " on that pod; run `modprobe sch_netem` on the nodes, and write `netem: true`"
    )


def _milliseconds(value: float) -> str:
    return f"{round(value * 1000)}ms"


class PodKillParams(Strict):
    """How the pod is deleted."""

    grace: Duration = Field(default=Duration("0s"), le=600)
    """How long the pod may take to end by itself, in whole seconds."""


class PodKill(ChaosMeshFault[PodKillParams]):
    """Deletes the agent's pod; the pod's StatefulSet starts a new pod of that name.

    Limits: it works only on pods of a StatefulSet, because others do not come back under their names. The new pod has
    another address: the run follows it if the attach file finds agents by the labels of their pods; otherwise name the
    agent's URL under `agents`.
    """

    kind: ClassVar[str] = "chaos_mesh.pod_kill"
    cases: ClassVar[Cases] = Cases(momentary=True)
    object_kind = "PodChaos"
    observer = Observer(OF_KUBELET, SHARED)
    Params = PodKillParams
    capabilities = frozenset({ChaosPod, PodStatus})
    holds_down = True
    once = True
    shows = Replaced()

    def spec(self, agent: str) -> Mapping[str, Any]:
        return {"action": "pod-kill", "gracePeriod": round(self.params.grace)}


class PodFailure(ChaosMeshFault[NoParams]):
    """Keeps the agent's pod from working: Chaos Mesh replaces its images by one that does nothing.

    Limits: the containers restart when the fault begins and when it ends.
    """

    kind: ClassVar[str] = "chaos_mesh.pod_failure"
    object_kind = "PodChaos"
    observer = Observer(f"{OF_KUBELET}, and {OF_AGENT}", SHARED)
    capabilities = frozenset({ChaosPod, PodStatus, AgentApi})
    holds_down = True
    shows = Failed()

    def spec(self, agent: str) -> Mapping[str, Any]:
        return {"action": "pod-failure"}


class ContainerKillParams(Strict):
    """Which container is killed."""

    container: Container | None = None
    """The container's name; none: the product's name, as in the official charts."""


class ContainerKill(ChaosMeshFault[ContainerKillParams]):
    """Kills a container in the agent's pod; the kubelet starts the container again.

    Limits: the kubelet backs off: it waits longer after each kill.
    """

    kind: ClassVar[str] = "chaos_mesh.container_kill"
    object_kind = "PodChaos"
    observer = Observer(OF_KUBELET, SHARED)
    Params = ContainerKillParams
    capabilities = frozenset({ChaosPod, PodStatus})
    holds_down = True
    once = True
    cases: ClassVar[Cases] = Cases(momentary=True)

    def spec(self, agent: str) -> Mapping[str, Any]:
        return {"action": "container-kill", "containerNames": [self.params.container or agent]}

    def effect(self, agent: str) -> Effect:
        return Restarted(self.params.container or agent)


class _AnswersFault(ChaosMeshFault[P]):
    observer = Observer(OF_API)
    capabilities = frozenset({ChaosPod, AgentApi})


class DelayParams(Strict):
    """By how much packets that the pod sends are delayed."""

    delay: Delay
    """From 20ms to 2s."""


class NetworkDelay(_AnswersFault[DelayParams]):
    """Delays everything that the agent's pod sends, by netem.

    Limits: the attach file must say `netem: true`. The traffic between agents is delayed too, but that delay is not
    measured.
    """

    kind: ClassVar[str] = "chaos_mesh.network.delay"
    observer = _AnswersFault.observer
    cases: ClassVar[Cases] = Cases(each=({"delay": "200ms"},))
    object_kind = "NetworkChaos"
    Params = DelayParams
    by_netem = True

    def spec(self, agent: str) -> Mapping[str, Any]:
        delay = {"latency": _milliseconds(self.params.delay), "jitter": "0ms"}
        return {"action": "delay", "direction": "to", "delay": delay}


class NetworkPartition(_AnswersFault[NoParams]):
    """Drops everything that the agent's pod sends, by iptables: to agents, to clients and to its kubelet.

    Limits: if a liveness probe fails meanwhile, the kubelet restarts the container.
    """

    kind: ClassVar[str] = "chaos_mesh.network.partition"
    object_kind = "NetworkChaos"
    observer = Observer(OF_AGENT)
    shows = Silent()

    def spec(self, agent: str) -> Mapping[str, Any]:
        """Names all addresses as two halves, because an ipset does not accept 0.0.0.0/0."""
        return {"action": "partition", "direction": "to", "externalTargets": ["0.0.0.0/1", "128.0.0.0/1"]}


_SLOWEST, _FASTEST = Bandwidth("4KB/s"), Bandwidth("1MB/s")
_BURST_BYTES, _QUEUE_BYTES = 10_000, 65_536
"""The token bucket's burst and queue. Both are small, so that they do not hide the rate."""


def _provable_rate(value: Bandwidth) -> Bandwidth:
    if not _SLOWEST <= value <= _FASTEST:
        raise ValueError(f"must be from {_SLOWEST} to {_FASTEST}: the proof reads for a second; not {value}")
    return value


class BandwidthParams(Strict):
    """How much the pod may send."""

    rate: Annotated[Bandwidth, AfterValidator(_provable_rate)]
    """Bytes per second, from 4KB/s to 1MB/s."""


class NetworkBandwidth(_AnswersFault[BandwidthParams]):
    """Limits what the agent's pod sends to `rate`, by a token bucket of tc.

    Limits: it works only for Consul, whose large answers are the proof; the node's kernel needs the queue `tbf`.
    """

    kind: ClassVar[str] = "chaos_mesh.network.bandwidth"
    cases: ClassVar[Cases] = Cases(each=({"rate": "64KB/s"},))
    object_kind = "NetworkChaos"
    observer = Observer("how long large answers of the agent to this machine take")
    Params = BandwidthParams

    def spec(self, agent: str) -> Mapping[str, Any]:
        bucket = {"rate": f"{round(self.params.rate)}bps", "limit": _QUEUE_BYTES, "buffer": _BURST_BYTES}
        return {"action": "bandwidth", "direction": "to", "bandwidth": bucket}  # its bps are bytes

    def effect(self, agent: str) -> Effect:
        return NarrowAnswers(float(self.params.rate), _BURST_BYTES)


class _StressFault(ChaosMeshFault[P]):
    object_kind = "StressChaos"
    observer = Observer(OF_CGROUP)
    capabilities = frozenset({ChaosPod, PodStatus})
    stressor: ClassVar[str]

    def spec(self, agent: str) -> Mapping[str, Any]:
        params = self.params
        name: str = params.container or agent  # type: ignore[attr-defined]
        return {"stressors": {self.stressor: self.asked()}, "containerNames": [name]}

    def asked(self) -> Mapping[str, Any]:
        raise NotImplementedError


class CpuParams(Strict):
    """How much CPU is used."""

    workers: int = Field(default=1, ge=1, le=256)
    """How many processes use CPU."""
    load: Annotated[Percent, Field(ge=0.1)] = Percent("100%")
    """Share of a core that each process uses."""
    container: Container | None = None
    """The container's name; none: the product's name, as in the official charts."""


class StressCpu(_StressFault[CpuParams]):
    """Uses CPU in the cgroup of the agent's container.

    Limits: the stress must get at least half of the CPU that the parameters ask for: on a node with less idle CPU, the
    run is INVALID. If the container has a CPU limit, the agent is throttled too.
    """

    kind: ClassVar[str] = "chaos_mesh.stress.cpu"
    cases: ClassVar[Cases] = Cases(each=({"load": "50%"}, {"workers": 2, "container": "consul"}))
    observer = _StressFault.observer
    Params = CpuParams
    stressor = "cpu"

    def asked(self) -> Mapping[str, Any]:
        return {"workers": self.params.workers, "load": round(self.params.load * 100)}

    def effect(self, agent: str) -> Effect:
        return Uses(self.params.container or agent, cores=self.params.workers * float(self.params.load))


class MemoryParams(Strict):
    """How much memory is allocated."""

    size: Annotated[Size, Field(ge=LEAST_MEMORY)]
    """How much; at least 64MiB, because the agent's own use varies."""
    container: Container | None = None
    """The container's name; none: the product's name, as in the official charts."""


class StressMemory(_StressFault[MemoryParams]):
    """Allocates memory in the cgroup of the agent's container.

    Limits: at the container's memory limit the kernel kills Chaos Mesh's process or the agent; if it kills Chaos
    Mesh's process, the effect ends.
    """

    kind: ClassVar[str] = "chaos_mesh.stress.memory"
    cases: ClassVar[Cases] = Cases(each=({"size": "128MiB"},))
    observer = _StressFault.observer
    Params = MemoryParams
    stressor = "memory"

    def asked(self) -> Mapping[str, Any]:
        return {"workers": 1, "size": f"{round(self.params.size)}B"}

    def effect(self, agent: str) -> Effect:
        return Uses(self.params.container or agent, size=float(self.params.size))


def _readable_skew(value: Duration) -> Duration:
    if not LEAST_SKEW_S <= value <= _LONGEST_SKEW:
        raise ValueError(f"must be from {LEAST_SKEW_S:g}s to {_LONGEST_SKEW}: answers give whole seconds; not {value}")
    return value


class TimeParams(Strict):
    """How wrong the clock is, and which way."""

    offset: Annotated[Duration, AfterValidator(_readable_skew)]
    """How wrong the clock is; from 5s to 24h."""
    direction: Literal["ahead", "behind"] = "ahead"
    """Which way the clock is moved: `ahead` or `behind`."""
    container: Container | None = None
    """The container's name; none: the product's name, as in the official charts."""


class Time(_AnswersFault[TimeParams]):
    """Sets the clock that the agent reads ahead or behind; the node's own clock does not change.

    Limits: it changes only the wall clock (`CLOCK_REALTIME`); timers on the monotonic clock are not affected.
    """

    kind: ClassVar[str] = "chaos_mesh.time"
    cases: ClassVar[Cases] = Cases(each=({"offset": "10m", "direction": "behind"}, {"offset": "5s"}))
    object_kind = "TimeChaos"
    observer = Observer("the time in the agent's own answers, compared with this machine's clock")
    Params = TimeParams

    def spec(self, agent: str) -> Mapping[str, Any]:
        sign = "" if self.params.direction == "ahead" else "-"
        return {
            "timeOffset": f"{sign}{_milliseconds(self.params.offset)}",
            "clockIds": ["CLOCK_REALTIME"],
            "containerNames": [self.params.container or agent],
        }

    def effect(self, agent: str) -> Effect:
        return Skewed(float(self.params.offset) * (1 if self.params.direction == "ahead" else -1))


class PortParams(Strict):
    """Which port of the pod."""

    port: int | None = Field(default=None, ge=1, le=65535)
    """The port of the pod; none: the port of the product's API, like 8500."""


def _http(params: PortParams, agent: str, what: Mapping[str, Any]) -> Mapping[str, Any]:
    """A spec for all paths of that port, or else of the port of the product's API."""
    return {"target": "Request", "port": params.port or attachables([agent])[agent].port, "path": "*", **what}


class HttpAbort(_AnswersFault[PortParams]):
    """Aborts every request to a port of the agent's pod.

    Limits: it works only for plain HTTP, because Chaos Mesh sees no requests in TLS. Only the API's port can be
    observed: with another port, the run is INVALID.
    """

    kind: ClassVar[str] = "chaos_mesh.http.abort"
    object_kind = "HTTPChaos"
    observer = Observer(OF_AGENT)
    Params = PortParams
    shows = Silent()

    def spec(self, agent: str) -> Mapping[str, Any]:
        return _http(self.params, agent, {"abort": True})


class HttpDelayParams(PortParams):
    """How much later requests arrive."""

    delay: Delay
    """From 20ms to 2s."""


class HttpDelay(_AnswersFault[HttpDelayParams]):
    """Delays every request to a port of the agent's pod.

    Limits: the same as for `chaos_mesh.http.abort`.
    """

    kind: ClassVar[str] = "chaos_mesh.http.delay"
    observer = _AnswersFault.observer
    cases: ClassVar[Cases] = Cases(each=({"delay": "300ms", "port": 8500},))
    object_kind = "HTTPChaos"
    Params = HttpDelayParams

    def spec(self, agent: str) -> Mapping[str, Any]:
        return _http(self.params, agent, {"delay": _milliseconds(self.params.delay)})


class IoLatencyParams(Strict):
    """Which operations of a volume take longer, and by how much."""

    delay: Delay
    """The delay of each operation, from 20ms to 2s."""
    volume: Annotated[str, Field(pattern=r"^/[\w./-]*$", description="Where the volume is mounted in the pod")]
    op: Literal["fsync", "write"] = "fsync"
    """Which operations are delayed: `fsync` or `write`."""
    container: Container | None = None
    """The container's name; none: the product's name, as in the official charts."""


class IoLatency(_AnswersFault[IoLatencyParams]):
    """Delays operations on a volume of the leader's pod: every write that the leader commits waits for them.

    Limits: it works only on Consul's leader, because no write waits for a follower's disk. The token needs `write` on
    `hashidrill/nothing/`.
    """

    kind: ClassVar[str] = "chaos_mesh.io.latency"
    cases: ClassVar[Cases] = Cases(
        each=(
            {"delay": "300ms", "volume": "/consul/data"},
            {"delay": "100ms", "volume": "/consul/data", "op": "write", "container": "server"},
        )
    )
    object_kind = "IOChaos"
    observer = Observer("how long writes through the agent that change nothing take")
    Params = IoLatencyParams

    def rights(self) -> Sequence[Right]:
        return [*super().rights(), Right("consul", "key_prefix", "hashidrill/nothing/", "write")]

    def spec(self, agent: str) -> Mapping[str, Any]:
        return {
            "action": "latency",
            "delay": _milliseconds(self.params.delay),
            "percent": 100,
            "volumePath": self.params.volume,
            "methods": [self.params.op.upper()],
            "containerNames": [self.params.container or agent],
        }

    def effect(self, agent: str) -> Effect:
        return SlowWrites(float(self.params.delay))


class ResourceParams(Strict):
    """What Chaos Mesh is asked to do, and which part of that this machine will see."""

    chaos: str
    """The kind of the created object: `NetworkChaos`, `IOChaos`, `StressChaos`, `TimeChaos`, `HTTPChaos`, ..."""
    spec: dict[str, Any]
    """The object's `spec`, without `mode`, `selector` and `duration`: `on` names the target, and hashidrill sets the
    duration."""
    effect: Literal["silent", "slow"]
    """The visible effect: the agent is `silent`, or `slow`."""
    by: Delay | None = None
    """For `slow`: how much longer each answer takes, from 20ms to 2s."""

    @field_validator("chaos")
    @classmethod
    def _of_a_pod(cls, value: str) -> str:
        known = [one for one in CHAOS if one != "PhysicalMachineChaos"]
        if value not in known:
            raise ValueError(f"{value!r} is not a kind of Chaos Mesh that injects into a pod: {near(value, known)}")
        return value

    @field_validator("spec")
    @classmethod
    def _names_no_target(cls, value: dict[str, Any]) -> dict[str, Any]:
        if said := [name for name in _WHOM if name in value]:
            raise ValueError(
                f"{' and '.join(said)} must not be set: `on` names the target, and hashidrill sets the duration"
            )
        return value

    @model_validator(mode="after")
    def _can_be_proven(self) -> ResourceParams:
        """Chaos Mesh accepts a partition without another side, and its controller says AllInjected."""
        other = [name for name in ("target", "externalTargets") if self.spec.get(name)]
        if self.chaos == "NetworkChaos" and self.spec.get("action") == "partition" and not other:
            raise ValueError("a partition needs another side: `target` or `externalTargets`")
        if (self.effect == "slow") != (self.by is not None):
            raise ValueError("`effect: slow` needs `by`, a delay like 200ms; no other effect has one")
        if self.spec.get("action") in {"pod-kill", "container-kill"}:
            raise ValueError("use chaos_mesh.pod_kill or chaos_mesh.container_kill, which can be proven")
        return self


class Resource(_AnswersFault[ResourceParams]):
    """Any fault of Chaos Mesh on the agent's pod, by its own spec, that makes the agent silent or slow.

    Limits: a field that the cluster's own definition does not have is an error. If the fault makes the agent neither
    silent nor slow for this machine, it is not proven, and the run is INVALID.
    """

    kind: ClassVar[str] = "chaos_mesh.resource"
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
    observer = Observer(OF_AGENT)
    Params = ResourceParams

    @property
    def object_kind(self) -> str:  # type: ignore[override]
        return self.params.chaos

    @property
    def by_netem(self) -> bool:  # type: ignore[override]
        return self.params.chaos == "NetworkChaos" and self.params.spec.get("action") in _NETEM

    def spec(self, agent: str) -> Mapping[str, Any]:
        return self.params.spec

    def effect(self, agent: str) -> Effect:
        return Silent() if self.params.by is None else Slow(float(self.params.by))
