"""Reads a ChaosEngine of Litmus: its experiments, one after the other, with their environments."""

import math
from collections.abc import Callable

from hashidrill.core.protocols import registry
from hashidrill.core.units import Size, shown
from hashidrill.kubernetes.interchange.document import (
    ONCE_S,
    ONE_INTERFACE,
    RATE_ALONE,
    Document,
    Faults,
    Reading,
    delay_of,
    loss_of,
)
from hashidrill.kubernetes.interchange.from_chaos_mesh import CLOUD_ONLY, NO_JVM, rate_of
from hashidrill.kubernetes.interchange.label_selectors import (
    SAY_FROM,
    SAY_ON,
    at_random,
    by_labels,
    everybody,
    link_of,
    names_none,
    own_container,
)
from hashidrill.kubernetes.vocabulary import BY_LABEL

_RUNS = "this is how Litmus runs it"
_KEPT = (
    "annotationCheck",
    "auxiliaryAppInfo",
    "chaosServiceAccount",
    "components",
    "defaultHealthCheck",
    "jobCleanUpPolicy",
    "monitoring",
    "terminationGracePeriodSeconds",
)
_RUNNERS = (
    "configMaps",
    "experimentAnnotations",
    "experimentImage",
    "experimentImagePullSecrets",
    "nodeSelector",
    "resources",
    "secrets",
    "securityContext",
    "statusCheckTimeouts",
    "tolerations",
)
_OF_RUNNERS = (
    "CONTAINER_API_TIMEOUT",
    "CONTAINER_PATH",
    "CONTAINER_RUNTIME",
    "DATA_BLOCK_SIZE",
    "DEFAULT_HEALTH_CHECK",
    "LIB",
    "LIB_IMAGE",
    "LIB_IMAGE_PULL_POLICY",
    "SET_HELPER_DATA",
    "SOCKET_PATH",
    "STATUS_CHECK_DELAY",
    "STATUS_CHECK_TIMEOUT",
    "TC_IMAGE",
    "TERMINATION_GRACE_PERIOD_SECONDS",
)
"""Variables about how Litmus injects; they do not change the fault."""
_DEFAULTS = {"pod-delete": (15.0, 5.0), "container-kill": (20.0, 10.0)}
_DEFAULT_S = 60.0
"""Defaults of TOTAL_CHAOS_DURATION and CHAOS_INTERVAL, in seconds, from litmuschaos/chaos-charts."""
_NODE = "it hits a node and everything on it, but a fault hits one agent"
_REASONS = {
    "node-drain": "on an existing datacenter with Litmus, litmus.node_drain runs it",
    **dict.fromkeys(("node-", "docker-service-kill", "kubelet-service-kill"), _NODE),
    **dict.fromkeys(("aws-", "azure-", "ebs-", "ec2-", "gcp-", "rds-"), CLOUD_ONLY),
    "vmware-": "it stops a virtual machine and everything on it, but a fault hits one agent",
    "spring-boot-": NO_JVM,
    **{name: f"it hits {whom}, but a fault hits one agent" for name, whom in BY_LABEL.items()},
}
"""For prefixes of experiments' names: why no fault on hosts is like these experiments."""
_SIGNALS = {"SIGKILL": "KILL", "SIGTERM": "TERM", "SIGINT": "INT"}
_ALL = 100.0
DISK_BYTES = 256_000_000
"""The size, in bytes, of the disk in an imported experiment that fills a disk."""


def defaults(document: Document, reading: Reading) -> None:
    """Keeps a ChaosExperiment for its engine in the same file: it has the values that the engine leaves out."""
    metadata, spec = document.part("metadata"), document.part("spec")
    definition = reading.defaults[metadata.text("name")] = spec.part("definition")
    definition.lose_rest(_RUNS, but="env")
    for part in (metadata, spec, document):
        part.lose_rest(_RUNS)


def unused(reading: Reading) -> None:
    """Reports the ChaosExperiments that no engine of the file names."""
    for definition in reading.defaults.values():
        if definition.unread():
            definition.lose("no ChaosEngine of this file names this experiment", "env")


