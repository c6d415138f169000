"""Reads objects of Chaos Mesh: one fault, a Schedule of one, or a Workflow of several."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Mapping
from typing import Any

from hashidrill.backends.chaos_mesh.vocabulary import CHAOS
from hashidrill.backends.interchange.steps import (
    ONCE_S,
    Reading,
    UnsupportedError,
    go_seconds,
    mapping,
    percent,
    seconds,
)
from hashidrill.backends.interchange.whom import PORTS, on_of, side_of
from hashidrill.registry import near
from hashidrill.units import shown

Faults = list[tuple[str, dict[str, Any]]]
_WHOLE_FIELD = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_RATES = {"bps": 1.0, "kbps": 1e3, "mbps": 1e6, "gbps": 1e9, "bit": 0.125, "kbit": 125.0, "mbit": 125e3, "gbit": 125e6}
"""As tc reads them: `kbps` are kilobytes a second."""
_METHODS = {"read": "read", "write": "write", "fsync": "fsync", "flush": "fsync"}
_SIGNALS = {
    19: ("process.pause", {}),
    9: ("process.kill", {"signal": "KILL"}),
    15: ("process.kill", {"signal": "TERM"}),
}
_MOST_DEPTH = 10


def read(kind: str, spec: Mapping[str, Any], reading: Reading) -> None:
    """Raises UnsupportedError that names what an experiment cannot say."""
    if kind == "Schedule":
        _schedule(spec, reading, "spec", 0.0, None)
    elif kind == "Workflow":
        _workflow(spec, reading)
    elif kind in CHAOS:
        _fault(kind, spec, reading, at="spec", at_s=0.0, deadline_s=None)
    else:
        raise UnsupportedError(f"kind: {kind} breaks nothing by itself; {near(kind, _READ)}")


_READ = (*CHAOS, "Schedule", "Workflow")


def _fault(
    kind: str, spec: Mapping[str, Any], reading: Reading, *, at: str, at_s: float, deadline_s: float | None
) -> float:
    """Adds its steps; returns when it ends, in seconds of the method."""
    reader = _READERS.get(kind)
    if reader is None:
        raise UnsupportedError(f"{at}: {kind} has no fault of ours; {_OTHERS.get(kind, _NO_EQUAL)}")
    if spec.get("remoteCluster"):
        raise UnsupportedError(f"{at}.remoteCluster: the clusters of others are not reached")
    given = spec.get("duration")
    for_s = go_seconds(given, f"{at}.duration") if given not in (None, "") else deadline_s
    on = _machine(spec, reading, at) if kind == "PhysicalMachineChaos" else on_of(spec, reading, at)
    faults, once = reader(spec, reading, at, on)
    if for_s is None and not once:
        raise UnsupportedError(f"{at}.duration: it has none, and would last for ever; write one into the file")
    length_s = ONCE_S if once else float(for_s or ONCE_S)
    reading.add(at_s, length_s, on, *faults)
    return at_s + max(length_s, float(deadline_s or 0.0))


def _machine(spec: Mapping[str, Any], reading: Reading, at: str) -> str:
    if not reading.on:
        raise UnsupportedError(f"{at}: whose agent runs on these machines is not said there; say --on SELECTOR")
    reading.lose(f"{at}.selector: --on says {reading.on} instead of the machines")
    return reading.on


def _action(spec: Mapping[str, Any]) -> str:
    return str(spec.get("action", ""))


def _pod(spec: Mapping[str, Any], reading: Reading, at: str, on: str) -> tuple[Faults, bool]:
    action = _action(spec)
    if action in {"pod-kill", "container-kill"}:
        reading.lose(f"{at}.action: {action} keeps no disk of the pod; here the agent starts again on its own data")
        return [("process.restart", {"signal": "KILL"})], True
    if action == "pod-failure":
        return [("process.kill", {"signal": "KILL"})], False
    raise UnsupportedError(f"{at}.action: PodChaos has no action {shown(action)}")


def _network(spec: Mapping[str, Any], reading: Reading, at: str, on: str) -> tuple[Faults, bool]:
    action = _action(spec)
    if spec.get("externalTargets"):
        raise UnsupportedError(f"{at}.externalTargets: only hosts of the datacenter can be the other side")
    target = spec.get("target")
    side = side_of(mapping(target, f"{at}.target"), reading, f"{at}.target") if target else "all"
    if action == "partition":
        if not target:
            raise UnsupportedError(
                f"{at}.target: a partition without one is admitted by Chaos Mesh, and says nothing of the other side;"
                " write it, or use network.partition by hand"
            )
        direction = {"to": "out", "from": "in", "both": "both"}.get(str(spec.get("direction", "to")))
        if direction is None:
            raise UnsupportedError(f"{at}.direction: {shown(spec['direction'])} is neither to, from nor both")
        return [("network.partition", {"from": side, "direction": direction})], False
    parts = [name for name in ("delay", "loss", "corrupt", "duplicate", "reorder", "bandwidth", "rate") if name in spec]
    if action not in {"netem", "delay", "loss", "bandwidth"} or not parts:
        raise UnsupportedError(f"{at}.action: {action or 'none'} has no fault of ours")
    if action == "netem" and len(parts) > 1:
        together = " and ".join(parts)
        raise UnsupportedError(f"{at}.action: netem of {together} at once: ours would clash on these connections")
    return [_traffic(parts[0] if action == "netem" else action, spec, reading, at, (on, side))], False


def _traffic(
    name: str, spec: Mapping[str, Any], reading: Reading, at: str, ends: tuple[str, str]
) -> tuple[str, dict[str, Any]]:
    given, (on, side) = mapping(spec.get(name), f"{at}.{name}"), ends
    if float(given.get("correlation") or 0):
        reading.lose(f"{at}.{name}.correlation: ours have none")
    if given.get("reorder"):
        raise UnsupportedError(f"{at}.{name}.reorder: there is no fault of ours for it")
    if name == "loss":
        return "network.loss", {"percent": percent(given.get("loss"), f"{at}.loss.loss"), "from": side}
    port = PORTS[_product(on)]
    if name == "delay":
        reading.lose(f"{at}.delay: it delays everything; here only what comes to port {port}, and its answers")
        found = {"port": port, "delay": seconds(go_seconds(given.get("latency"), f"{at}.delay.latency")), "from": side}
        jitter_s = go_seconds(given["jitter"], f"{at}.delay.jitter") if given.get("jitter") else 0.0
        return "network.latency", {**found, "jitter": seconds(jitter_s)} if jitter_s else found
    if name == "bandwidth":
        reading.lose(f"{at}.bandwidth: it limits all connections together; here each to port {port} by itself")
        rate = rate_of(given.get("rate"), f"{at}.bandwidth.rate")
        return "network.bandwidth", {"port": port, "rate": f"{rate / 1000:g}kB/s", "from": side}
    raise UnsupportedError(f"{at}.{name}: there is no fault of ours for it")


def rate_of(value: Any, at: str) -> float:
    """Bytes per second."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", str(value).strip().lower())
    if match is None or match[2] not in _RATES:
        raise UnsupportedError(f"{at}: {shown(value)} is not a rate like 1mbps")
    return float(match[1]) * _RATES[match[2]]


