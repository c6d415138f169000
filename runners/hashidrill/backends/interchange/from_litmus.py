"""Reads a ChaosEngine of Litmus: its experiments, one after the other, with what their environment says."""

from __future__ import annotations

import math
from collections.abc import Callable

from hashidrill import registry
from hashidrill.backends.interchange.document import Document, UnsupportedError
from hashidrill.backends.interchange.from_chaos_mesh import rate_of
from hashidrill.backends.interchange.steps import ONCE_S, Faults, Reading, delay_of, loss_of
from hashidrill.backends.interchange.whom import SAY_ON, at_random, by_labels, link_of, names_none, own_container
from hashidrill.units import Size, shown

_RUNS = "this is how Litmus runs it"
_KEPT = (
    "annotationCheck", "auxiliaryAppInfo", "chaosServiceAccount", "components", "defaultHealthCheck",
    "jobCleanUpPolicy", "monitoring", "terminationGracePeriodSeconds",
)  # fmt: skip
_RUNNERS = (
    "configMaps", "experimentAnnotations", "experimentImage", "experimentImagePullSecrets", "nodeSelector",
    "resources", "secrets", "securityContext", "statusCheckTimeouts", "tolerations",
)  # fmt: skip
_OF_RUNNERS = (
    "CONTAINER_API_TIMEOUT", "CONTAINER_PATH", "CONTAINER_RUNTIME", "DATA_BLOCK_SIZE", "DEFAULT_HEALTH_CHECK", "LIB",
    "LIB_IMAGE", "LIB_IMAGE_PULL_POLICY", "SET_HELPER_DATA", "SOCKET_PATH", "STATUS_CHECK_DELAY",
    "STATUS_CHECK_TIMEOUT", "TC_IMAGE", "TERMINATION_GRACE_PERIOD_SECONDS",
)  # fmt: skip
"""How Litmus injects, which changes nothing of the fault."""
_DEFAULTS = {"pod-delete": (15.0, 5.0), "container-kill": (20.0, 10.0)}
_DEFAULT_S = 60.0
"""TOTAL_CHAOS_DURATION and CHAOS_INTERVAL as litmuschaos/chaos-charts has them, where an engine does not say them."""
_SIGNALS = {"SIGKILL": "KILL", "SIGTERM": "TERM", "SIGINT": "INT"}
_ALL = 100.0
DISK_BYTES = 256_000_000
"""The disk of an imported experiment that fills it."""


def defaults(document: Document, reading: Reading) -> None:
    """Reads a ChaosExperiment that stands beside its engine: Litmus takes from it what the engine leaves out."""
    metadata, spec = document.part("metadata"), document.part("spec")
    reading.defaults[metadata.text("name")] = _env(spec.part("definition"))
    for part in (metadata, spec.part("definition"), spec):
        part.lose_rest(_RUNS)


def read(document: Document, reading: Reading) -> None:
    """Raises UnsupportedError that names what an experiment cannot say, and what no ChaosEngine has."""
    spec = document.part("spec")
    if (state := spec.text("engineState", "active")) != "active":
        raise UnsupportedError(f"{spec.place('engineState')}: it is {shown(state)}, and injects nothing")
    spec.lose(_RUNS, *_KEPT)
    experiments = spec.parts("experiments")
    if not experiments:
        raise UnsupportedError(f"{spec.place('experiments')}: there are none")
    at_s = 0.0
    for one in experiments:
        inner = one.part("spec")
        components = inner.part("components")
        components.lose(_RUNS, *_RUNNERS)
        inner.lose("they run in the order of the file", "rank")
        if inner.has("probe"):
            inner.lose("say in `expect` and `guardrails` what must hold", "probe")
        else:
            inner.parts("probe")
            reading.lose(f"{one.at}: it has no probe, so Litmus says Pass whatever happens; here `expect` decides")
        name = one.text("name")
        env = Document({**reading.defaults.get(name, {}), **_env(components)}, f"{components.at}.env", reading.all)
        at_s = _experiment(one, env, spec, reading, at_s)


def _env(components: Document) -> dict[str, str]:
    """Those with a value; to Litmus an empty one is none. Raises UnsupportedError for one that comes from elsewhere."""
    found = dict[str, str]()
    for one in components.parts("env"):
        name = one.text("name")
        one.refuse(f"the value of {name} is not in the file", "valueFrom")
        if name in found:
            raise UnsupportedError(f"{one.place('name')}: {shown(name)} is there twice")
        found[name] = one.text("value")
    return {name: value for name, value in found.items() if value}


