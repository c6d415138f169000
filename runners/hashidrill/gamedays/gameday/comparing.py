"""Plays a comparison as one step of a game day: every variant of an experiment, and what they are compared by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from hashidrill.core.compare.kept import read_comparison
from hashidrill.core.judging.verdict import RunVerdict, Verdict
from hashidrill.core.recording.reader import Recording
from hashidrill.gamedays.gameday import measures
from hashidrill.gamedays.gameday.answers import Measured
from hashidrill.gamedays.gameday.journal import Result
from hashidrill.gamedays.gameday.plan import Plan, PlannedRun
from hashidrill.lab.runs.launch import new_folder, prepare
from hashidrill.lab.runs.rounds import play_variants
from hashidrill.reports.compared import judge_and_report_comparison

if TYPE_CHECKING:
    from hashidrill.core.compare.judged import ComparisonVerdict
    from hashidrill.core.experiment.resolved import ResolvedExperiment
    from hashidrill.core.protocols.events import Bus

PlayOne = Callable[["ResolvedExperiment", Path], tuple[Recording, RunVerdict]]
"""Plays one variant, with its recording below the folder, and judges it. Raises KeyboardInterrupt as a run does."""
Prepare = Callable[["ResolvedExperiment", Callable[[str], None]], object]


def compare(
    plan: Plan, run: PlannedRun, folder: Path, *, one: PlayOne, say: Callable[[str], None], prepare: Prepare = prepare
) -> Result:
    """What came of it, as the journal keeps it; all of its recordings are in one folder below `folder`.

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
        "passed": [text for each in counting for text in measures.passed(each, plan.day.abort.measured)],
    }


def _expectations(verdict: ComparisonVerdict) -> Iterator[dict[str, str]]:
    """Each comparison, and what did not hold in one of the runs."""
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