def _product(on: str) -> str:
    product = on.partition(":")[0]
    return product if product in PORTS else "consul"


def _io(spec: Mapping[str, Any], reading: Reading, at: str, on: str) -> tuple[Faults, bool]:
    action = _action(spec)
    if action not in {"latency", "fault"}:
        raise UnsupportedError(f"{at}.action: IOChaos {action} has no fault of ours")
    if spec.get("path") or spec.get("volumePath"):
        reading.lose(f"{at}.path: here it is the whole disk of the agent's data")
    methods = [str(one).lower() for one in spec.get("methods") or ()]
    unknown = [one for one in methods if one not in _METHODS]
    if unknown:
        raise UnsupportedError(f"{at}.methods: {unknown[0]} has no operation of ours; there are read, write and fsync")
    operations = sorted({_METHODS[one] for one in methods}) or ["all"]
    common = {"percent": percent(spec.get("percent", 100), f"{at}.percent")}
    if action == "latency":
        common["delay"] = seconds(go_seconds(spec.get("delay"), f"{at}.delay"))
        return [("disk.latency", {"op": one, **common}) for one in operations], False
    number = spec.get("errno")
    if not isinstance(number, int) or number not in errno.errorcode:
        raise UnsupportedError(f"{at}.errno: there is no error number {shown(number)}")
    return [("disk.error", {"op": one, "errno": errno.errorcode[number], **common}) for one in operations], False


