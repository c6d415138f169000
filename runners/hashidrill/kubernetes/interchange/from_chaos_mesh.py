"""Reads objects of Chaos Mesh: one fault, a Schedule of one, or a Workflow of several."""

import errno
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hashidrill.core.protocols.registry import near
from hashidrill.core.units import Bandwidth, shown
from hashidrill.kubernetes.interchange.document import (
    ONCE_S,
    ONE_INTERFACE,
    RATE_ALONE,
    Document,
    Faults,
    Link,
    Reading,
    UnsupportedError,
    delay_of,
    loss_of,
    seconds,
)
from hashidrill.kubernetes.interchange.label_selectors import (
    VOLUMES,
    everybody,
    link_of,
    on_of,
    own_container,
    product_of,
    side_of,
)
from hashidrill.kubernetes.vocabulary import CLOUD, FIELDS

_RATES = {
    f"{prefix}{unit}": size * 1000.0**power
    for power, prefix in enumerate(("", "k", "m", "g", "t"))
    for unit, size in {"bps": 1.0, "bit": 0.125}.items()
}
"""Bytes per second of each unit, as tc reads it: `kbps` are kilobytes per second."""
_METHODS = ("read", "write", "fsync")
_SIGNALS = {
    19: ("process.pause", {}),
    9: ("process.kill", {"signal": "KILL"}),
    15: ("process.kill", {"signal": "TERM"}),
    2: ("process.kill", {"signal": "INT"}),
}
_WAYS = {"to": "out", "from": "in", "both": "both"}
_PAUSE = "experiment.chaos-mesh.org/pause"
_MOST_DEPTH, _MOST_NODES = 10, 500


def read(kind: str, document: Document, reading: Reading) -> None:
    """Adds the object's steps. Raises UnsupportedError that names what an experiment cannot express."""
    if document.part("metadata").part("annotations").text(_PAUSE) == "true":
        raise UnsupportedError(f"{document.place('metadata')}.annotations.{_PAUSE}: it is paused, and injects nothing")
    spec = document.part("spec")
    if kind == "Schedule" and spec.text("type") == "Workflow":
        _once(spec)
        _workflow(spec.part("workflow"), reading)
    elif kind == "Schedule":
        _schedule(spec, reading, 0.0, math.inf)
    elif kind == "Workflow":
        _workflow(spec, reading)
    elif kind in FIELDS:
        _fault(kind, spec, reading, 0.0, math.inf)
    elif kind in BREAK_NOTHING:
        raise document.wrong("kind", f"{kind} breaks nothing by itself; {BREAK_NOTHING[kind]}")
    else:
        known = near(kind, [*FIELDS, "Schedule", "Workflow"])
        raise document.wrong("kind", f"Chaos Mesh has no kind {shown(kind)}; {known}")


_WRITTEN = "controllers of Chaos Mesh write it; import the object that it comes from"
BREAK_NOTHING: Mapping[str, str] = {
    "PhysicalMachine": "import the PhysicalMachineChaos that names it",
    "RemoteCluster": "import what will run there",
    "StatusCheck": "write what must hold under `expect` and `guardrails`",
    **dict.fromkeys(("PodHttpChaos", "PodIOChaos", "PodNetworkChaos", "WorkflowNode"), _WRITTEN),
}


def _fault(kind: str, spec: Document, reading: Reading, at_s: float, ends_s: float) -> float:
    """Adds the fault's steps, which end by `ends_s` at the latest; returns when they end, in seconds of the method."""
    reader = _READERS.get(kind)
    if reader is None:
        stress = "cpu.throttle is the nearest; " if spec.part("stressors").has("cpu") else ""
        rewrites = kind == "HTTPChaos" and (spec.has("patch") or spec.has("replace"))
        why = _NO_EQUAL if rewrites else _OTHERS.get(kind, _NO_EQUAL)
        raise UnsupportedError(f"{spec.at}: no fault on hosts is like {kind}; {stress}{why}")
    spec.refuse("hashidrill does not reach other clusters", "remoteCluster")
    _once(spec.part("scheduler"))  # of Chaos Mesh 1
    on = _machine(spec, reading) if kind == "PhysicalMachineChaos" else on_of(spec, reading)
    faults, once = reader(spec, reading, on)
    for_s = spec.seconds("duration") or math.inf
    if once:
        spec.lose("it is over at once", "duration")
        reading.add(at_s, ONCE_S, on, *faults)
        return at_s + ONCE_S
    until_s = min(ends_s, at_s + for_s)
    if until_s == math.inf:
        raise spec.wrong("duration", "it has none, and would last for ever; write one, or a deadline of its template")
    if until_s < at_s + for_s:
        spec.lose(f"the deadline of its workflow ends it after {seconds(until_s - at_s)}", "duration")
    reading.add(at_s, until_s - at_s, on, *faults)
    return until_s


