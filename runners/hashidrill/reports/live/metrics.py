"""Metrics of runs for Prometheus, also during a run: in a file for the textfile collector, or on a loopback port."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hashidrill.core.errors import UsageError
from hashidrill.core.judging.verdict import Finding, Verdict
from hashidrill.core.protocols.events import Began, End, Event, Figures, Intent, Judged, Phase, Proof, Tick
from hashidrill.core.util.extras import extra

with extra("metrics", "--metrics"):
    from prometheus_client import CollectorRegistry, start_http_server, write_to_textfile
    from prometheus_client.metrics_core import GaugeMetricFamily

from collections.abc import Callable, Mapping

WRITE_EVERY_NS = 1_000_000_000
SUFFIX = ".prom"
"""The suffix of files that node_exporter's textfile collector reads."""
_MOST_PORT = 65_535
_HELD = {Finding.HELD: 1.0, Finding.FIXED: 1.0, Finding.BROKEN: 0.0, Finding.KNOWN: 0.0, Finding.INVALID: math.nan}


@dataclass(frozen=True)
class _Fault:
    """The fault's labels, and whether an observer sees it in force."""

    labels: Mapping[str, str]
    in_force: bool = False


@dataclass(frozen=True)
class _Run:
    """The facts about an experiment's latest run. It is replaced, never changed: a scrape may read it meanwhile."""

    phase: str = ""
    ended: bool = False
    loads: dict[str, Figures] = field(default_factory=dict)
    faults: dict[str, _Fault] = field(default_factory=dict)
    judged: Judged | None = None
    judged_s: float = 0.0


