"""Reads a ChaosEngine of Litmus: its experiments, one after the other, with what their environment says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hashidrill.backends.interchange.from_chaos_mesh import Faults, rate_of
from hashidrill.backends.interchange.steps import ONCE_S, Reading, UnsupportedError, mapping, only, percent, seconds
from hashidrill.backends.interchange.whom import PORTS, on_of
from hashidrill.units import shown

_ENGINE = {
    "appinfo", "annotationCheck", "engineState", "auxiliaryAppInfo", "chaosServiceAccount", "components", "experiments",
    "jobCleanUpPolicy", "monitoring", "defaultHealthCheck", "selectors", "terminationGracePeriodSeconds",
    "schedule", "verbosity",
}  # fmt: skip
"""All that a ChaosEngine has. Its definition keeps anything, so a typo is taken without a word: here it is an error."""
_EXPERIMENT, _SPEC = {"name", "spec"}, {"components", "probe", "rank"}
_DEFAULT_S, _DEFAULT_INTERVAL_S = 60.0, 10.0
_ALL_PERCENT = 100.0
Env = Mapping[str, str]


def read(spec: Mapping[str, Any], reading: Reading) -> None:
    """Raises UnsupportedError that names what an experiment cannot say, and what no ChaosEngine has."""
    only(spec, _ENGINE, "spec")
    if str(spec.get("engineState", "active")) != "active":
        raise UnsupportedError("spec.engineState: it is stopped, and injects nothing")
    experiments = spec.get("experiments") or ()
    if not experiments:
        raise UnsupportedError("spec.experiments: there are none")
    at_s = 0.0
    for number, each in enumerate(experiments):
        at = f"spec.experiments[{number}]"
        one = mapping(each, at)
        only(one, _EXPERIMENT, at)
        inner = mapping(one.get("spec") or {}, f"{at}.spec")
        only(inner, _SPEC, f"{at}.spec")
        if inner.get("probe"):
            reading.lose(f"{at}.spec.probe: say in `expect` and `guardrails` what must hold")
        else:
            reading.lose(f"{at}: it has no probe, so Litmus says Pass whatever happens; here `expect` decides")
        at_s = _experiment(str(one.get("name", "")), _env(inner, at), spec, reading, at=at, at_s=at_s)


def _env(inner: Mapping[str, Any], at: str) -> Env:
    """Raises UnsupportedError for a value that comes from elsewhere."""
    found: dict[str, str] = {}
    for one in mapping(inner.get("components") or {}, f"{at}.components").get("env") or ():
        if "value" not in one:
            raise UnsupportedError(f"{at}.components.env.{one.get('name')}: its value is not in the file")
        found[str(one.get("name"))] = str(one["value"]).strip()
    return found


def _experiment(
    name: str, env: Env, spec: Mapping[str, Any], reading: Reading, *, at: str, at_s: float
) -> float:  # fmt: skip
    reader = _READERS.get(name)
    if reader is None:
        raise UnsupportedError(f"{at}.name: {name or 'an experiment without a name'} has no fault of ours")
    share = env.get("PODS_AFFECTED_PERC", "")
    mode = "all" if share and float(percent(share, f"{at}.PODS_AFFECTED_PERC").rstrip("%")) == _ALL_PERCENT else "one"
    if share and mode == "one" and float(share):
        reading.lose(f"{at}.PODS_AFFECTED_PERC: {share}% of them; here --on decides how many")
    on = on_of({"mode": mode, "selector": {"labelSelectors": _labels(spec)}}, reading, at)
    total_s = _number(env, "TOTAL_CHAOS_DURATION", _DEFAULT_S, at)
    faults, once = reader(env, reading, at, on)
    if not once:
        reading.add(at_s, total_s, on, *faults)
        return at_s + total_s
    interval_s = _number(env, "CHAOS_INTERVAL", _DEFAULT_INTERVAL_S, at)
    for count in range(max(1, int(total_s // max(interval_s, ONCE_S)))):
        reading.add(at_s + count * max(interval_s, ONCE_S), ONCE_S, on, *faults)
    return at_s + total_s


def _labels(spec: Mapping[str, Any]) -> dict[str, str]:
    """Of the application: `app=consul,component=server`."""
    written = str(mapping(spec.get("appinfo") or {}, "spec.appinfo").get("applabel") or "")
    return dict(one.strip().split("=", 1) for one in written.split(",") if "=" in one)


def _number(env: Env, name: str, default: float, at: str) -> float:
    text = env.get(name, "")
    try:
        return float(text) if text else default
    except ValueError:
        raise UnsupportedError(f"{at}.{name}: {shown(text)} is not a number") from None


def _restart(env: Env, reading: Reading, at: str, on: str) -> tuple[Faults, bool]:
    reading.lose(f"{at}: it takes a pod or a container; here the agent starts again on its own data")
    return [("process.restart", {"signal": "KILL"})], True


def _latency(env: Env, reading: Reading, at: str, on: str) -> tuple[Faults, bool]:
    port = PORTS.get(on.partition(":")[0], PORTS["consul"])
    reading.lose(f"{at}: it delays everything; here only what comes to port {port}, and its answers")
    found: dict[str, Any] = {"port": port, "delay": seconds(_number(env, "NETWORK_LATENCY", 2000, at) / 1000)}
    jitter_s = _number(env, "JITTER", 0, at) / 1000
    return [("network.latency", {**found, "jitter": seconds(jitter_s)} if jitter_s else found)], False


def _loss(env: Env, reading: Reading, at: str, on: str) -> tuple[Faults, bool]:
    share = _number(env, "NETWORK_PACKET_LOSS_PERCENTAGE", _ALL_PERCENT, at)
    if share >= _ALL_PERCENT:
        return [("network.partition", {"from": "all", "direction": "out"})], False
    return [("network.loss", {"percent": f"{share:g}%"})], False


def _partition(env: Env, reading: Reading, at: str, on: str) -> tuple[Faults, bool]:
    return [("network.partition", {"from": "all"})], False


def _bandwidth(env: Env, reading: Reading, at: str, on: str) -> tuple[Faults, bool]:
    port = PORTS.get(on.partition(":")[0], PORTS["consul"])
    rate = rate_of(env.get("NETWORK_BANDWIDTH", "1mbit"), f"{at}.NETWORK_BANDWIDTH")
    reading.lose(f"{at}: it limits all connections together; here each to port {port} by itself")
    return [("network.bandwidth", {"port": port, "rate": f"{rate / 1000:g}kB/s"})], False


def _fill(env: Env, reading: Reading, at: str, on: str) -> tuple[Faults, bool]:
    reading.lose(f"{at}.FILL_PERCENTAGE: here the disk is filled to its end")
    return [("disk.full", {})], False


Reader = Callable[[Env, Reading, str, str], tuple[Faults, bool]]
_READERS: dict[str, Reader] = {
    "pod-delete": _restart, "container-kill": _restart, "pod-network-latency": _latency, "pod-network-loss": _loss,
    "pod-network-partition": _partition, "pod-network-rate-limit": _bandwidth, "disk-fill": _fill,
}  # fmt: skip