def _machine(spec: Document, reading: Reading) -> str:
    if not reading.on:
        raise UnsupportedError(f"{spec.at}: it does not say which agent runs on these machines; use --on SELECTOR")
    spec.lose(f"--on says {reading.on} instead of the machines", "address", "selector", "mode", "value")
    spec.lose("chaosd sets it", "uid")
    return reading.on


def _pod(spec: Document, reading: Reading, on: str) -> tuple[Faults, bool]:
    action, signal = spec.choice("action", ("pod-kill", "pod-failure", "container-kill")), "KILL"
    if action == "container-kill" and not spec.has("containerNames"):
        raise spec.wrong("containerNames", "it is missing, and Chaos Mesh requires it")
    if action == "container-kill":
        own_container(spec, "containerNames", on)
    spec.lose(f"{action} hits all containers of a pod", "containerNames")
    if action == "pod-failure":
        return [("process.kill", {"signal": "KILL"})], False
    if action == "pod-kill" and spec.whole("gracePeriod"):
        signal = "TERM"
        spec.lose("seconds until the pod is killed; an agent that does not stop has 15 s", "gracePeriod")
    kept = "the container's own files are new" if action == "container-kill" else "only volumes outlive the pod"
    reading.lose(f"{spec.place('action')}: after {action}, {kept}; here the agent starts again on its data")
    return [("process.restart", {"signal": signal})], True


def _network(spec: Document, reading: Reading, on: str) -> tuple[Faults, bool]:
    action, direction = spec.text("action", needed=True), spec.choice("direction", _WAYS, "to")
    spec.refuse("only hosts of the datacenter can be the other side", "externalTargets")
    spec.lose(ONE_INTERFACE, "device", "targetDevice")
    if spec.has("target"):
        side = side_of(spec.part("target"), reading)
    elif action == "partition":
        raise UnsupportedError(
            f"{spec.place('target')}: Chaos Mesh accepts a partition without a target, but then the other side is not"
            " known; write a target, or use network.partition by hand"
        )
    elif direction != "to":
        raise spec.wrong("direction", f"{direction} needs a target, and Chaos Mesh refuses it")
    else:
        side = everybody(reading, spec.place("target"))
    if action == "partition":
        return [("network.partition", {"from": side, "direction": _WAYS[direction]})], False
    parts = [name for name in ("delay", "loss", "corrupt", "duplicate", "bandwidth", "rate") if spec.has(name)]
    if action == "netem" and len(parts) > 1:
        raise spec.wrong("action", f"{' and '.join(parts)} at once: combined netem actions are not supported")
    name = parts[0] if action == "netem" and parts else action
    if name not in {"delay", "loss", "bandwidth", "rate"} or name not in parts:
        raise spec.wrong("action", f"no fault on hosts is like {name}; {_NO_EQUAL}")
    return _traffic(name, spec.part(name), reading, link_of(on, side), direction), False


def _traffic(name: str, given: Document, reading: Reading, link: Link, direction: str) -> Faults:
    at = f"{given.at}, direction {direction}"
    if name != "bandwidth" and given.percent("correlation"):
        given.lose("here packets are chosen independently", "correlation")
    given.refuse("no fault on hosts reorders packets", "reorder")
    if name == "loss":
        percent = given.percent("percent" if given.has("percent") else "loss")
        return loss_of(percent, _WAYS[direction], link["from"], reading, at)
    if name == "delay":
        delay_s, jitter_s = given.seconds("latency", needed=True), given.seconds("jitter")
        if direction == "both":
            reading.lose(f"{at}: it delays a round trip twice; here once, for twice as long")
            delay_s, jitter_s = 2 * delay_s, 2 * jitter_s
        return delay_of(link, delay_s, jitter_s, reading, at)
    reading.lose(f"{at}: it limits all traffic together; here each connection of port {link['port']}, both ways")
    given.lose(RATE_ALONE, "limit", "buffer", "peakrate", "minburst")
    return [("network.bandwidth", {**link, "rate": rate_of(given, "rate")})]


def rate_of(given: Document, key: str, default: str = "") -> str:
    """A rate in our notation. Raises UnsupportedError."""
    text = given.text(key, default)
    match = re.fullmatch(r"(\d{1,15}(?:\.\d+)?)\s*([a-z]+)", text.lower())
    if match is None or match[2] not in _RATES:
        raise given.wrong(key, f"{shown(text)} is not a rate like 1mbps")
    return str(Bandwidth(float(match[1]) * _RATES[match[2]]))


