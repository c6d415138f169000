"""Writes an experiment as a Workflow of Chaos Mesh, on the pods of the official charts; reports what is lost."""

import errno
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hashidrill.core.experiment.model import AnyStep, Mark
from hashidrill.core.units import Bandwidth, Duration, Percent
from hashidrill.kubernetes.interchange.document import Parameters, UnsupportedError
from hashidrill.kubernetes.interchange.document import seconds as go_text
from hashidrill.kubernetes.interchange.label_selectors import VOLUMES, labels_of
from hashidrill.kubernetes.vocabulary import CHAOS_MESH, FIELDS

Made = tuple[str, dict[str, Any], list[str]]
"""(kind, spec without its target, lost parts)."""
Writer = Callable[[Any, str], Made]
ALWAYS_LOST = (
    "the proof that each fault was in force, and that it is gone: AllRecovered is true before injection too",
    "the verdict: load, steady_state, guardrails, recovery and expect",
)
_MOST_BYTES = 1_000_000


def workflow(name: str, steps: Sequence[AnyStep], cron: str = "") -> tuple[dict[str, Any], list[str]]:
    """(the manifest, what is lost). `steps`: an experiment's method. Raises UnsupportedError if no step is left."""
    templates: list[dict[str, Any]] = []
    lost: list[str] = list(ALWAYS_LOST)
    children: list[str] = []
    for number, step in enumerate(steps, start=1):
        made = of_step(number, step, _WRITERS, "Chaos Mesh", lost)
        if made is None:
            continue
        labels, mode, (kind, spec) = made
        spec = {**spec, "mode": mode, "selector": {"labelSelectors": labels}}
        part, length = f"step-{number}", go_text(float(step.for_))
        templates.append({"name": part, "templateType": kind, "deadline": length, FIELDS[kind]: spec})
        if step.at:
            wait = f"wait-{number}"
            templates.append({"name": wait, "templateType": "Suspend", "deadline": go_text(float(step.at))})
            ends = go_text(float(step.at + step.for_) + 30)
            turn = {"name": f"turn-{number}", "templateType": "Serial", "deadline": ends, "children": [wait, part]}
            templates.append(turn)
            part = f"turn-{number}"
        children.append(part)
    if not children:
        raise UnsupportedError(
            f"{name}: Chaos Mesh can express none of its steps: {'; '.join(lost[len(ALWAYS_LOST) :]) or 'it has none'}"
        )
    ends_s = max(float(step.at + step.for_) for step in steps)
    entry = {"name": "method", "templateType": "Parallel", "deadline": go_text(ends_s + 60), "children": children}
    spec = {"entry": "method", "templates": [entry, *templates]}
    if not cron:
        return {"apiVersion": CHAOS_MESH.api, "kind": "Workflow", "metadata": {"name": name}, "spec": spec}, lost
    scheduled = {
        "schedule": cron,
        "type": "Workflow",
        "concurrencyPolicy": "Forbid",
        "historyLimit": 3,
        "workflow": spec,
    }
    return {"apiVersion": CHAOS_MESH.api, "kind": "Schedule", "metadata": {"name": name}, "spec": scheduled}, lost


def of_step(
    number: int, step: AnyStep, writers: Mapping[str, Writer], system: str, lost: list[str]
) -> tuple[dict[str, str], str, tuple[str, dict[str, Any]]] | None:
    """Labels, mode, and the result of the fault's writer for one step; None if the step is left out.

    Adds the parts of the step that are not written to `lost`. Raises UnsupportedError.
    """
    if isinstance(step, Mark):
        lost.append(f"step {number}, mark {step.mark}: left out: it breaks nothing")
        return None
    where = f"step {number}, {step.fault} on {step.on}"
    labels, mode, lost_of_whom = labels_of(step.on)
    if step.fault not in writers or not labels:
        lost.append(f"{where}: left out: {lost_of_whom or f'{system} has no such fault for pods'}")
        return None
    parameters = Parameters(step.parameters)
    try:
        kind, made, lost_of_it = writers[step.fault](parameters, step.on.partition(":")[0])
    except UnsupportedError as error:
        raise UnsupportedError(f"{where}: {error}") from None
    more = ["follow: it stays on the pod that it began on"] if step.follow else []
    more += [f"after {', '.join(step.after)}: it begins at its own time"] if step.after else []
    more += [f"when {step.when}: it begins at its own time"] if step.when else []
    lost.extend(
        f"{where}: {text}" for text in [*lost_of_it, *filter(None, [lost_of_whom]), *more, *parameters.unread()]
    )
    return labels, mode, (kind, made)


