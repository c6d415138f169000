"""Faults by Litmus: one ChaosEngine with one experiment, whose ChaosResult is reported, but is not a proof."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from hashidrill.core.errors import FaultError
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.faults.base import Cases, NoParams, P
from hashidrill.core.protocols.abc import Evidence, Hosts, Observer, Target, Undo
from hashidrill.core.protocols.capabilities import AgentApi, LitmusNode, LitmusPod, NodeStatus, PodStatus
from hashidrill.core.protocols.rights import Right
from hashidrill.core.units import Duration, Percent, Size
from hashidrill.kubernetes.external_fault import Container, Delay, ExternalFault, told
from hashidrill.kubernetes.pod_observers import (
    LEAST_MEMORY,
    OF_AGENT,
    OF_ANSWERS,
    OF_API,
    OF_KUBELET,
    SHARED,
    Changed,
    Effect,
    Replaced,
    Restarted,
    Silent,
    Slow,
    Uses,
)
from hashidrill.kubernetes.vocabulary import (
    BY_LABEL,
    ENGINE,
    EXPERIMENT,
    LITMUS,
    RESULT,
    one,
    plural_of,
    why_not_drained,
)
from hashidrill.staging.attach.product import attachables

_OF_OTHERS = ((EXPERIMENT, "get"), (RESULT, "list"), (RESULT, "delete"))
_MEBIBYTE = 1024 * 1024


def _milliseconds(value: float) -> str:
    return str(round(value * 1000))


def _percentage(share: float) -> str:
    return f"{share * 100:g}"


def _mebibytes(size: float) -> str:
    return str(max(1, round(size / _MEBIBYTE)))


@dataclass(frozen=True)
class Env:
    """The environment variable that passes a parameter to an experiment, and how its value is written."""

    name: str
    text: Callable[[Any], str] = str


class LitmusFault(ExternalFault[P]):
    """One ChaosEngine with one experiment of Litmus, named like the kind. `Env` marks the parameters passed to it."""

    system = LITMUS
    injector = LitmusPod
    object_kind = ENGINE
    seen_within_s = 120.0
    """A runner, a job and a helper pod start one after the other, and images may have to be pulled."""
    no_netem = (
        "it needs netem in the kernel of the node, and services.kubernetes.netem of the attach file does not say that"
        " the nodes have it: without netem the experiment ends in Error, and may leave its helper pod; run `modprobe"
        " sch_netem` on the nodes, and write `netem: true`"
    )
    accesses = ("create", "delete", "get", "list", "patch")
    constants: ClassVar[Mapping[str, str]] = {}
    """The variables that no parameter changes."""

    @property
    def experiment(self) -> str:
        """The experiment's name in a ChaosHub."""
        return self.kind.removeprefix("litmus.").replace("_", "-")

    def env(self, agent: str) -> dict[str, str]:
        """The environment of the experiment."""
        said = dict(self.constants)
        for name, field in self.Params.model_fields.items():
            if name == "container":
                said["TARGET_CONTAINER"] = self.params.container or agent  # type: ignore[attr-defined]
            marks = [mark for mark in field.metadata if isinstance(mark, Env)]
            if marks and (value := getattr(self.params, name)) is not None:  # what nothing reads is not exported
                said |= {mark.name: mark.text(value) for mark in marks}
        return said

    def spec(self, agent: str) -> Mapping[str, Any]:
        return {"experiments": [one(self.experiment, self.env(agent))]}

    def rights(self) -> Sequence[Right]:
        of_others = [
            Right("kubernetes", f"{plural_of(kind)}.{LITMUS.group}", access=access) for kind, access in _OF_OTHERS
        ]
        return [*super().rights(), *of_others]

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        """Judges the effect alone. `figures` keeps what Litmus reports at that time."""
        seen = await super().verify(undo, present=present)
        if not (present and seen.ok):
            return seen
        said = await told(self._objects(undo["host"]), undo)
        return replace(seen, figures={**seen.figures, "litmus": said})


class PodDeleteParams(Strict):
    """How the pod is deleted."""

    force: Annotated[bool, Env("FORCE", lambda force: "true" if force else "false")] = True
    """The pod gets no time to end by itself."""


