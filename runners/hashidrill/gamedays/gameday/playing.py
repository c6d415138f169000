"""Plays one run of a game day for real, judges it, and reads from its recording what people had predicted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from hashidrill.core.engine.run import EXIT_CODES
from hashidrill.core.errors import RecordingError
from hashidrill.core.judging.verdict import RunVerdict
from hashidrill.core.protocols.events import Bus, Subscriber
from hashidrill.core.recording.reader import Recording
from hashidrill.core.recording.seal import damage
from hashidrill.gamedays.gameday import measures
from hashidrill.gamedays.gameday.journal import Result
from hashidrill.gamedays.gameday.plan import Plan, PlannedRun
from hashidrill.lab.runs.launch import run_experiment
from hashidrill.reports.figures import LoadFigures, load_figures
from hashidrill.reports.html import PARTS
from hashidrill.reports.text import human_duration, human_number, human_rate, human_share
from hashidrill.reports.write import judge_and_report, judged

if TYPE_CHECKING:
    from hashidrill.core.experiment.resolved import ResolvedExperiment
    from hashidrill.lab.runs.heal import Healed

Runner = Callable[..., Path]


class Standing(Protocol):
    """A datacenter that stands, which a day is played against (hashidrill.staging.runs.launch_attached.Attached)."""

    def over(self, path: Path) -> ResolvedExperiment:
        """The experiment in a file, over it. Raises ExperimentError, AttachError."""

    def allowed(self, resolved: ResolvedExperiment) -> None:
        """Raises InterlockError where it may not be run."""

    def run(self, resolved: ResolvedExperiment, *, runs_dir: Path, events: Bus) -> Path:
        """As `run_experiment`."""

    async def heal(self, runs: Sequence[Path], tell: Callable[[str], None]) -> list[Healed | None]:
        """Reverts what these runs may have left in it."""


_ENDED = frozenset(outcome for outcome, code in EXIT_CODES.items() if code in {0, 3})
"""How runs end that came to their own end."""


def play(
    plan: Plan,
    run: PlannedRun,
    folder: Path,
    *,
    view: Subscriber,
    runner: Runner = run_experiment,
    also: Sequence[Subscriber] = (),
) -> tuple[Result, Recording, RunVerdict]:
    """What came of it, as the journal keeps it; the recording, which `runner` makes; and its verdict.

    `view` and each of `also` see the events of the run, and what it was judged to be.

    Raises KeyboardInterrupt with the recording for a run that was interrupted, and what `runner` raises.
    """
    recording, verdict, report = play_alone(run.resolved, folder, view=view, runner=runner, also=also)
    return result_of(plan, run, recording, verdict, report), recording, verdict


def play_alone(
    resolved: ResolvedExperiment,
    folder: Path,
    *,
    view: Subscriber,
    runner: Runner = run_experiment,
    also: Sequence[Subscriber] = (),
) -> tuple[Recording, RunVerdict, Path | None]:
    """As `play`, of an experiment by itself: the recording, its verdict, and the report."""
    events = Bus(view, *also)
    recording = Recording(runner(resolved, runs_dir=folder, events=events))
    verdict, report = judge_and_report(recording, near_to=resolved.path)
    events.publish(judged(recording, verdict, report))
    return recording, verdict, report


def judged_again(plan: Plan, run: PlannedRun, path: Path) -> tuple[Result, Recording, RunVerdict] | None:
    """As `play`, of a run that had ended, with all that belongs to its recording, before anybody judged it.

    None for one that was interrupted itself, died, or left a fault: it proves nothing.
    """
    recording = Recording(path)
    if recording.outcome not in _ENDED or damage(recording):
        return None
    verdict, report = judge_and_report(recording, near_to=run.resolved.path)
    return result_of(plan, run, recording, verdict, report), recording, verdict


def result_of(plan: Plan, run: PlannedRun, recording: Recording, verdict: RunVerdict, report: Path | None) -> Result:
    """The same for a recording that is there."""
    day = plan.day
    questions = {name: day.questions[name] for name in run.questions}
    alerts = {name: day.alerts[name] for name in run.alerts}
    measured = measures.answers(recording, verdict, questions, alerts)
    return {
        "verdict": verdict.verdict.value,
        "outcome": recording.outcome,
        "recording": str(recording.path),
        "report": report is not None,
        "reasons": [*verdict.invalid, *verdict.doubts, *verdict.notes],
        "expectations": [
            {"title": each.title, "finding": each.finding.value, "text": verdict.text_of(each)}
            for each in verdict.judgements
        ],
        "measured": {name: each.to_data() for name, each in measured.items()},
        "figures": _figures(recording),
        "passed": [] if verdict.invalid else measures.passed(recording, day.abort.measured),
    }


FIGURES = ("load", "part", "operations", "rate", "p50", "p99", "errors")


def _figures(recording: Recording) -> list[list[str]]:
    """Rows below FIGURES, as people read them; none of a recording that does not read, whose verdict says so."""
    try:
        return [_row(each) for each in load_figures(recording)]
    except RecordingError:
        return []


def _row(each: LoadFigures) -> list[str]:
    return [
        each.load,
        PARTS[each.part],
        human_number(each.operations),
        human_rate(each.rate_per_s),
        human_duration(each.p50_s),
        human_duration(each.p99_s),
        human_share(each.errors),
    ]
