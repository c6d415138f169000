"""Writes an experiment as a ChaosEngine of Litmus, on the pods of the official charts; reports what is lost."""

from collections.abc import Mapping, Sequence
from typing import Any

from hashidrill.core.experiment.model import AnyStep
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.abc import HappensOnce
from hashidrill.core.units import Bandwidth
from hashidrill.kubernetes.interchange.document import UnsupportedError
from hashidrill.kubernetes.interchange.to_chaos_mesh import Made, Writer, of_step

ALWAYS_LOST = (
    "the proof that each fault was in force, and that it is gone",
    "the verdict: load, steady_state, guardrails, recovery and expect; Litmus gives Pass and 100 % without a probe",
    "when each step begins: Litmus runs one step after the other",
)


def engine(name: str, steps: Sequence[AnyStep], namespace: str) -> tuple[dict[str, Any], list[str]]:
    """(the manifest, what is lost). Raises UnsupportedError if no step is left, or if steps hit different pods."""
    lost, experiments, whom = list(ALWAYS_LOST), [], dict[str, str]()
    writers = {**_WRITERS, **{kind: _own(kind) for kind in registry.fault_kinds() if kind.startswith("litmus.")}}
    del writers["litmus.node_drain"]  # pod labels do not select a node
    for number, step in enumerate(steps, start=1):
        made = of_step(number, step, writers, "Litmus", lost)
        if made is None:
            continue
        labels, mode, (experiment, environment) = made
        if whom and whom != labels:
            raise UnsupportedError(f"step {number}: a ChaosEngine has one application; write an experiment for each")
        whom = labels
        length = {"TOTAL_CHAOS_DURATION": str(max(1, round(float(step.for_))))}
        share = {"PODS_AFFECTED_PERC": "100"} if mode == "all" else {}
        env = [{"name": key, "value": value} for key, value in {**length, **share, **environment}.items()]
        experiments.append({"name": experiment, "spec": {"components": {"env": env}}})
    if not experiments:
        why = "; ".join(lost[len(ALWAYS_LOST) :]) or "it has none"
        raise UnsupportedError(f"{name}: Litmus can express none of its steps: {why}")
    application = {
        "appns": namespace,
        "applabel": ",".join(f"{key}={value}" for key, value in whom.items()),
        "appkind": "statefulset",
    }
    spec = {
        "engineState": "active",
        "appinfo": application,
        "chaosServiceAccount": "litmus-admin",
        "experiments": experiments,
    }
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "litmuschaos.io/v1alpha1", "kind": "ChaosEngine", "metadata": metadata, "spec": spec}, lost


def _own(kind: str) -> Writer:
    def write(parameters: Any, product: str) -> Made:
        fault = registry.fault(kind)(parameters, None)
        once = {"CHAOS_INTERVAL": "3600"} if isinstance(fault, HappensOnce) and fault.once else {}
        return fault.experiment, {**fault.env(product), **once}, []

    return write


def _delete(parameters: Any, product: str) -> Made:
    return "pod-delete", {"CHAOS_INTERVAL": "3600", "FORCE": "true"}, ["the pod comes back at once"]


def _container(parameters: Any, product: str) -> Made:
    return "container-kill", {"TARGET_CONTAINER": product, "CHAOS_INTERVAL": "3600"}, []


def _partition(parameters: Any, product: str) -> Made:
    """Not pod-network-partition, which reads one label: with the charts' labels it hits nothing and ends in Pass."""
    way = {"out": [], "in": ["direction in: it loses what the pod sends"]}
    lost = way.get(parameters.direction, ["direction both: what others send still arrives, and gets no answer"])
    return "pod-network-loss", {"NETWORK_PACKET_LOSS_PERCENTAGE": "100"}, [*lost, *_everybody(parameters)]


def _loss(parameters: Any, product: str) -> Made:
    """network.loss loses both ways, Litmus only what the pod sends: the share is chosen to lose as many round trips."""
    share = max(1, round(100 * (1 - (1 - float(parameters.percent)) ** 2)))
    lost = f"percent: {parameters.percent} each way; here {share} % of what the pod sends"
    return "pod-network-loss", {"NETWORK_PACKET_LOSS_PERCENTAGE": str(share)}, [lost, *_everybody(parameters)]


def _latency(parameters: Any, product: str) -> Made:
    env = {
        "NETWORK_LATENCY": str(round(float(parameters.delay) * 1000)),
        "JITTER": str(round(float(parameters.jitter) * 1000)),
    }
    return "pod-network-latency", env, [f"port {parameters.port}: everything is delayed", *_everybody(parameters)]


def _bandwidth(parameters: Any, product: str) -> Made:
    env = {"NETWORK_BANDWIDTH": f"{max(1, round(Bandwidth(parameters.rate) * 8 / 1000))}kbit"}
    return "pod-network-rate-limit", env, [f"port {parameters.port}: everything is limited", *_everybody(parameters)]


def _everybody(parameters: Any) -> list[str]:
    return [] if parameters.from_ == "all" else [f"from {parameters.from_}: all traffic is hit"]


_WRITERS: Mapping[str, Writer] = {
    "process.kill": _delete,
    "process.restart": _container,
    "network.partition": _partition,
    "network.loss": _loss,
    "network.latency": _latency,
    "network.bandwidth": _bandwidth,
    "chaos_mesh.pod_kill": _delete,
    "chaos_mesh.container_kill": _container,
}
