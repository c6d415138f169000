"""Comparisons of planted recordings: two variants of one experiment, and what each of their runs is to show."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hashidrill.core.compare.judged import Kept, KeptRound
from hashidrill.core.experiment.resolved import ResolvedExperiment
from hashidrill.testing.recordings import RecordingBuilder, resolved_data

TEXT = """\
apiVersion: hashidrill/v1
kind: Experiment
metadata: {name: planted, title: Old and new, why: To see what is played}
datacenter: {consul: {servers: 3, clients: 1}}
load:
  kv-writes: {kind: consul.kv.write, rate: 25/s}
steady_state: {for: 5s, require: ["kv-writes.errors < 1%"]}
method:
  - {fault: disk.latency, on: "host:consul-1", with: {op: fsync, delay: 20ms}, for: 20s}
recovery: {for: 20s}
expect:
  - no_acknowledged_write_lost: {load: kv-writes}
variants:
  old:
  new: {datacenter: {consul: {config: {use_streaming_backend: true}}}}
rounds: 3
compare:
  - no_worse_than: {candidate: new, baseline: old, figure: kv-writes.latency.p50}
"""
"""The experiment whose variants these are."""
RATE = 25
OVERLAYS: dict[str, dict[str, Any]] = {
    "old": {},
    "new": {"datacenter": {"consul": {"config": {"use_streaming_backend": True}}}},
}
NO_WORSE = {"no_worse_than": {"candidate": "new", "baseline": "old", "figure": "kv-writes.latency.p50"}}
BETTER = {"better_than": {"candidate": "new", "baseline": "old", "figure": "kv-writes.latency.p50", "by": "50%"}}


def planted(
    path: Path,
    variant: str,
    *,
    p50_s: float = 0.02,
    seed: int = 0,
    took_effect: bool = True,
    change: Callable[[RecordingBuilder], Any] = lambda built: built,
) -> Path:
    """A run of a variant, 10 ms before the fault and `p50_s` under it, which scatters by 20 %."""
    built = RecordingBuilder(path).variant(variant, **OVERLAYS[variant])
    streams = {"use_streaming_backend": True} if variant == "new" and took_effect else {}
    slow = lambda at: p50_s * (1 + 0.2 * math.sin(7.1 * at + seed))  # noqa: E731 - it is the fault's latency over time
    (
        built.fault("disk.latency", "consul-1", at=10, until=30)
        .load("kv-writes", rate=RATE, start=4, end=50, latency=lambda at: slow(at) if 10 <= at < 30 else 0.01)
        .final_reads("kv-writes")
        .run_info(config={"consul-1": {"server": True, **streams}})
    )
    change(built)
    return built.build().path


def compared(
    path: Path,
    runs: Sequence[Mapping[str, Path]],
    *,
    compare: Sequence[Mapping[str, Any]] = (NO_WORSE,),
    change: Callable[[RecordingBuilder], Any] = lambda built: built,
) -> Kept:
    """The comparison of these runs, each round a mapping of variant to recording, written into a folder of its own."""

    def as_planted(built: RecordingBuilder) -> RecordingBuilder:
        return built.fault("disk.latency", "consul-1", at=10, until=30).load("kv-writes", rate=RATE, end=4)

    plain = as_planted(RecordingBuilder(path / "x")).experiment()
    whole = ResolvedExperiment.from_data(resolved_data({**plain, "variants": OVERLAYS, "compare": list(compare)}))
    variants = {}
    for name, overlay in OVERLAYS.items():
        built = as_planted(RecordingBuilder(path / "x").variant(name, **overlay))
        change(built)
        variants[name] = ResolvedExperiment.from_data(resolved_data(built.experiment()))
    folder = path / "compared"
    folder.mkdir()
    kept = Kept(folder, whole, variants, [KeptRound(tuple(each), dict(each)) for each in runs])
    kept.write()
    return kept


def rounds_of(path: Path, p50s: Sequence[tuple[float, float]], **kwargs: Any) -> list[dict[str, Path]]:
    """One round for each (old, new) p50 under fault, in seconds."""
    return [
        {
            "old": planted(path / f"old-{number}", "old", p50_s=old, seed=number, **kwargs),
            "new": planted(path / f"new-{number}", "new", p50_s=new, seed=number + 50, **kwargs),
        }
        for number, (old, new) in enumerate(p50s)
    ]