def read(document: Document, reading: Reading) -> None:
    """Adds the engine's steps. Raises UnsupportedError that names what an experiment cannot express."""
    spec = document.part("spec")
    spec.choice("engineState", ["active"], "active")
    spec.lose(_RUNS, *_KEPT)
    experiments = spec.parts("experiments")
    if not experiments:
        raise spec.wrong("experiments", "there are none")
    at_s = 0.0
    for one in experiments:
        inner = one.part("spec")
        components = inner.part("components")
        components.lose(_RUNS, *_RUNNERS)
        inner.lose("they run in the order of the file", "rank")
        inner.lose("`expect` and `guardrails` say what must hold", "probe")
        if not inner.has("probe"):
            reading.lose(f"{one.at}: it has no probe, so Litmus says Pass whatever happens; here `expect` decides")
        name = one.text("name")
        if name not in _READERS:
            raise one.wrong("name", _no_fault(name))
        if name not in reading.defaults:
            reading.lose(
                f"{components.at}.env: a ChaosExperiment sets the rest; here the one of Litmus's own charts is used"
            )
        left_out = _env(reading.defaults[name]) if name in reading.defaults else {}
        env = Document({**left_out, **_env(components)}, f"{components.at}.env", reading.all)
        at_s = _experiment(one, env, spec, reading, at_s)


def _env(components: Document) -> dict[str, str]:
    """The variables that have a value (to Litmus "" is none). Raises UnsupportedError if a value is not in the file."""
    found = dict[str, str]()
    for one in components.parts("env"):
        name = one.text("name")
        one.refuse(f"the value of {name} is not in the file", "valueFrom")
        if found.setdefault(name, one.text("value")) != one.text("value"):
            raise one.wrong("name", f"{shown(name)} appears twice, with two values")
    return {name: value for name, value in found.items() if value}


def _experiment(one: Document, env: Document, spec: Document, reading: Reading, at_s: float) -> float:
    name = one.text("name")
    if name == "pod-network-partition" and not reading.on:
        raise one.wrong("name", f"it reads appinfo only if that has one label, which names no role; {SAY_ON}")
    on = _on(env, spec, reading)
    env.lose("this is how Litmus injects it", *_OF_RUNNERS)
    if name == "pod-delete":
        env.lose("pod-delete hits all containers of a pod", "TARGET_CONTAINER")
    else:
        own_container(env, "TARGET_CONTAINER", on)
    whole_s, often_s = _DEFAULTS.get(name, (_DEFAULT_S, 0.0))
    ramp_s, total_s = env.number("RAMP_TIME"), env.number("TOTAL_CHAOS_DURATION", whole_s)
    at_s += ramp_s
    faults = _READERS[name](env, reading, on)
    if name in _DEFAULTS:
        interval_s = env.number("CHAOS_INTERVAL", often_s)
        env.choice("RANDOMNESS", ["false"], "false")
        if interval_s < ONCE_S:
            env.lose(f"here every {ONCE_S:g} s", "CHAOS_INTERVAL")
        between_s = max(interval_s, ONCE_S)
        for count in range(max(1, math.ceil(total_s / between_s))):
            reading.add(at_s + count * between_s, ONCE_S, on, *faults)
    else:
        reading.add(at_s, total_s, on, *faults)
    return at_s + total_s + ramp_s


def _no_fault(name: str) -> str:
    for start, why in _REASONS.items():
        if name.startswith(start):
            return f"no fault on hosts is like {name}; {why}"
    kind = f"litmus.{name.replace('-', '_')}"
    if kind not in registry.fault_kinds():
        if not name.startswith(("pod-", "container-")):
            return f"hashidrill has no fault like {name or 'an experiment without a name'}"
        kind = "litmus.experiment"
    nearest = "cpu.throttle is the nearest; " if name.startswith("pod-cpu-hog") else ""
    return f"no fault on hosts is like {name}; {nearest}on an existing datacenter with Litmus, {kind} runs it"


def _on(env: Document, spec: Document, reading: Reading) -> str:
    application, selectors, whom = spec.part("appinfo"), spec.part("selectors"), ("TARGET_PODS", "NODE_LABEL")
    share = env.percent("PODS_AFFECTED_PERC")
    if reading.on:
        for part in (application, selectors):
            part.lose_rest(f"--on says {reading.on}")
        env.lose(f"--on says {reading.on}", "PODS_AFFECTED_PERC", "SEQUENCE", *whom)
        return reading.on
    env.refuse(SAY_ON, *whom)
    if share not in {0.0, _ALL}:
        raise env.wrong("PODS_AFFECTED_PERC", f"no selector means {share:g} % of the pods; {SAY_ON}")
    mode = "all" if share == _ALL else "one"
    env.choice("SEQUENCE", ["parallel"] if mode == "all" else ["parallel", "serial"], "parallel")
    source, key = application, "applabel"
    if workloads := selectors.parts("workloads"):
        application.lose_rest("spec.selectors decides")
        if len(workloads) > 1:
            raise selectors.wrong("workloads", f"there are {len(workloads)}; {SAY_ON}")
        source, key = workloads[0], "labels"
    selectors.refuse(SAY_ON, "pods")
    source.refuse(SAY_ON, "names")
    source.lose("a local datacenter has no workloads and namespaces", "appns", "appkind", "kind", "namespace")
    labels = _labels(source, key, reading)
    on = by_labels(labels, mode)
    if not on:
        raise source.wrong(key, f"{names_none(labels)}; {SAY_ON}")
    at_random(on, env.place("PODS_AFFECTED_PERC"), reading)
    return on