def _experiment(one: Document, env: Document, spec: Document, reading: Reading, at_s: float) -> float:
    """Adds its steps; returns when it ends. Seconds."""
    name = one.text("name")
    reader = _READERS.get(name)
    if reader is None:
        raise UnsupportedError(f"{one.place('name')}: {_no_fault(name)}")
    on = _on(env, spec, reading)
    env.lose("this is how Litmus injects it", *_OF_RUNNERS)
    if name == "pod-delete":
        env.lose("pod-delete takes all containers of a pod", "TARGET_CONTAINER")
    else:
        own_container(
            [env.text("TARGET_CONTAINER")] if env.has("TARGET_CONTAINER") else [], on, env.place("TARGET_CONTAINER")
        )
    whole_s, often_s = _DEFAULTS.get(name, (_DEFAULT_S, 0.0))
    ramp_s, total_s = env.number("RAMP_TIME"), env.number("TOTAL_CHAOS_DURATION", whole_s)
    at_s += ramp_s
    faults = reader(env, reading, on)
    if name in _DEFAULTS:
        interval_s = env.number("CHAOS_INTERVAL", often_s)
        if env.text("RANDOMNESS", "false") != "false":
            raise UnsupportedError(f"{env.place('RANDOMNESS')}: steps of a method have fixed times")
        if interval_s < ONCE_S:
            env.lose(f"here every {ONCE_S:g} s", "CHAOS_INTERVAL")
        between_s = max(interval_s, ONCE_S)
        for count in range(max(1, math.ceil(total_s / between_s))):
            reading.add(at_s + count * between_s, ONCE_S, on, *faults)
    else:
        reading.add(at_s, total_s, on, *faults)
    return at_s + total_s + ramp_s


def _no_fault(name: str) -> str:
    kind = f"litmus.{name.replace('-', '_')}"
    if kind not in registry.fault_kinds():
        if not name.startswith(("pod-", "container-", "spring-boot-")):
            return f"hashidrill has no fault like {name or 'an experiment without a name'}"
        kind = "litmus.experiment"
    nearest = "cpu.throttle is the nearest; " if name.startswith("pod-cpu-hog") else ""
    return f"no fault on hosts is like {name}; {nearest}on an existing datacenter with Litmus, {kind} runs it"


def _on(env: Document, spec: Document, reading: Reading) -> str:
    """The selector that the engine means. Raises UnsupportedError."""
    application, selectors, whom = spec.part("appinfo"), spec.part("selectors"), ("TARGET_PODS", "NODE_LABEL")
    share = env.percent("PODS_AFFECTED_PERC")
    if reading.on:
        spec_lost = f"--on says {reading.on}"
        application.lose_rest(spec_lost)
        selectors.lose_rest(spec_lost)
        env.lose(spec_lost, "PODS_AFFECTED_PERC", "SEQUENCE", *whom)
        return reading.on
    env.refuse(SAY_ON, *whom)
    if share not in {0.0, _ALL}:
        raise UnsupportedError(
            f"{env.place('PODS_AFFECTED_PERC')}: no selector of ours is {share:g} % of them; {SAY_ON}"
        )
    mode = "all" if share == _ALL else "one"
    if env.text("SEQUENCE", "parallel") != "parallel" and mode == "all":
        raise UnsupportedError(f"{env.place('SEQUENCE')}: a step breaks all its targets at once; {SAY_ON}")
    source, key = application, "applabel"
    if workloads := selectors.parts("workloads"):
        application.lose_rest("spec.selectors decides")
        if len(workloads) > 1:
            raise UnsupportedError(f"{selectors.place('workloads')}: there are {len(workloads)}; {SAY_ON}")
        source, key = workloads[0], "labels"
    selectors.refuse(SAY_ON, "pods")
    source.refuse(SAY_ON, "names")
    source.lose("a datacenter of ours has no workloads and namespaces", "appns", "appkind", "kind", "namespace")
    labels = _labels(source, key, reading)
    on = by_labels(labels, mode)
    if not on:
        raise UnsupportedError(f"{source.place(key)}: {names_none(labels)}; {SAY_ON}")
    at_random(on, env.place("PODS_AFFECTED_PERC"), reading)
    return on