def _io(spec: Document, reading: Reading, on: str) -> tuple[Faults, bool]:
    action = spec.text("action", needed=True)
    if action not in {"latency", "fault"}:
        raise spec.wrong("action", f"no fault on hosts is like IOChaos {action}; {_NO_EQUAL}")
    own_container(spec, "containerNames", on)
    volume = spec.text("volumePath")
    if volume and not reading.on and not f"{volume}/".startswith(f"{VOLUMES[product_of(on)]}/"):
        raise spec.wrong("volumePath", f"{shown(volume)} does not hold the data of an agent")
    spec.lose("here it is the whole disk of the agent's data", "volumePath", "path")
    operations = sorted({one.lower() for one in spec.texts("methods")})
    if unknown := set(operations) - set(_METHODS):
        raise spec.wrong("methods", f"no fault on hosts is on {min(unknown)}; there are {', '.join(_METHODS)}")
    if not operations:
        reading.lose(f"{spec.place('methods')}: it hits all calls; here reads, writes and fsyncs")
    fault, parameters = "disk.latency", {"percent": f"{spec.percent('percent', 100.0):g}%"}
    if action == "latency":
        parameters["delay"] = seconds(spec.seconds("delay", needed=True))
    else:
        fault, number = "disk.error", spec.whole("errno")
        if number not in errno.errorcode:
            raise spec.wrong("errno", f"there is no error number {number}")
        parameters["errno"] = errno.errorcode[number]
    return [(fault, {"op": one, **parameters}) for one in operations or ["all"]], False


def _physical(spec: Document, reading: Reading, on: str) -> tuple[Faults, bool]:
    action = spec.text("action", needed=True)
    if action not in {*_ON_MACHINES, "process", "disk-fill"}:
        nearest = "cpu.throttle is the nearest" if action == "stress-cpu" else _MACHINES
        raise spec.wrong("action", f"no fault on hosts is like {action}; {nearest}")
    given = spec.part(action)
    if action == "process":
        own_container(given, "process", on)
        number = given.whole("signal")
        if number not in _SIGNALS:
            raise given.wrong("signal", f"no fault on hosts is signal {number}; {_SIGNALS_SAID}")
        given.lose("reverting starts the agent again", "recoverCmd")
        fault, parameters = _SIGNALS[number]
        return [(fault, dict(parameters))], False
    if action == "disk-fill":
        given.lose("here the disk of the agent's data is filled to its end", "size", "path", "fill-by-fallocate")
        return [("disk.full", {})], False
    return _of_machine(action.removeprefix("network-"), given, reading, on), False


def _of_machine(name: str, given: Document, reading: Reading, on: str) -> Faults:
    """The faults of chaosd on a machine's traffic: on outgoing traffic, except for a partition."""
    given.lose(ONE_INTERFACE, "device")
    given.refuse("no fault on hosts looks at the flags of packets", "accept-tcp-flags")
    if not reading.side and (sides := [key for key in ("ip-address", "hostname") if given.has(key)]):
        raise given.wrong(sides[0], "it hits only traffic with this address; use --from SIDE")
    given.lose(f"--from says {reading.side}", "ip-address", "hostname")
    side = reading.side or "all"
    protocol, links = given.text("ip-protocol", "all"), name in {"delay", "bandwidth"}
    if protocol != "all" and not (links and protocol == "tcp"):
        raise given.wrong("ip-protocol", f"{shown(protocol)}: network.{name} hits {'TCP' if links else 'all'}")
    if name == "partition":
        direction = _WAYS[given.choice("direction", ("to", "from"))]
        return [("network.partition", {"from": side, "direction": direction})]
    link, ports = link_of(on, side), [key for key in ("source-port", "egress-port") if given.has(key)]
    if ports:
        if name != "delay" or len(ports) > 1 or not given.text(ports[0]).isdecimal():
            raise given.wrong(ports[0], "only network.latency can be on one port, and no fault on several")
        out = {"direction": "out"} if ports[0] == "egress-port" else {}
        link = {"port": int(given.number(ports[0], most=65535)), **out, "from": side}
    return _traffic(name, given, reading, link, "to")


