"""Checks a machine before a game day, plays its runs and comparisons, and judges them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from hashidrill.core.compare.judged import read_comparison
from hashidrill.core.engine.requirements import available_bytes
from hashidrill.core.engine.run import EXIT_CODES
from hashidrill.core.errors import HashidrillError, RecordingError
from hashidrill.core.experiment.loader import variants_of
from hashidrill.core.judging.verdict import RunVerdict, Verdict
from hashidrill.core.protocols.events import Bus, Subscriber
from hashidrill.core.recording.reader import Recording
from hashidrill.core.recording.seal import damage
from hashidrill.core.units import Size, counted
from hashidrill.core.util.cores import usable_cores
from hashidrill.gamedays.gameday.answers import Measured, answers_of, passed_limits
from hashidrill.gamedays.gameday.conduct import Looked
from hashidrill.gamedays.gameday.journal import Result
from hashidrill.gamedays.gameday.plan import MACHINE, GoCheck, Plan, PlannedRun
from hashidrill.lab.provision import machine
from hashidrill.lab.runs.launch import check_machine, new_folder, prepare, run_experiment
from hashidrill.lab.runs.rounds import play_variants
from hashidrill.reports.compared import judge_and_report_comparison
from hashidrill.reports.figures import figure_rows
from hashidrill.reports.text import human_bytes, human_number
from hashidrill.reports.write import judge_and_report, judged

if TYPE_CHECKING:
    from hashidrill.core.compare.judged import ComparisonVerdict
    from hashidrill.core.experiment.resolved import ResolvedExperiment
    from hashidrill.lab.runs.heal import Healed


Say = Callable[[str], None]


def look_at(plan: Plan, check: GoCheck, folder: Path, say: Say, there: Standing | None = None) -> Looked:
    """The result of a check on this machine. `folder` is where the recordings will be; `say` is called before slow
    steps.

    In an attached datacenter, its interlocks are checked instead of this machine.
    """
    if check.condition is not None:
        value = machine_figures(folder)[check.condition.what]
        is_size = MACHINE[check.condition.what] is Size
        shown = human_bytes(value) if is_size else human_number(round(value, 2))
        return check.condition.holds(value, unknown=False), f"it is {shown}"
    if check.check == "doctor":
        return _doctor()
    for run in plan.runs:
        try:
            if there is not None:
                there.allowed(run.resolved)
                continue
            for resolved in variants_of(run.resolved).values() if run.spec.compare else [run.resolved]:
                check_machine(resolved)
                prepare(resolved, say)
        except HashidrillError as error:
            return False, f"{run.name}: {' '.join(str(error).split())}"
    fits = "with all that they need" if there is None else "which the interlocks allow"
    return True, f"{counted(len(plan.runs), 'experiment')}, {fits}"


def machine_figures(folder: Path) -> Mapping[str, float]:
    """The machine's figures now, by the names in MACHINE: available memory and free disk in bytes, usable CPUs, and
    the one-minute load per CPU.
    """
    return {
        "memory_available": float(available_bytes()),
        "disk_free": float(shutil.disk_usage(folder).free),
        "cpus": usable_cores(),
        "load": os.getloadavg()[0] / (os.cpu_count() or 1),
    }


def _doctor() -> Looked:
    found = machine.detect()
    lacking = [each for each in found if each.required and not each.ok]
    if lacking:
        said = "; ".join(f"{each.name} is missing: {each.fix or each.detail}" for each in lacking)
        return False, f"{said}; see `hashidrill doctor`"
    return True, "`hashidrill doctor` finds nothing missing that a run needs"


Runner = Callable[..., Path]


class Standing(Protocol):
    """An attached datacenter for a game day (hashidrill.staging.runs.launch_attached.Attached)."""

    def over(self, path: Path) -> ResolvedExperiment:
        """Resolves an experiment's file for this datacenter. Raises ExperimentError or AttachError."""

    def allowed(self, resolved: ResolvedExperiment) -> None:
        """Raises InterlockError if the experiment may not run."""

    def run(self, resolved: ResolvedExperiment, *, runs_dir: Path, events: Bus) -> Path:
        """Like `run_experiment`."""

    async def heal(self, runs: Sequence[Path], tell: Callable[[str], None]) -> list[Healed | None]:
        """Reverts what these runs may have left in the datacenter."""


_ENDED = frozenset(outcome for outcome, code in EXIT_CODES.items() if code in {0, 3})
"""Outcomes of runs that ended by themselves."""