def _kill(parameters: Any, product: str) -> Made:
    return "PodChaos", {"action": "pod-failure"}, ["the container's image is replaced, which restarts the container"]


def _partition(parameters: Any, product: str) -> Made:
    side, direction = _target(parameters, product)
    way = {"out": "to", "in": "from", "both": "both"}[parameters.direction]
    return "NetworkChaos", {"action": "partition", "direction": way, **side}, direction


def _loss(parameters: Any, product: str) -> Made:
    side, lost = _target(parameters, product)
    share = f"{float(parameters.percent) * 100:g}"
    return "NetworkChaos", {"action": "loss", "direction": "both", "loss": {"loss": share}, **side}, lost


def _latency(parameters: Any, product: str) -> Made:
    side, lost = _target(parameters, product)
    delay = {"latency": go_text(float(parameters.delay))}
    if parameters.jitter:
        delay["jitter"] = go_text(float(parameters.jitter))
    text = f"port {parameters.port}: everything is delayed, once on its way out"
    return "NetworkChaos", {"action": "delay", "direction": "to", "delay": delay, **side}, [text, *lost]


def _bandwidth(parameters: Any, product: str) -> Made:
    side, lost = _target(parameters, product)
    rate = {"rate": f"{max(1, round(Bandwidth(parameters.rate) / 1000))}kbps", "limit": _MOST_BYTES, "buffer": 10_000}
    text = f"port {parameters.port}: all connections share the rate, and only what the pod sends is limited"
    return "NetworkChaos", {"action": "bandwidth", "direction": "to", "bandwidth": rate, **side}, [text, *lost]


def _target(parameters: Any, product: str) -> tuple[dict[str, Any], list[str]]:
    side = parameters.from_
    if side == "all":
        chart, _, _ = labels_of(f"{product}:servers")
        whole = {key: value for key, value in chart.items() if key != "component"}
        return {"target": {"mode": "all", "selector": {"labelSelectors": whole}}}, [
            "from all: the other side is only the product's own pods, without other clients"
        ]
    labels, mode, lost = labels_of(side if ":" in side else f"{product}:{side}")
    if not labels:
        raise UnsupportedError(f"from {side}: {lost}")
    return {"target": {"mode": mode, "selector": {"labelSelectors": labels}}}, []


def _disk(parameters: Any, product: str) -> dict[str, Any]:
    methods = {"all": ["READ", "WRITE", "FSYNC"]}.get(parameters.op, [parameters.op.upper()])
    volume = VOLUMES.get(product, VOLUMES["consul"])
    share = max(1, round(float(Percent(parameters.percent)) * 100))
    return {"volumePath": volume, "path": f"{volume}/**/*", "methods": methods, "percent": share}


def _slow_disk(parameters: Any, product: str) -> Made:
    lost = ["jitter"] if Duration(parameters.jitter) else []
    return (
        "IOChaos",
        {"action": "latency", "delay": go_text(float(parameters.delay)), **_disk(parameters, product)},
        lost,
    )


def _bad_disk(parameters: Any, product: str) -> Made:
    number = getattr(errno, parameters.errno)
    return "IOChaos", {"action": "fault", "errno": number, **_disk(parameters, product)}, []


def _pod_kill(parameters: Any, product: str) -> Made:
    return "PodChaos", {"action": "pod-kill", "gracePeriod": round(float(parameters.grace))}, []


def _pod_failure(parameters: Any, product: str) -> Made:
    return "PodChaos", {"action": "pod-failure"}, []


def _container_kill(parameters: Any, product: str) -> Made:
    container = getattr(parameters, "container", "") or product
    return "PodChaos", {"action": "container-kill", "containerNames": [container]}, []


def _delay(parameters: Any, product: str) -> Made:
    delay = {"latency": go_text(float(parameters.delay))}
    return "NetworkChaos", {"action": "delay", "direction": "to", "delay": delay}, []


def _resource(parameters: Any, product: str) -> Made:
    return parameters.chaos, dict(parameters.spec), []


_WRITERS: Mapping[str, Writer] = {
    "process.kill": _kill,
    "process.restart": _container_kill,
    "network.partition": _partition,
    "network.loss": _loss,
    "network.latency": _latency,
    "network.bandwidth": _bandwidth,
    "disk.latency": _slow_disk,
    "disk.error": _bad_disk,
    "chaos_mesh.pod_kill": _pod_kill,
    "chaos_mesh.pod_failure": _pod_failure,
    "chaos_mesh.container_kill": _container_kill,
    "chaos_mesh.network.delay": _delay,
    "chaos_mesh.resource": _resource,
}
