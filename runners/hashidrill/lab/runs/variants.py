"""Plays the variants of an experiment: each once in every round, in turn, and the other way round in every other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hashidrill.core.compare.figures import check_figures
from hashidrill.core.compare.kept import Kept, KeptRound
from hashidrill.core.experiment.variants import variants_of
from hashidrill.core.protocols.events import Bus
from hashidrill.lab.runs.launch import RUNS_DIR, new_folder, prepare, run_experiment

if TYPE_CHECKING:
    from collections.abc import Callable

    from hashidrill.core.experiment.resolved import ResolvedExperiment


def play_variants(
    resolved: ResolvedExperiment,
    *,
    runs_dir: Path = RUNS_DIR,
    events: Bus | None = None,
    run: Callable[..., Path] = run_experiment,
    say: Callable[[str], None] = lambda _: None,
    prepare: Callable[[ResolvedExperiment, Callable[[str], None]], object] = prepare,
) -> Path:
    """Run every variant `rounds` times; returns the folder of the comparison. Blocks, in the main thread.

    The order alternates (A B, B A, ...), so that a machine that gets slower or warmer favours no side. What was played
    is written down after each run: Ctrl-C reverts what is in force, and then this raises KeyboardInterrupt, whose
    `args[0]` is the folder. Raises as `run_experiment` does, and UsageError before anything starts for a comparison of
    a figure that there is not. `say` is told which variant comes next. `prepare` gets what a variant needs: the
    binaries of all of them are there before the first one runs.
    """
    events = events or Bus()
    variants = variants_of(resolved)
    check_figures(resolved, variants)
    for one in variants.values():
        prepare(one, say)
    names = list(variants)
    total = resolved.experiment.rounds
    folder = new_folder(runs_dir, f"{resolved.name}-compared")
    orders = [tuple(names if number % 2 == 0 else reversed(names)) for number in range(total)]
    kept = Kept(folder, resolved, variants, [KeptRound(order) for order in orders])
    kept.write()
    for number, each in enumerate(kept.rounds, start=1):
        for name in each.order:
            say(f"variant {name}" + (f", round {number} of {total}" if total > 1 else ""))
            try:
                each.recordings[name] = run(variants[name], runs_dir=runs_dir, events=events)
            except KeyboardInterrupt as stop:
                if stop.args:
                    each.recordings[name] = Path(stop.args[0])
                    kept.write()
                raise KeyboardInterrupt(folder) from None
            kept.write()
    return folder