class PodDelete(LitmusFault[PodDeleteParams]):
    """Deletes the agent's pod; the pod's StatefulSet starts a new pod of that name.

    Limits: the same as for `chaos_mesh.pod_kill`.
    """

    kind: ClassVar[str] = "litmus.pod_delete"
    cases: ClassVar[Cases] = Cases(each=({}, {"force": False}), momentary=True)
    observer = Observer(OF_KUBELET, SHARED)
    Params = PodDeleteParams
    capabilities = frozenset({LitmusPod, PodStatus})
    holds_down = True
    once = True
    shows = Replaced()


class ContainerKillParams(Strict):
    """Which container is killed, and how."""

    container: Container | None = None
    """The container's name; none: the product's name, as in the official charts."""
    signal: Annotated[Literal["KILL", "TERM"], Env("SIGNAL", "SIG{}".format)] = "KILL"
    """The signal that ends the container: `KILL` or `TERM`."""


class ContainerKill(LitmusFault[ContainerKillParams]):
    """Kills a container in the agent's pod; the kubelet starts the container again.

    Limits: the kubelet backs off: it waits longer after each kill.
    """

    kind: ClassVar[str] = "litmus.container_kill"
    cases: ClassVar[Cases] = Cases(each=({"signal": "TERM"},), momentary=True)
    observer = Observer(OF_KUBELET, SHARED)
    Params = ContainerKillParams
    capabilities = frozenset({LitmusPod, PodStatus})
    holds_down = True
    once = True

    def effect(self, agent: str) -> Effect:
        return Restarted(self.params.container or agent)


@dataclass(frozen=True)
class Drained:
    """The node is cordoned and a new pod replaced the pod; afterwards the node accepts pods, and it is ready."""

    async def before(self, hosts: Hosts, target: Target) -> Mapping[str, Any]:
        node = hosts.host(target.host).use(NodeStatus)
        name = await node.name()
        if not await node.takes_pods(name):
            raise FaultError(f"the node {name} of {target.host} is already cordoned: a drain would not show")
        return {**await Replaced().before(hosts, target), "node": name}

    async def look(self, hosts: Hosts, undo: Undo, *, present: bool) -> Evidence:
        pod = await Replaced().look(hosts, undo, present=present)
        name = str(undo.get("prior", {}).get("node", ""))
        takes = await hosts.host(undo["host"]).use(NodeStatus).takes_pods(name)
        asked = f"the node {name} accepts {'no ' if present else ''}pods, and {pod.asked}"
        measured = f"the node {'accepts pods' if takes else 'is cordoned'}; {pod.measured}"
        return Evidence(pod.ok and takes is not present, asked, measured)


class NodeDrain(LitmusFault[NoParams]):
    """Drains the node of the agent's pod: every pod leaves that node.

    Limits: the attach file must say `drain: true`, because other pods leave the node too. A node is refused if it has
    more than one agent of the estate, or if it is already cordoned. Litmus's own pods run on the node of another agent.
    """

    kind: ClassVar[str] = "litmus.node_drain"
    observer = Observer(f"{OF_KUBELET}, and the node's state there", SHARED)
    injector = LitmusNode
    capabilities = frozenset({LitmusNode, NodeStatus, PodStatus})
    holds_down = True
    shows = Drained()

    def impossible_in(self, cluster: Mapping[str, Any]) -> str:
        return why_not_drained(cluster["node"], cluster["others"], allowed=cluster["drain"])

    def rights(self) -> Sequence[Right]:
        return [*super().rights(), Right("kubernetes", "nodes", access="get")]


Interface = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.@-]{1,15}$"), Env("NETWORK_INTERFACE")]


class LatencyParams(Strict):
    """By how much packets that the pod sends are delayed."""

    delay: Annotated[Delay, Env("NETWORK_LATENCY", _milliseconds)]
    """From 20ms to 2s."""
    interface: Interface = "eth0"
    """The pod's network interface."""
    container: Container | None = None
    """The container whose network is delayed; none: the container with the product's name."""


class PodNetworkLatency(LitmusFault[LatencyParams]):
    """Delays everything that the agent's pod sends.

    Limits: the attach file must say `netem: true`. The traffic between agents is delayed too, but that delay is not
    measured.
    """

    kind: ClassVar[str] = "litmus.pod_network_latency"
    cases: ClassVar[Cases] = Cases(each=({"delay": "200ms"},))
    observer = Observer(OF_API)
    Params = LatencyParams
    capabilities = frozenset({LitmusPod, AgentApi})
    by_netem = True
    constants: ClassVar[Mapping[str, str]] = {"JITTER": "0"}


