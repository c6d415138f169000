"""Runs two sides of an experiment alternately: A B B A, until the result is certain, or rounds or time are used up.

Each round runs both sides once, one after the other, on the same machine, with the same loads at the same times. The
order alternates, so a machine that warms up, or gets busier, favours neither side. An INVALID run spoils its round,
which is counted but not compared: a run with a slow load generator, for example, shows nothing about its side. A round
is repeated if other work on the machine disturbed only one of its runs. If that work disturbed both runs alike, as on a
shared CI machine, the round counts.
"""

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from hashidrill.core.compare.comparison import Played, Round
from hashidrill.core.compare.figures import check_figures, figures
from hashidrill.core.compare.judged import Kept, KeptRound
from hashidrill.core.compare.measured import Figure, use_of
from hashidrill.core.errors import UsageError
from hashidrill.core.experiment.loader import variants_of
from hashidrill.core.experiment.model import Experiment
from hashidrill.core.experiment.resolved import ResolvedExperiment
from hashidrill.core.judging.validity import Validity
from hashidrill.core.protocols.events import Bus, Note
from hashidrill.core.recording.reader import Recording
from hashidrill.lab.runs.launch import RUNS_DIR, new_folder, prepare, run_experiment

AT_MOST = 8
SPOILT_AT_MOST = 3
"""The series ends once more rounds than this are spoilt by their own runs, and at least as many as the valid ones."""
PLAYED_AT_MOST = 3
"""Rounds that other work spoilt are repeated, until this many times the requested number of rounds were played."""
STARTS_S = 12.0
"""Seconds of a run besides its own phases: the datacenter's start and end, the final reads, the judging (2 cores)."""
UNSTEADY = "steady-state"

REVERT = "revert"
"""The outcome of a run that left a fault in force: nothing more is injected after it."""

Stopped = Literal["enough", "rounds", "budget", "spoilt", "interrupted", "stuck"]


@dataclass(frozen=True)
class Side:
    """One of the two sides: its name, and the experiment that runs there."""

    name: str
    resolved: ResolvedExperiment


@dataclass
class Series:
    """All rounds, and why the series ended (`stopped`; `why` puts it into words)."""

    figures: Sequence[Figure]
    played: list[Round] = field(default_factory=list)
    stopped: Stopped = "rounds"
    took_s: float = 0.0

    @property
    def rounds(self) -> list[Round]:
        """The rounds that count."""
        return [each for each in self.played if each.counts]

    @property
    def spoilt(self) -> list[Played]:
        """The runs that were INVALID."""
        return [run for each in self.played for run in each.runs if run.invalid]

    @property
    def stuck(self) -> Path | None:
        """The last run, if it left a fault in force."""
        last = self.played[-1].runs[-1] if self.played else None
        return last.recording if last and last.invalid and Recording(last.recording).outcome == REVERT else None

    def why(self) -> str:
        """A sentence for people: how the series ended, and what was left out."""
        count, total = len(self.rounds), len(self.played)
        rounds = f"{count} round{'' if count == 1 else 's'}"
        text = {
            "enough": f"sure after {rounds}",
            "rounds": f"all {total} rounds were played",
            "budget": f"the time was used up after {rounds}",
            "spoilt": f"too many rounds were INVALID: {total - count} of {total}",
            "interrupted": f"interrupted after {rounds}",
            "stuck": "a fault could not be reverted",
        }[self.stopped]
        if not self.spoilt:
            return text
        reasons = "; ".join(dict.fromkeys(f"{run.side}: {run.invalid}" for run in self.spoilt))
        counted = "1 INVALID run was" if len(self.spoilt) == 1 else f"{len(self.spoilt)} INVALID runs were"
        return f"{text}; {counted} left out ({reasons})"


def play(
    baseline: Side,
    candidate: Side,
    *,
    runs_dir: Path = RUNS_DIR,
    at_most: int = AT_MOST,
    budget_s: float | None = None,
    enough: Callable[[Series], bool] | None = None,
    events: Bus | None = None,
    seed: int = 0,
    run: Callable[..., Path] = run_experiment,
    now_s: Callable[[], float] = time.monotonic,
    into: Series | None = None,
) -> Series:
    """Plays rounds until `enough`, called after each, returns True, or until rounds or time are used up.

    It begins no round that would end after `budget_s`, judged by the longest round so far or, at first, by the
    experiments' lengths. If the first run of a round is INVALID, the second is not played. Ctrl-C reverts the faults
    in force, closes that recording, and ends the series as `interrupted`; earlier recordings stay. A run that leaves a
    fault in force ends the series as `stuck`. `into` continues an earlier series.

    Raises UsageError if both sides have the same name; errors of `run` pass through.
    """
    if baseline.name == candidate.name:
        raise UsageError(f"both sides are called {baseline.name}: name them differently")
    series = into if into is not None else Series(shared_figures(baseline, candidate))
    game = _Game(baseline, candidate, runs_dir, events, run, at_most, math.inf if budget_s is None else budget_s)
    began_s = now_s()
    longest_s = 0.0
    first = random.Random(seed).random() < 0.5
    try:
        while (stopped := game.over(series, now_s() - began_s, longest_s)) is None:
            started_s = now_s()
            series.played.append(game.round(len(series.played) + 1, first, series))
            if series.stuck is not None:
                stopped = "stuck"
                break
            if series.played[-1].counts:
                longest_s = max(longest_s, now_s() - started_s)
            if enough is not None and enough(series):
                stopped = "enough"
                break
        series.stopped = stopped
    except KeyboardInterrupt:
        series.stopped = "interrupted"
    series.took_s += now_s() - began_s
    return series