def _physical(spec: Mapping[str, Any], reading: Reading, at: str, on: str) -> tuple[Faults, bool]:
    action = _action(spec)
    given = mapping(spec.get(action) or {}, f"{at}.{action}")
    if action == "process":
        number = given.get("signal")
        if not isinstance(number, int) or number not in _SIGNALS:
            raise UnsupportedError(f"{at}.process.signal: {shown(number)} has no fault of ours; there are 9, 15 and 19")
        reading.lose(f"{at}.process.process: it is the agent that --on names")
        fault, parameters = _SIGNALS[number]
        return [(fault, dict(parameters))], False
    if action in {"network-delay", "network-loss", "network-partition", "network-bandwidth"}:
        sides = [name for name in ("ip-address", "hostname") if given.get(name)]
        if sides:
            reading.lose(f"{at}.{action}.{sides[0]}: here the other side is everybody")
        name = action.removeprefix("network-")
        if name == "partition":
            return [("network.partition", {"from": "all"})], False
        loss = {"loss": {"loss": given.get("percent"), "correlation": given.get("correlation")}}
        as_pod = loss if name == "loss" else {name: given}
        return [_traffic(name, as_pod, reading, at, (on, "all"))], False
    if action == "disk-fill":
        reading.lose(f"{at}.disk-fill.size: here the disk is filled to its end")
        return [("disk.full", {})], False
    raise UnsupportedError(f"{at}.action: {action} of PhysicalMachineChaos has no fault of ours")


Reader = Callable[[Mapping[str, Any], Reading, str, str], tuple[Faults, bool]]
_READERS: dict[str, Reader] = {
    "PodChaos": _pod, "NetworkChaos": _network, "IOChaos": _io, "PhysicalMachineChaos": _physical,
}  # fmt: skip
_NO_EQUAL = (
    "on an existing datacenter with Chaos Mesh, chaos_mesh.resource takes it, where it makes the agent silent or slow"
)
_OTHERS = {
    "StressChaos": f"cpu.throttle leaves a host fewer cores, which is the nearest; {_NO_EQUAL}",
    "BlockChaos": f"disk.latency is the nearest; {_NO_EQUAL}",
}


def field_of(kind: str) -> str:
    """The field of a Schedule or a template that holds a kind: podChaos, ioChaos, httpChaos."""
    words = _WHOLE_FIELD.split(kind)
    return words[0].lower() + "".join(words[1:])


def _schedule(
    spec: Mapping[str, Any], reading: Reading, at: str, at_s: float, deadline_s: float | None
) -> float:  # fmt: skip
    kind = str(spec.get("type", ""))
    if kind == "Workflow":
        _workflow(mapping(spec.get("workflow"), f"{at}.workflow"), reading)
        return at_s
    field = field_of(kind)
    reading.lose(f"{at}.schedule: {shown(spec.get('schedule'))}: it runs once; `hashidrill schedule` repeats it")
    where = f"{at}.{field}"
    return _fault(kind, mapping(spec.get(field), where), reading, at=where, at_s=at_s, deadline_s=deadline_s)


def _workflow(spec: Mapping[str, Any], reading: Reading) -> None:
    templates = {str(one.get("name")): one for one in spec.get("templates") or () if isinstance(one, Mapping)}
    entry = str(spec.get("entry", ""))
    _template(entry, templates, reading, 0.0, ())
    if not reading.steps:
        raise UnsupportedError(f"spec.templates: nothing that {shown(entry)} leads to breaks anything")


def _template(
    name: str, templates: Mapping[str, Mapping[str, Any]], reading: Reading, at_s: float, above: tuple[str, ...]
) -> float:
    """Adds the steps of one template; returns when it ends."""
    at = f"spec.templates.{name}"
    if name not in templates:
        raise UnsupportedError(f"{at}: there is no such template; {near(name, templates)}")
    if name in above or len(above) > _MOST_DEPTH:
        raise UnsupportedError(f"{at}: it leads to itself")
    one, inside = templates[name], (*above, name)
    kind = str(one.get("templateType", ""))
    deadline_s = go_seconds(one["deadline"], f"{at}.deadline") if one.get("deadline") else None
    if kind in {"Serial", "Parallel"}:
        ends_s = at_s
        for child in one.get("children") or ():
            begins_s = ends_s if kind == "Serial" else at_s
            ends_s = max(ends_s, _template(str(child), templates, reading, begins_s, inside))
        return ends_s
    if kind == "Suspend":
        return at_s + (deadline_s or 0.0)
    if kind == "Schedule":
        return _schedule(mapping(one.get("schedule"), f"{at}.schedule"), reading, f"{at}.schedule", at_s, deadline_s)
    if kind == "StatusCheck":
        reading.lose(f"{at}: a StatusCheck; steady_state, guardrails and expectations say here what must hold")
        return at_s
    if kind in CHAOS:
        field = field_of(kind)
        where = f"{at}.{field}"
        return _fault(kind, mapping(one.get(field), where), reading, at=where, at_s=at_s, deadline_s=deadline_s)
    raise UnsupportedError(f"{at}: a {kind or 'template without a type'} runs something; a method has no commands")