class HttpParams(Strict):
    """The port of the pod that is meant, and the pod's port on which Litmus's proxy listens."""

    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """The port of the pod; none: the port of the product's API, like 8500."""
    proxy: Annotated[int, Field(ge=1, le=65535), Env("PROXY_PORT")] = 20000
    """A free port of the pod, on which the proxy listens."""
    container: Container | None = None
    """The container whose network is changed; none: the container with the product's name."""


class _Http(LitmusFault[P]):
    """A proxy that Litmus's helper puts in front of a port of the pod. Its parameters include those of HttpParams."""

    observer = Observer(OF_ANSWERS)
    capabilities = frozenset({LitmusPod, AgentApi})

    def env(self, agent: str) -> dict[str, str]:
        port = getattr(self.params, "port", None) or attachables([agent])[agent].port
        return {**super().env(agent), "TARGET_SERVICE_PORT": str(port), "TOXICITY": "100"}


class HttpLatencyParams(HttpParams):
    """How much later answers leave the pod."""

    delay: Annotated[Delay, Env("LATENCY", _milliseconds)]
    """From 20ms to 2s."""


class PodHttpLatency(_Http[HttpLatencyParams]):
    """Delays every answer from a port of the agent's pod.

    Limits: it works only for plain HTTP, because the proxy sees no answers in TLS. Only the API's port can be
    observed: with another port, the run is INVALID.
    """

    kind: ClassVar[str] = "litmus.pod_http_latency"
    cases: ClassVar[Cases] = Cases(each=({"delay": "300ms", "port": 8500},))
    Params = HttpLatencyParams
    observer = Observer(OF_API)


class HttpResetParams(HttpParams):
    """When a connection is reset."""

    after: Annotated[Duration, Field(le=1.0), Env("RESET_TIMEOUT", _milliseconds)] = Duration("0s")
    """How long after its first request a connection is reset, up to 1s."""


class PodHttpResetPeer(_Http[HttpResetParams]):
    """Resets every connection to a port of the agent's pod.

    Limits: the same as for `litmus.pod_http_latency`.
    """

    kind: ClassVar[str] = "litmus.pod_http_reset_peer"
    Params = HttpResetParams
    observer = Observer(OF_AGENT)
    shows = Silent()


Code = Literal[200, 201, 202, 204, 300, 301, 302, 304, 307, 400, 401, 403, 404, 500, 501, 502, 503, 504]
"""The statuses that Litmus supports."""


class HttpStatusParams(HttpParams):
    """Which status each answer has."""

    code: Annotated[Code, Env("STATUS_CODE")]
    """A status that Litmus supports, like `503`."""


class PodHttpStatusCode(_Http[HttpStatusParams]):
    """Changes the status of every answer from a port of the agent's pod.

    Limits: the same as for `litmus.pod_http_latency`.
    """

    kind: ClassVar[str] = "litmus.pod_http_status_code"
    observer = _Http.observer
    cases: ClassVar[Cases] = Cases(each=({"code": 503},))
    Params = HttpStatusParams
    constants: ClassVar[Mapping[str, str]] = {"MODIFY_RESPONSE_BODY": "true"}

    def effect(self, agent: str) -> Effect:
        return Changed(f"the status {self.params.code}", lambda answer: answer.status == self.params.code)


Plain = Annotated[str, Field(pattern=r"^[A-Za-z0-9 _.,:;/+=-]{1,200}$")]
"""A text that Litmus can put into a command line without quotes."""


class HttpHeaderParams(HttpParams):
    """The header that each answer gets."""

    header: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,60}$")]
    """The name of the header that is changed."""
    value: Plain
    """Its value, in plain characters."""