def play(
    plan: Plan,
    run: PlannedRun,
    folder: Path,
    *,
    view: Subscriber,
    runner: Runner = run_experiment,
    also: Sequence[Subscriber] = (),
) -> tuple[Result, Recording, RunVerdict]:
    """Plays a run with `runner`. Returns the result for the journal, the recording, and its verdict.

    `view` and each of `also` receive the events of the run, and its judgement. Raises KeyboardInterrupt with the
    recording if the run is interrupted, and what `runner` raises.
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
    """Plays a single experiment. Returns the recording, its verdict, and the report's path."""
    events = Bus(view, *also)
    recording = Recording(runner(resolved, runs_dir=folder, events=events))
    verdict, report = judge_and_report(recording, near_to=resolved.path)
    events.publish(judged(recording, verdict, report))
    return recording, verdict, report


def judged_again(plan: Plan, run: PlannedRun, path: Path) -> tuple[Result, Recording, RunVerdict] | None:
    """Like `play`, for a run that ended and was not judged yet.

    None for a run that was interrupted, died, or left a fault: it proves nothing.
    """
    recording = Recording(path)
    if recording.outcome not in _ENDED or damage(recording):
        return None
    verdict, report = judge_and_report(recording, near_to=run.resolved.path)
    return result_of(plan, run, recording, verdict, report), recording, verdict


def result_of(plan: Plan, run: PlannedRun, recording: Recording, verdict: RunVerdict, report: Path | None) -> Result:
    """The result for the journal, from an existing recording."""
    day = plan.day
    questions = {name: day.questions[name] for name in run.questions}
    alerts = {name: day.alerts[name] for name in run.alerts}
    measured = answers_of(recording, verdict, questions, alerts)
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
        "passed": [] if verdict.invalid else passed_limits(recording, day.abort.measured),
    }


FIGURES = ("load", "part", "operations", "rate", "p50", "p99", "errors")


def _figures(recording: Recording) -> list[list[str]]:
    """Rows for the table FIGURES; none if the recording is unreadable, because its verdict says so."""
    try:
        return [[*row[:6], row[7]] for row in figure_rows(recording)]  # report.json has no column for the longest
    except RecordingError:
        return []


PlayOne = Callable[["ResolvedExperiment", Path], tuple[Recording, RunVerdict]]
"""Plays one variant, records it below the folder, and judges it. Raises KeyboardInterrupt like `play`."""
Prepare = Callable[["ResolvedExperiment", Callable[[str], None]], object]


def compare(
    plan: Plan, run: PlannedRun, folder: Path, *, one: PlayOne, say: Callable[[str], None], prepare: Prepare = prepare
) -> Result:
    """Plays a comparison and returns the result for the journal. All recordings are in one folder below `folder`.

    Raises KeyboardInterrupt with the folder of the comparison, and what `one` and `prepare` raise.
    """
    known: dict[Path, RunVerdict] = {}

    def play(resolved: ResolvedExperiment, *, runs_dir: Path, events: Bus) -> Path:
        del events  # each run has its own live view
        recording, known_verdict = one(resolved, runs_dir)
        known[recording.path] = known_verdict
        return recording.path

    kept = play_variants(run.resolved, runs_dir=new_folder(folder, run.name), run=play, say=say, prepare=prepare)
    verdict, report = judge_and_report_comparison(read_comparison(kept), near_to=run.resolved.path, known=known)
    return _result(plan, run, kept, verdict, report)


def _result(plan: Plan, run: PlannedRun, kept: Path, verdict: ComparisonVerdict, report: Path | None) -> Result:
    said = verdict.verdict.value
    counting = [each.recording for each in verdict.runs if each.counts]
    stuck = any(each.recording.outcome == "revert" for each in verdict.runs)
    return {
        "verdict": said,
        "outcome": "revert" if stuck else verdict.outcome,
        "recording": str(kept),
        "report": report is not None,
        "reasons": list(_reasons(verdict)),
        "expectations": list(_expectations(verdict)),
        "measured": {name: Measured(said, said).to_data() for name in run.questions},
        "figures": [],
        "passed": [text for each in counting for text in passed_limits(each, plan.day.abort.measured)],
    }


def _expectations(verdict: ComparisonVerdict) -> Iterator[dict[str, str]]:
    for each in verdict.comparisons:
        yield {"title": each.title, "finding": each.finding.value, "text": each.text}
    for run in verdict.runs:
        for each in run.verdict.judgements:
            if each.finding.verdict is not Verdict.PASS:
                title = f"{run.variant}, round {run.round}: {each.title}"
                yield {"title": title, "finding": each.finding.value, "text": run.verdict.text_of(each)}


def _reasons(verdict: ComparisonVerdict) -> Iterator[str]:
    yield from verdict.invalid
    for run in verdict.runs:
        for text in [*([run.refused] if run.refused else []), *run.verdict.invalid, *run.verdict.doubts]:
            yield f"{run.variant}, round {run.round}: {text}"
    yield from verdict.notes