@dataclass(frozen=True)
class _Game:
    baseline: Side
    candidate: Side
    runs_dir: Path
    events: Bus | None
    run: Callable[..., Path]
    at_most: int
    budget_s: float

    def over(self, series: Series, took_s: float, longest_s: float) -> Stopped | None:
        count = len(series.rounds)
        if count >= self.at_most:
            return "rounds"
        spoilt = sum(any(run.invalid and not run.disturbed for run in each.runs) for each in series.played)
        if (spoilt > SPOILT_AT_MOST and spoilt >= count) or len(series.played) >= PLAYED_AT_MOST * self.at_most:
            return "spoilt"
        both_s = sum(expected_s(side.resolved.experiment) for side in (self.baseline, self.candidate))
        return "budget" if took_s + (longest_s or both_s) > self.budget_s else None

    def round(self, number: int, first: bool, series: Series) -> Round:
        """Runs both sides, but not the second if the first run is INVALID."""
        sides = (self.baseline, self.candidate) if first == (number % 2 == 1) else (self.candidate, self.baseline)
        runs: list[Played] = []
        for side in sides:
            if self.events is not None:
                self.events.publish(Note(text=f"round {number}: {side.name}"))
            path = self.run(side.resolved, runs_dir=self.runs_dir, events=self.events)
            before = [run for each in series.played for run in each.runs] + runs
            runs.append(played(side.name, path, series.figures, before))
            if runs[-1].invalid:
                break
        return Round(number, told_apart(runs), (self.baseline.name, self.candidate.name))


def told_apart(runs: Sequence[Played]) -> list[Played]:
    """The runs of a round; if other work disturbed only one of them, that one is INVALID."""
    uses = [run.use for run in runs if run.use is not None]
    if len(uses) < 2 or uses[0].alike(uses[1]):
        return list(runs)
    return [replace(run, invalid=run.invalid or (run.use.why if run.use else "")) for run in runs]


def shared_figures(baseline: Side, candidate: Side) -> list[Figure]:
    """The figures that both sides have."""
    theirs = {each.name for each in figures(candidate.resolved.experiment)}
    return [each for each in figures(baseline.resolved.experiment) if each.name in theirs]


def expected_s(experiment: Experiment) -> float:
    """Seconds of a run whose steady state holds from the start."""
    method = max((step.at + step.for_ for step in experiment.method), default=0.0)
    return float(STARTS_S + experiment.steady_state.for_ + method + experiment.recovery.for_)


def total_s(resolved: ResolvedExperiment) -> float:
    """Seconds of a run, or of all runs of an experiment with variants."""
    experiment = resolved.experiment
    return expected_s(experiment) * max(len(experiment.variants) * experiment.rounds, 1)


def played(side: str, path: Path, wanted: Sequence[Figure], before: Sequence[Played] = ()) -> Played:
    """A recorded run with its figures.

    `before`: earlier runs of both sides, which show how much of the machine a run uses.
    """
    recording = Recording(path)
    use = use_of(recording, [run.use for run in before if run.use is not None])
    invalid = next(iter(Validity.of(recording).invalid), "")
    invalid = use.why or invalid if invalid else ""
    # a side that used up the CPU itself counts unchanged; so does a starved side if the other side was starved too
    measured = {each.name: each.of(recording, though_busy=use.starved) for each in wanted}
    return Played(side, path, measured, invalid, recording.outcome == UNSTEADY, use)


def play_variants(
    resolved: ResolvedExperiment,
    *,
    runs_dir: Path = RUNS_DIR,
    events: Bus | None = None,
    run: Callable[..., Path] = run_experiment,
    say: Callable[[str], None] = lambda _: None,
    prepare: Callable[[ResolvedExperiment, Callable[[str], None]], object] = prepare,
) -> Path:
    """Runs every variant `rounds` times; returns the folder of the comparison. Blocks, in the main thread.

    The order alternates (A B, B A, ...), so that a machine that gets slower or warmer favours no side. The
    comparison is written after each run: Ctrl-C reverts the faults in force, and then this raises KeyboardInterrupt,
    whose `args[0]` is the folder. Raises the errors of `run_experiment`. Raises UsageError, before anything starts, if
    a figure to compare is missing. `say` receives the name of the next variant. `prepare` gets the binaries of each
    variant before the first run.
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
