"""Writes an experiment as a ChaosEngine of Litmus, on the pods of the official charts; says what that loses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hashidrill import registry
from hashidrill.backends.interchange.steps import UnsupportedError
from hashidrill.backends.interchange.whom import labels_of
from hashidrill.units import Bandwidth

ALWAYS_LOST = (
    "the proof that each fault was in force, and that it is gone",
    "the verdict: load, steady_state, guardrails, recovery and expect; an experiment without a probe is a Pass of 100",
    "when each step begins: Litmus runs one after the other",
)
Made = tuple[str, dict[str, str], list[str]]
"""(the experiment, its environment, what is lost)."""


def engine(name: str, steps: Sequence[Any], namespace: str) -> tuple[dict[str, Any], list[str]]:
    """(the manifest, what is lost). Raises UnsupportedError when nothing is left, or steps hit different pods."""
    lost, experiments, whom = list(ALWAYS_LOST), [], dict[str, str]()
    for number, step in enumerate(steps, start=1):
        where = f"step {number}, {step.fault} on {step.on}"
        writer = _writer(step)
        labels, mode, lost_of_whom = labels_of(step.on)
        if writer is None or not labels:
            lost.append(f"{where}: left out: {lost_of_whom or 'Litmus has no such fault for pods'}")
            continue
        if whom and whom != labels:
            raise UnsupportedError(f"{where}: a ChaosEngine has one application; write an experiment for each")
        whom = labels
        experiment, environment, lost_of_it = writer(step.parameters, step.on.partition(":")[0])
        lost.extend(f"{where}: {text}" for text in [*lost_of_it, *([lost_of_whom] if lost_of_whom else [])])
        length = {"TOTAL_CHAOS_DURATION": str(max(1, round(float(step.for_))))}
        share = {"PODS_AFFECTED_PERC": "100"} if mode == "all" else {}
        env = [{"name": key, "value": value} for key, value in {**length, **share, **environment}.items()]
        experiments.append({"name": experiment, "spec": {"components": {"env": env}}})
    if not experiments:
        raise UnsupportedError(f"{name}: no step of it can be said in Litmus: {'; '.join(lost[len(ALWAYS_LOST) :])}")
    application = {
        "appns": namespace, "applabel": ",".join(f"{key}={value}" for key, value in whom.items()),
        "appkind": "statefulset",
    }  # fmt: skip
    spec = {
        "engineState": "active", "appinfo": application, "chaosServiceAccount": "litmus-admin",
        "experiments": experiments,
    }  # fmt: skip
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "litmuschaos.io/v1alpha1", "kind": "ChaosEngine", "metadata": metadata, "spec": spec}, lost


def _writer(step: Any) -> Callable[[Any, str], Made] | None:
    """A fault of Litmus says itself what it asks for; a node is in no label of a pod."""
    if not step.fault.startswith("litmus.") or step.fault == "litmus.node_drain":
        return _WRITERS.get(step.fault)
    fault = registry.fault(step.fault)(step.parameters, None)
    once = {"CHAOS_INTERVAL": "3600"} if fault.once else {}
    return lambda _, product: (fault.experiment, {**fault.env(product), **once}, [])


def _delete(parameters: Any, product: str) -> Made:
    return "pod-delete", {"CHAOS_INTERVAL": "3600", "FORCE": "true"}, ["the pod comes back at once"]


def _container(parameters: Any, product: str) -> Made:
    return "container-kill", {"TARGET_CONTAINER": product, "CHAOS_INTERVAL": "3600"}, []


def _partition(parameters: Any, product: str) -> Made:
    lost = [] if parameters.from_ == "all" else [f"from {parameters.from_}: it is cut off from everybody"]
    return "pod-network-partition", {}, [*lost, "it needs a network that enforces NetworkPolicy"]


def _loss(parameters: Any, product: str) -> Made:
    share = {"NETWORK_PACKET_LOSS_PERCENTAGE": str(max(1, round(float(parameters.percent) * 100)))}
    return "pod-network-loss", share, _everybody(parameters)


def _latency(parameters: Any, product: str) -> Made:
    env = {
        "NETWORK_LATENCY": str(round(float(parameters.delay) * 1000)),
        "JITTER": str(round(float(parameters.jitter) * 1000)),
    }  # fmt: skip
    return "pod-network-latency", env, [f"port {parameters.port}: everything is delayed", *_everybody(parameters)]


def _bandwidth(parameters: Any, product: str) -> Made:
    env = {"NETWORK_BANDWIDTH": f"{max(1, round(Bandwidth(parameters.rate) * 8 / 1000))}kbit"}
    return "pod-network-rate-limit", env, [f"port {parameters.port}: everything is limited", *_everybody(parameters)]


def _everybody(parameters: Any) -> list[str]:
    return [] if parameters.from_ == "all" else [f"from {parameters.from_}: traffic with everybody is hit"]


_WRITERS: Mapping[str, Callable[[Any, str], Made]] = {
    "process.kill": _delete, "process.restart": _container, "network.partition": _partition, "network.loss": _loss,
    "network.latency": _latency, "network.bandwidth": _bandwidth, "chaos_mesh.pod_kill": _delete,
    "chaos_mesh.container_kill": _container,
}  # fmt: skip