class PodHttpModifyHeader(_Http[HttpHeaderParams]):
    """Sets a header of every answer from a port of the agent's pod.

    Limits: the same as for `litmus.pod_http_latency`.
    """

    kind: ClassVar[str] = "litmus.pod_http_modify_header"
    observer = _Http.observer
    cases: ClassVar[Cases] = Cases(each=({"header": "X-Drill", "value": "yes"},))
    Params = HttpHeaderParams
    constants: ClassVar[Mapping[str, str]] = {"HEADER_MODE": "response"}

    def env(self, agent: str) -> dict[str, str]:
        return {**super().env(agent), "HEADERS_MAP": json.dumps({self.params.header: self.params.value})}

    def effect(self, agent: str) -> Effect:
        name, value = self.params.header.lower(), self.params.value
        return Changed(f"{self.params.header}: {value}", lambda answer: answer.headers.get(name) == value)


class HttpBodyParams(HttpParams):
    """The body of each answer."""

    body: Annotated[Plain, Env("RESPONSE_BODY")]
    """The body of each answer, in plain characters."""


class PodHttpModifyBody(_Http[HttpBodyParams]):
    """Replaces the body of every answer from a port of the agent's pod.

    Limits: the same as for `litmus.pod_http_latency`.
    """

    kind: ClassVar[str] = "litmus.pod_http_modify_body"
    observer = _Http.observer
    cases: ClassVar[Cases] = Cases(each=({"body": "not this time"},))
    Params = HttpBodyParams
    constants: ClassVar[Mapping[str, str]] = {"CONTENT_TYPE": "text/plain"}

    def effect(self, agent: str) -> Effect:
        body = self.params.body
        return Changed(f"the body {body!r}", lambda answer: answer.body.decode(errors="replace").strip() == body)


class VisibleParams(Strict):
    """The effect that this machine will see."""

    effect: Literal["silent", "slow", "restarted", "replaced"]
    """The visible effect: `silent`, `slow`, `restarted` or `replaced`."""
    by: Delay | None = None
    """For `slow`: how much longer each answer takes, from 20ms to 2s."""
    container: Container | None = None
    """The container's name; none: the product's name."""

    @model_validator(mode="after")
    def _slow_by(self) -> VisibleParams:
        if (self.effect == "slow") != (self.by is not None):
            raise ValueError("`effect: slow` needs `by`, a delay like 200ms; no other effect has one")
        return self


class VisibleFault(LitmusFault[P]):
    """Nothing outside shows the experiment's own work, so `effect` names what an agent or its kubelet will show.

    Its parameters include those of VisibleParams.
    """

    observer = Observer(f"{OF_AGENT}; or {OF_KUBELET}, by `effect`", SHARED)
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({LitmusPod, AgentApi, PodStatus})
    """The capabilities for all effects; each fault needs only those for its own `effect`."""

    def __init__(self, params: P, hosts: Hosts) -> None:
        super().__init__(params, hosts)
        seen = AgentApi if self._visible.effect in {"silent", "slow"} else PodStatus
        self.capabilities = frozenset({LitmusPod, seen})  # type: ignore[misc]

    @property
    def _visible(self) -> VisibleParams:
        return self.params  # type: ignore[return-value]

    def used(self, container: str) -> Effect:
        """The effect on the container's use of CPU or memory, for a fault whose `effect` may be `used`."""
        raise NotImplementedError

    def effect(self, agent: str) -> Effect:
        params = self._visible
        if params.by is not None:
            return Slow(float(params.by))
        if params.effect == USED:
            return self.used(params.container or agent)
        others: dict[str, Effect] = {
            "silent": Silent(),
            "restarted": Restarted(params.container or agent),
            "replaced": Replaced(),
        }
        return others[params.effect]


Share = Annotated[Percent, Field(ge=0.01)]


class LossParams(VisibleParams):
    """Which share of the packets that the pod sends is lost."""

    percent: Annotated[Share, Env("NETWORK_PACKET_LOSS_PERCENTAGE", _percentage)] = Percent("100%")
    """Share of the packets."""
    effect: Literal["silent", "slow", "restarted", "replaced"] = "silent"
    """The visible effect: the agent is `silent` or `slow`, its container `restarted`, or its pod `replaced`; required
    below 100%.
    """
    interface: Interface = "eth0"
    """The pod's network interface."""

    @model_validator(mode="after")
    def _of_a_part(self) -> LossParams:
        if self.percent < 1 and "effect" not in self.model_fields_set:
            raise ValueError(
                f"with a loss of {self.percent} the agent still answers, and lost packets are not counted: name the"
                " visible effect with `effect`, or use 100%"
            )
        return self


