"""Runs of a gate without a datacenter: each leaves a planted recording, whose latency its configuration decides."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hashidrill.core.errors import OTHER_WORK
from hashidrill.core.experiment.resolved import ResolvedExperiment
from hashidrill.core.judging.judge import judge
from hashidrill.core.recording.reader import Recording
from hashidrill.lab.runs.rounds import play
from hashidrill.rollouts.gate.configuration import Configuration, configuration, sources_of
from hashidrill.rollouts.gate.differences import Differences, differences
from hashidrill.rollouts.gate.playing import Means
from hashidrill.rollouts.gate.verdict import Audited, Ran, Result
from hashidrill.testing.recordings import RecordingBuilder

A_RUN_S = 40.0
NORMAL_S, UNDER_FAULT_S = 0.01, 0.4


def configured(folder: Path, text: str, *, product: str = "consul", name: str = "a") -> Configuration:
    """What an agent makes of one file."""
    (folder / f"{name}.hcl").write_text(text)
    return configuration(product, sources_of([folder / f"{name}.hcl"], top=folder))


def differing(folder: Path, *texts: str, product: str = "consul") -> Differences:
    """What differs between the files `before` and `after`; nothing, without any text."""
    names = ("before", "after")
    sides = [configured(folder, text, product=product, name=name) for name, text in zip(names, texts, strict=False)]
    return differences(*(sides or [configuration(product, [])] * 2))


def result_of(found: Differences, *ran: Ran, versions: tuple[str, str] = ("", ""), **more: Any) -> Result:
    """Of a gate that ran these."""
    return Result(("before.hcl", "after.hcl"), versions, found, Audited(), ran=ran, **more)


class PlantedRuns:
    """Plays runs by writing what they would have left.

    `slower(configuration)` is the factor on latencies under fault, `every_day(configuration)` on all others,
    `back_s(configuration)` how long after the fault they stay high, `ends(side)` how that run ends (`never-ready`: it
    gave up waiting for its agents), `reports(configuration)` what its agent reports of itself, `plant(side,
    configuration, run)` plants what else it left. Each takes A_RUN_S of a virtual clock.
    """

    def __init__(self, folder: Path, *, noise: float = 0.03) -> None:
        self.folder, self.noise = folder, noise
        self.slower: Callable[[dict[str, Any]], float] = lambda _config: 1.0
        self.every_day: Callable[[dict[str, Any]], float] = lambda _config: 1.0
        self.back_s: Callable[[dict[str, Any]], float] = lambda _config: 1.0
        self.ends: Callable[[str], str] = lambda _side: "complete"
        self.plant: Callable[[str, dict[str, Any], RecordingBuilder], object] = lambda _side, _config, _run: None
        self.reports: Callable[[dict[str, Any]], dict[str, Any]] | None = None
        self.interrupt_at = -1
        self.played: list[tuple[str, dict[str, Any]]] = []
        self.now_s = 0.0
        self.said: list[str] = []
        self._draw = np.random.default_rng(7)

    def run(self, resolved: ResolvedExperiment, *, runs_dir: Path, events: object) -> Path:
        number, side = len(self.played), resolved.variant
        consul = resolved.data["datacenter"]["consul"]
        config = {**consul.get("config", {}), **consul.get("server_config", {}), "version": consul.get("version")}
        self.played.append((side, config))
        self.now_s += A_RUN_S
        if number == self.interrupt_at:
            raise KeyboardInterrupt
        under_fault_s = UNDER_FAULT_S * self.slower(config) * math.exp(self._draw.normal(0, self.noise))
        until = 30 + self.back_s(config)
        normal_s = NORMAL_S * self.every_day(config)
        run = RecordingBuilder(self.folder / f"run-{number}", name=resolved.name)
        run.variant(side, datacenter={"consul": consul})
        run.run_info(config={"consul-1": config}, binaries={"consul": {"sha256": f"of {config['version']}"}})
        if self.reports is not None:
            run.run_info(
                hosts=[{"name": "consul-1", "role": "server", "agents": {"consul": "server"}}],
                reported={"consul": {"consul-1": self.reports(config)}},
            )
        run.fault("disk.latency", at=10, until=30)
        for load in {"kv-writes", "kv-reads"} & set(resolved.experiment.load):
            run.load(load, rate=20, latency=lambda t: under_fault_s if 10 <= t < until else normal_s)
        run.expect("writes_recover", load="kv-writes", p50_below="300ms", within="10s")
        run.healthy().final_reads("kv-writes")
        self.plant(side, config, run)
        outcome = self.ends(side)
        if outcome == "never-ready":
            run.phase("start", at=0).phase("ready", at=2).end("crashed", error="no leader is known", at=62)
        elif outcome == "starved":
            run.end("steady-state", error=f"it did not hold; {OTHER_WORK} uses 1.0 of its CPUs")
        elif outcome != "complete":
            run.end(outcome, error="it was planted")
        return run.build().path

    def means(self) -> Means:
        return Means(
            say=self.said.append,
            play=partial(play, run=self.run, now_s=lambda: self.now_s),
            judge=lambda path: judge(Recording(path)),
            priors=lambda _experiment: {},
            now_s=lambda: self.now_s,
        )