Reader = Callable[[Document, Reading, str], tuple[Faults, bool]]
_READERS: dict[str, Reader] = {
    "PodChaos": _pod,
    "NetworkChaos": _network,
    "IOChaos": _io,
    "PhysicalMachineChaos": _physical,
}
_ON_MACHINES = ("network-delay", "network-loss", "network-partition", "network-bandwidth")
_SIGNALS_SAID = f"there are {', '.join(map(str, sorted(_SIGNALS)))}"
_NO_EQUAL = (
    "on an existing datacenter with Chaos Mesh, chaos_mesh.resource can run it if it makes the agent silent or slow"
)
_MACHINES = (
    "on an existing datacenter, a chaosd runs chaos_mesh.physical.process, disk_fill, cpu, partition and bandwidth"
)
NO_JVM = "no agent of Consul, Nomad or Vault runs in a JVM"
CLOUD_ONLY = "it stops machines or volumes of a cloud provider, which hashidrill does not touch"
_OTHERS = {
    "JVMChaos": NO_JVM,
    "BlockChaos": f"disk.latency is the nearest; {_NO_EQUAL}",
    "TimeChaos": "on an existing datacenter with Chaos Mesh, chaos_mesh.time does it",
    "HTTPChaos": "on an existing datacenter with Chaos Mesh, chaos_mesh.http.abort and chaos_mesh.http.delay do it",
    **dict.fromkeys(CLOUD, CLOUD_ONLY),
}


def _once(spec: Document) -> None:
    spec.lose("it runs once; `hashidrill schedule` repeats it", "schedule", "cron")
    spec.lose("it runs once", "concurrencyPolicy", "historyLimit", "startingDeadlineSeconds")


def _schedule(spec: Document, reading: Reading, at_s: float, ends_s: float) -> float:
    _once(spec)
    kind = spec.choice("type", FIELDS)
    return _fault(kind, _embedded(spec, kind), reading, at_s, ends_s)


def _embedded(spec: Document, kind: str) -> Document:
    if not spec.has(FIELDS[kind]):
        raise spec.wrong(FIELDS[kind], f"it is missing; it must hold the spec of the {kind}")
    return spec.part(FIELDS[kind])


def _workflow(spec: Document, reading: Reading) -> None:
    entry, templates = spec.text("entry"), dict[str, Document]()
    for number, one in enumerate(spec.parts("templates", by="name")):
        name = one.text("name")
        if name in templates:
            raise spec.wrong(f"templates[{number}].name", f"{shown(name)} is the name of two templates")
        templates[name] = one
    course, before = _Course(spec.place("templates"), templates, reading), len(reading.steps)
    course.add(entry, 0.0, math.inf)
    if len(reading.steps) == before:
        raise spec.wrong("templates", f"no template that {shown(entry)} leads to breaks anything")
    for name in sorted(templates.keys() - course.visited):
        templates[name].lose_all(f"the entry {shown(entry)} does not lead to it")


@dataclass
class _Course:
    at: str
    templates: Mapping[str, Document]
    reading: Reading
    visited: set[str] = field(default_factory=set)
    nodes: int = 0

    def add(self, name: str, at_s: float, ends_s: float, above: tuple[str, ...] = ()) -> float:
        """Adds the steps of one template, until `ends_s` at the latest; returns when it ends."""
        at = f"{self.at}.{name}"
        if name not in self.templates:
            raise UnsupportedError(f"{at}: there is no such template; {near(name, self.templates)}")
        if name in above or len(above) > _MOST_DEPTH:
            raise UnsupportedError(f"{at}: it leads to itself")
        self.nodes += 1
        if self.nodes > _MOST_NODES:
            raise UnsupportedError(f"{self.at}: it runs more than {_MOST_NODES} templates; import its parts one by one")
        one = self.templates[name]
        if at_s >= ends_s:
            self.reading.lose(f"{at}: it never begins: a parent's deadline ends after {seconds(ends_s)}")
            return ends_s
        self.visited.add(name)
        kind, deadline_s = one.text("templateType"), one.seconds("deadline") or math.inf
        until_s = min(ends_s, at_s + deadline_s)
        if kind in {"Serial", "Parallel"}:
            last_s = at_s
            for child in one.texts("children"):
                begins_s = last_s if kind == "Serial" else at_s
                last_s = max(last_s, self.add(child, begins_s, until_s, (*above, name)))
            return last_s
        if kind == "Suspend":
            return at_s if until_s == math.inf else until_s
        if kind == "StatusCheck":
            one.lose("steady_state, guardrails and expect say what must hold", "statusCheck", "abortWithStatusCheck")
            self.reading.lose(f"{at}: a StatusCheck; here nothing waits for it")
            return at_s
        return max(self._fault(kind, one, at_s, until_s), at_s if deadline_s == math.inf else until_s)

    def _fault(self, kind: str, one: Document, at_s: float, until_s: float) -> float:
        if kind == "Schedule":
            return _schedule(one.part("schedule"), self.reading, at_s, until_s)
        if kind in FIELDS:
            return _fault(kind, _embedded(one, kind), self.reading, at_s, until_s)
        raise UnsupportedError(
            f"{one.at}: a {kind or 'template without a type'} runs a command; a method has no commands"
        )