class RunMetrics:
    """Subscribes to the events of runs, one after the other, and collects for prometheus_client.

    Figures of loads and faults end with their run. A verdict stays until the next run of that experiment is judged.
    """

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}
        self._now = ""

    def event(self, event: Event) -> None:
        """Processes one event. Events before the run named its experiment are ignored."""
        if isinstance(event, Began):
            self._now = event.experiment
            last = self._runs.get(self._now, _Run())
            self._runs = {**self._runs, self._now: _Run(judged=last.judged, judged_s=last.judged_s)}
        elif self._now in self._runs:
            self._runs = {**self._runs, self._now: self._after(self._runs[self._now], event)}

    def _after(self, run: _Run, event: Event) -> _Run:
        change: dict[str, Any] = {}
        match event:
            case Phase(phase=phase):
                change = {"phase": phase}
            case Tick(loads=loads):
                change = {"loads": dict(loads)}
            case Intent(fault_id=fault_id, kind=kind, target=target):
                change = {
                    "faults": {**run.faults, fault_id: _Fault({"fault": fault_id, "kind": kind, "host": target.host})}
                }
            case Proof(fault_id=fault_id, event=found) if fault_id in run.faults and found != "fault.unproven":
                fault = replace(run.faults[fault_id], in_force=found in {"fault.proven", "fault.still"})
                change = {"faults": {**run.faults, fault_id: fault}}
            case End():
                change = {"ended": True}
            case Judged():
                change = {"judged": event, "judged_s": time.time()}
        return replace(run, **change)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Every metric that has a value now, as gauges in the base units of Prometheus."""
        family = _Families()
        for experiment, run in self._runs.items():
            if run.judged is not None:
                _verdict(family, experiment, run, run.judged)
            if run.ended:
                continue
            family.add(
                "hashidrill_run_phase",
                "1 for the current phase of a run in progress.",
                1,
                experiment=experiment,
                phase=run.phase,
            )
            for name, load in run.loads.items():
                _load(family, load, {"experiment": experiment, "load": name})
            for fault in run.faults.values():
                text = "Whether an observer has seen the fault in force, and not yet gone: 1 or 0."
                family.add("hashidrill_fault_in_force", text, fault.in_force, experiment=experiment, **fault.labels)
        yield from family.all()


def _verdict(family: _Families, experiment: str, run: _Run, judged: Judged) -> None:
    text = "1 for the verdict of the last run of the experiment, 0 for the others."
    for verdict in Verdict:
        family.add(
            "hashidrill_run_verdict", text, verdict == judged.verdict, experiment=experiment, verdict=verdict.value
        )
    text = "When the last run of the experiment was judged, in seconds since 1970."
    family.add("hashidrill_run_judged_timestamp_seconds", text, run.judged_s, experiment=experiment)
    text = "Whether the expectation held: 1 or 0, NaN if it could not be judged."
    for each in judged.expectations:
        held = _HELD[Finding(each.finding)]
        family.add("hashidrill_expectation_held", text, held, experiment=experiment, expectation=each.title)


def _load(family: _Families, load: Figures, labels: dict[str, str]) -> None:
    """A missing figure has no sample: an absent value is not 0."""
    text = "Latency of the load's last second, from the due time; +Inf if due operations were not served."
    for quantile, value in (("0.5", load.p50_s), ("0.99", load.p99_s)):
        if value is not None:
            family.add("hashidrill_load_latency_seconds", text, value, **labels, quantile=quantile)
    if load.rate is not None:
        family.add(
            "hashidrill_load_operations_per_second", "Operations that ended in the last second.", load.rate, **labels
        )
    if load.errors is not None:
        text = "Share of ended operations that were not acknowledged, 0 to 1."
        family.add("hashidrill_load_error_ratio", text, load.errors, **labels)
    family.add("hashidrill_load_waiting", "Operations that wait for longer than is usual.", load.waiting, **labels)


class _Families:
    def __init__(self) -> None:
        self._all: dict[str, GaugeMetricFamily] = {}

    def add(self, name: str, text: str, value: float, **labels: str) -> None:
        family = self._all.setdefault(name, GaugeMetricFamily(name, text, labels=list(labels)))
        family.add_metric(list(labels.values()), float(value))

    def all(self) -> Iterator[GaugeMetricFamily]:
        yield from self._all.values()


@contextlib.contextmanager
def exposed(where: str) -> Iterator[Callable[[Event], None]]:
    """The subscriber whose metrics are at `where`, a port or a file, during the block; a file stays afterwards.

    Raises UsageError if the port or the file cannot be used.
    """
    metrics = RunMetrics()
    registry = CollectorRegistry()
    registry.register(metrics)
    if where.isdecimal():
        with _served(int(where), registry):
            yield metrics.event
    else:
        yield _File(_checked(where), registry, metrics).event


@contextlib.contextmanager
def _served(port: int, registry: CollectorRegistry) -> Iterator[None]:
    if not 0 < port <= _MOST_PORT:
        raise UsageError(f"--metrics {port}: a port is a number from 1 to {_MOST_PORT}")
    try:
        server, thread = start_http_server(port, "127.0.0.1", registry)
    except OSError as error:
        raise UsageError(f"--metrics {port}: 127.0.0.1:{port} cannot be used: {error.strerror}; name another") from None
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _checked(where: str) -> Path:
    path = Path(where)
    if path.suffix != SUFFIX:
        raise UsageError(f"--metrics {where}: name a port of the loopback, or a file that ends in {SUFFIX}")
    if not path.parent.is_dir():
        raise UsageError(f"--metrics {where}: there is no folder {path.parent}")
    return path


class _File:
    """Is replaced whole, once a second and with the verdict. `event` raises OSError, which the bus reports."""

    def __init__(self, path: Path, registry: CollectorRegistry, metrics: RunMetrics) -> None:
        self._path, self._registry, self._metrics = path, registry, metrics
        self._next_ns = 0
        try:
            self._write()
        except OSError as error:
            raise UsageError(f"--metrics {path}: the file cannot be written: {error.strerror}") from None

    def event(self, event: Event) -> None:
        self._metrics.event(event)
        if isinstance(event, Began):
            self._next_ns = 0
        if isinstance(event, (End, Judged)) or (isinstance(event, Tick) and event.t_ns >= self._next_ns):
            self._next_ns = event.t_ns + WRITE_EVERY_NS
            self._write()

    def _write(self) -> None:
        write_to_textfile(str(self._path), self._registry)