class PodNetworkLoss(VisibleFault[LossParams]):
    """Loses packets that the agent's pod sends; if it loses all of them, the agent falls silent.

    Limits: the attach file must say `netem: true`. Lost packets are not counted: if the loss does not have the named
    `effect`, the run is INVALID. If a liveness probe fails meanwhile, the kubelet restarts the container.
    """

    kind: ClassVar[str] = "litmus.pod_network_loss"
    observer = VisibleFault.observer
    cases: ClassVar[Cases] = Cases(each=({}, {"percent": "100%", "effect": "silent"}))
    Params = LossParams
    by_netem = True


class CorruptionParams(VisibleParams):
    """Which share of the packets that the pod sends is corrupted."""

    percent: Annotated[Share, Env("NETWORK_PACKET_CORRUPTION_PERCENTAGE", _percentage)] = Percent("100%")
    """Share of the packets."""
    interface: Interface = "eth0"
    """The pod's network interface."""


class PodNetworkCorruption(VisibleFault[CorruptionParams]):
    """Corrupts packets that the agent's pod sends.

    Limits: the same as for `litmus.pod_network_loss`. Receivers drop corrupted packets, so the fault looks like a loss.
    """

    kind: ClassVar[str] = "litmus.pod_network_corruption"
    observer = VisibleFault.observer
    cases: ClassVar[Cases] = Cases(each=({"effect": "silent"},))
    Params = CorruptionParams
    by_netem = True


USED = "used"


class HogParams(VisibleParams):
    """The visible effect of a fault that uses CPU or memory."""

    effect: Literal["used", "silent", "slow", "restarted", "replaced"] = "used"  # type: ignore[assignment]
    """The visible effect: the container has `used` more; or the agent is `silent` or `slow`, its container `restarted`,
    or its pod `replaced`.
    """


class CpuParams(HogParams):
    """How much CPU is used."""

    cores: Annotated[int, Field(ge=1, le=256), Env("CPU_CORES")] = 1
    """How many processes use CPU."""
    load: Annotated[Share, Env("CPU_LOAD", _percentage)] = Percent("100%")
    """Share of a core that each process uses."""


class PodCpuHog(VisibleFault[CpuParams]):
    """Uses CPU in the cgroup of the agent's container.

    Limits: the same as for `chaos_mesh.stress.cpu`.
    """

    kind: ClassVar[str] = "litmus.pod_cpu_hog"
    observer = VisibleFault.observer
    cases: ClassVar[Cases] = Cases(each=({"load": "50%"}, {"cores": 2, "load": "80%", "effect": "slow", "by": "300ms"}))
    Params = CpuParams

    def used(self, container: str) -> Effect:
        return Uses(container, cores=self.params.cores * float(self.params.load))


Workers = Annotated[int, Field(ge=1, le=64), Env("NUMBER_OF_WORKERS")]
Some = Annotated[Size, Field(ge=_MEBIBYTE)]


class MemoryParams(HogParams):
    """How much memory is allocated."""

    size: Annotated[Some, Env("MEMORY_CONSUMPTION", _mebibytes)]
    """How much: at least 1MiB, or 64MiB if `effect` is `used`, because the agent's own use varies."""
    workers: Workers = 1
    """How many processes allocate it."""

    @model_validator(mode="after")
    def _can_be_seen(self) -> MemoryParams:
        if self.effect == USED and self.size < LEAST_MEMORY:
            raise ValueError(f"{self.size} would not show in the agent's own use: use 64MiB or more")
        return self


class PodMemoryHog(VisibleFault[MemoryParams]):
    """Allocates memory in the cgroup of the agent's container.

    Limits: the same as for `chaos_mesh.stress.memory`. Litmus's process allocates and frees its memory in turns: the
    highest measured value counts.
    """

    kind: ClassVar[str] = "litmus.pod_memory_hog"
    observer = VisibleFault.observer
    cases: ClassVar[Cases] = Cases(each=({"size": "128MiB"}, {"size": "512MiB", "effect": "restarted"}))
    Params = MemoryParams

    def used(self, container: str) -> Effect:
        return Uses(container, size=float(self.params.size))