def _labels(source: Document, key: str, reading: Reading) -> Document:
    """`app=consul,component=server`. Raises UnsupportedError for another form."""
    found = dict[str, str]()
    for each in filter(None, (one.strip() for one in source.text(key).split(","))):
        name, equals, value = each.partition("=")
        value = value.removeprefix("=")
        if not equals or not name or name.endswith("!") or not value or name in found:
            raise UnsupportedError(f"{source.place(key)}: {shown(each)} is not one label and its value; {SAY_ON}")
        found[name] = value
    return Document(found, source.place(key), reading.all)


def _delete(env: Document, reading: Reading, on: str) -> Faults:
    forced = env.text("FORCE", "true")
    if forced not in {"true", "false"}:
        raise UnsupportedError(f"{env.place('FORCE')}: {shown(forced)} is neither true nor false")
    if forced == "false":
        env.lose("the pod has its own grace period; here an agent that does not stop has 15 s", "FORCE")
    return _restart("TERM" if forced == "false" else "KILL", env, reading)


def _kill(env: Document, reading: Reading, on: str) -> Faults:
    signal = env.text("SIGNAL", "SIGKILL")
    if signal not in _SIGNALS:
        raise UnsupportedError(f"{env.place('SIGNAL')}: {shown(signal)}: process.restart has {', '.join(_SIGNALS)}")
    return _restart(_SIGNALS[signal], env, reading)


def _restart(signal: str, env: Document, reading: Reading) -> Faults:
    reading.lose(f"{env.at}: it takes a pod or a container; here the agent starts again on its own data")
    return [("process.restart", {"signal": signal})]


def _side(env: Document, reading: Reading) -> str:
    """Who is on the other side. Raises UnsupportedError where it is an address."""
    env.lose("a host of ours has one network interface", "NETWORK_INTERFACE")
    keys = ("DESTINATION_IPS", "DESTINATION_HOSTS", "POD_SELECTOR", "NAMESPACE_SELECTOR")
    if reading.side:
        env.lose(f"--from says {reading.side}", *keys)
        return reading.side
    env.refuse("it hits traffic with these alone; say --from SIDE, like --from consul:servers", *keys)
    return "all"


def _latency(env: Document, reading: Reading, on: str) -> Faults:
    link = link_of(on, _side(env, reading))
    return delay_of(link, env.number("NETWORK_LATENCY", 2000) / 1000, env.number("JITTER") / 1000, reading, env.at)


def _loss(env: Document, reading: Reading, on: str) -> Faults:
    percent = env.percent("NETWORK_PACKET_LOSS_PERCENTAGE", _ALL)
    return loss_of(percent, "out", _side(env, reading), reading, env.place("NETWORK_PACKET_LOSS_PERCENTAGE"))


def _partition(env: Document, reading: Reading, on: str) -> Faults:
    if (types := env.text("POLICY_TYPES", "all")) != "all":
        raise UnsupportedError(
            f"{env.place('POLICY_TYPES')}: {shown(types)}: a NetworkPolicy lets answers pass, network.partition not"
        )
    env.refuse("a partition of ours is of all ports; network.block is of one", "PORTS")
    return [("network.partition", {"from": _side(env, reading)})]


def _bandwidth(env: Document, reading: Reading, on: str) -> Faults:
    link = link_of(on, _side(env, reading))
    env.lose("a limit of ours is a rate alone", "BURST", "LIMIT", "MIN_BURST", "PEAK_RATE")
    reading.lose(f"{env.at}: it limits all connections together; here each on port {link['port']}, both ways")
    return [
        (
            "network.bandwidth",
            {**link, "rate": rate_of(env.text("NETWORK_BANDWIDTH", "1mbit"), env.place("NETWORK_BANDWIDTH"))},
        )
    ]


def _fill(env: Document, reading: Reading, on: str) -> Faults:
    env.refuse("of ours, a disk is filled to a share of it", "EPHEMERAL_STORAGE_MEBIBYTES")
    share = env.percent("FILL_PERCENTAGE", 80.0)
    reading.lose(f"{env.place('FILL_PERCENTAGE')}: here {share:g} % of the disk of the agent's data, not of its pod's")
    leave = round(DISK_BYTES * (1 - share / 100))
    return [("disk.full", {"leave": str(Size(leave))} if leave else {})]


Reader = Callable[[Document, Reading, str], Faults]
_READERS: dict[str, Reader] = {
    "pod-delete": _delete, "container-kill": _kill, "pod-network-latency": _latency, "pod-network-loss": _loss,
    "pod-network-partition": _partition, "pod-network-rate-limit": _bandwidth, "disk-fill": _fill,
}  # fmt: skip