def _labels(source: Document, key: str, reading: Reading) -> Document:
    found = dict[str, str]()
    for each in filter(None, (one.strip() for one in source.text(key).split(","))):
        name, equals, value = each.partition("=")
        value = value.removeprefix("=")
        if not equals or not name or name.endswith("!") or not value or name in found:
            raise source.wrong(key, f"{shown(each)} is not one label and its value; {SAY_ON}")
        found[name] = value
    return Document(found, source.place(key), reading.all)


def _delete(env: Document, reading: Reading, on: str) -> Faults:
    if env.choice("FORCE", ["true", "false"], "true") == "true":
        return _restart("KILL", env, reading)
    env.lose("the pod has its own grace period; an agent that does not stop has 15 s", "FORCE")
    return _restart("TERM", env, reading)


def _kill(env: Document, reading: Reading, on: str) -> Faults:
    return _restart(_SIGNALS[env.choice("SIGNAL", _SIGNALS, "SIGKILL")], env, reading)


def _restart(signal: str, env: Document, reading: Reading) -> Faults:
    reading.lose(f"{env.at}: it hits a pod or a container; here the agent starts again on its own data")
    return [("process.restart", {"signal": signal})]


def _side(env: Document, reading: Reading) -> str:
    env.lose(ONE_INTERFACE, "NETWORK_INTERFACE")
    alone, spared = ("DESTINATION_IPS", "DESTINATION_HOSTS"), ("POD_SELECTOR", "NAMESPACE_SELECTOR")
    if not reading.side:
        env.refuse(f"it hits only traffic with these; {SAY_FROM}", *alone)
        env.refuse(f"its NetworkPolicy spares these pods and cuts off all others; {SAY_FROM}", *spared)
    env.lose(f"--from says {reading.side}", *alone, *spared)
    return everybody(reading, env.at)


def _latency(env: Document, reading: Reading, on: str) -> Faults:
    link = link_of(on, _side(env, reading))
    return delay_of(link, env.number("NETWORK_LATENCY", 2000) / 1000, env.number("JITTER") / 1000, reading, env.at)


def _loss(env: Document, reading: Reading, on: str) -> Faults:
    percent = env.percent("NETWORK_PACKET_LOSS_PERCENTAGE", _ALL)
    return loss_of(percent, "out", _side(env, reading), reading, env.place("NETWORK_PACKET_LOSS_PERCENTAGE"))


def _partition(env: Document, reading: Reading, on: str) -> Faults:
    env.choice("POLICY_TYPES", ["all"], "all")  # another NetworkPolicy lets answers pass
    env.refuse("network.partition cuts all ports; network.block cuts one port", "PORTS")
    reading.lose(f"{env.at}: it hits every pod with the label, whatever else the engine says; --on says {on}")
    return [("network.partition", {"from": _side(env, reading)})]


def _bandwidth(env: Document, reading: Reading, on: str) -> Faults:
    link = link_of(on, _side(env, reading))
    env.lose(RATE_ALONE, "BURST", "LIMIT", "MIN_BURST", "PEAK_RATE")
    reading.lose(f"{env.at}: it limits all connections together; here each on port {link['port']}, both ways")
    return [("network.bandwidth", {**link, "rate": rate_of(env, "NETWORK_BANDWIDTH", "1mbit")})]


def _fill(env: Document, reading: Reading, on: str) -> Faults:
    env.refuse("disk.full leaves a share of the disk free", "EPHEMERAL_STORAGE_MEBIBYTES")
    share = env.percent("FILL_PERCENTAGE", 80.0)
    reading.lose(f"{env.place('FILL_PERCENTAGE')}: here {share:g} % of the disk of the agent's data, not of its pod's")
    leave = round(DISK_BYTES * (1 - share / 100))
    return [("disk.full", {"leave": str(Size(leave))} if leave else {})]


Reader = Callable[[Document, Reading, str], Faults]
_READERS: dict[str, Reader] = {
    "pod-delete": _delete,
    "container-kill": _kill,
    "pod-network-latency": _latency,
    "pod-network-loss": _loss,
    "pod-network-partition": _partition,
    "pod-network-rate-limit": _bandwidth,
    "disk-fill": _fill,
}