class IoParams(VisibleParams):
    """How much is written, and where."""

    percent: Annotated[Share, Env("FILESYSTEM_UTILIZATION_PERCENTAGE", _percentage)] = Percent("10%")
    """Share of the free space of the file system that the files fill."""
    workers: Workers = 4
    """How many processes write."""
    path: Annotated[Annotated[str, Field(pattern=r"^/[\w./-]*$")] | None, Env("VOLUME_MOUNT_PATH")] = None
    """The folder, usually the agent's data folder; none: the container's own."""


class PodIoStress(VisibleFault[IoParams]):
    """Writes and reads files in the agent's container, as fast as its disk allows.

    Limits: the pod's disk cannot be measured from outside the pod. Other pods on that disk become slow too.
    """

    kind: ClassVar[str] = "litmus.pod_io_stress"
    observer = VisibleFault.observer
    cases: ClassVar[Cases] = Cases(each=({"path": "/consul/data", "effect": "slow", "by": "300ms"},))
    Params = IoParams


class FillParams(VisibleParams):
    """How full the container's ephemeral storage becomes."""

    percent: Annotated[Share, Env("FILL_PERCENTAGE", _percentage)] = Percent("80%")
    """Share of the limit."""
    of: Annotated[Some | None, Env("EPHEMERAL_STORAGE_MEBIBYTES", _mebibytes)] = None
    """The limit, if the container has none."""


class DiskFill(VisibleFault[FillParams]):
    """Fills the ephemeral storage of the agent's container.

    Limits: the pod's disk cannot be measured from outside the pod. Data on a separate volume is not in the ephemeral
    storage.
    """

    kind: ClassVar[str] = "litmus.disk_fill"
    observer = VisibleFault.observer
    cases: ClassVar[Cases] = Cases(each=({"of": "64MiB", "effect": "replaced"},))
    Params = FillParams


_OF_HASHIDRILL = {
    "TOTAL_CHAOS_DURATION": "hashidrill sets the duration",
    "TARGET_PODS": "`on` names the target",
    "NODE_LABEL": "`on` names the target",
    "PODS_AFFECTED_PERC": "`on` names the target",
    "TARGET_NODE": "a node may have more than one agent",
    "TARGET_NODES": "a node may have more than one agent",
    "TARGET_CONTAINER": "it is the parameter `container`",
}
_NETEM = {f"pod-network-{what}" for what in ("latency", "loss", "corruption", "duplication", "rate-limit")}


class ExperimentParams(VisibleParams):
    """Which experiment, and its environment."""

    experiment: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$")]
    """The name of a ChaosExperiment in that namespace: the name of its folder in the ChaosHub."""
    env: dict[str, str] = Field(default={})
    """The experiment's variables, as strings; `on` names the target, and hashidrill sets the duration."""

    @field_validator("experiment")
    @classmethod
    def _on_a_pod(cls, value: str) -> str:
        if value.startswith("node-") or value.endswith("-service-kill"):
            raise ValueError(f"{value} hits a node and everything on it, but `on` names one agent")
        if value in BY_LABEL:
            raise ValueError(f"{value} hits {BY_LABEL[value]}, but `on` names one agent")
        return value

    @field_validator("env")
    @classmethod
    def _names_no_target(cls, value: dict[str, str]) -> dict[str, str]:
        if wrong := [f"{name}: {_OF_HASHIDRILL[name]}" for name in value if name in _OF_HASHIDRILL]:
            raise ValueError("; ".join(wrong))
        return value


class Experiment(VisibleFault[ExperimentParams]):
    """Any experiment of a ChaosHub on the agent's pod, with its own variables.

    Limits: a name in `env` that the ChaosExperiment does not list is an error. Experiments that may hit more than one
    agent are refused: those on nodes, and pod-network-partition and pod-autoscaler, which choose targets by label.
    """

    kind: ClassVar[str] = "litmus.experiment"
    observer = VisibleFault.observer
    cases: ClassVar[Cases] = Cases(
        each=(
            {"experiment": "pod-dns-error", "env": {"TARGET_HOSTNAMES": '["a"]'}, "effect": "silent"},
            {"experiment": "pod-network-duplication", "effect": "slow", "by": "300ms"},
        )
    )
    Params = ExperimentParams

    @property
    def experiment(self) -> str:
        return self.params.experiment

    @property
    def by_netem(self) -> bool:  # type: ignore[override]
        return self.params.experiment in _NETEM

    def env(self, agent: str) -> dict[str, str]:
        return {**super().env(agent), **self.params.env}
