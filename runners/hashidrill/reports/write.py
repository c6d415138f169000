"""Writes verdict and reports of a recording in one call, for every way of running an experiment."""

import signal
from pathlib import Path

from hashidrill.core.errors import RecordingError
from hashidrill.core.judging.judge import judge, stored, with_note
from hashidrill.core.judging.verdict import RunVerdict
from hashidrill.core.protocols.events import Expected, Judged
from hashidrill.core.recording.provenance import Lookup
from hashidrill.core.recording.reader import Recording
from hashidrill.core.util.files import VERDICT_NAME
from hashidrill.core.util.interrupts import PutOff
from hashidrill.reports.html import write_html
from hashidrill.reports.markdown import write_markdown


def judge_and_report(
    recording: Recording, *, near_to: Path | None = None, recorded_hypotheses: bool | Path = False
) -> tuple[RunVerdict, Path | None]:
    """Judge, and write verdict.json, report.html and summary.md into the recording. Returns (verdict, report's path).

    A recording that cannot be read gets no report: its verdict is INVALID, and says why. If nothing can be written
    there (a full disk, another user's recording), there is no report either, and a note says so. A terminal that closes
    meanwhile interrupts afterwards. An earlier verdict and its reports stay if a hypothesis of the run is missing now.
    """
    with PutOff(signal.SIGHUP):
        verdict = judge(recording, near_to=near_to, recorded_hypotheses=recorded_hypotheses)
        lookup = Lookup(recording.path, near_to, recorded=recorded_hypotheses)
        missing = sorted({each.hypothesis for each in verdict.judgements if lookup.is_missing(each.hypothesis)})
        if missing and (recording.path / VERDICT_NAME).exists():
            return with_note(
                verdict, f"nothing was written: without {', '.join(missing)} the earlier verdict stays"
            ), None
        return _reported(recording, stored(recording, verdict))


def report_of(recording: Recording, verdict: RunVerdict) -> tuple[RunVerdict, Path | None]:
    """Like `judge_and_report`, for a run that is already judged."""
    with PutOff(signal.SIGHUP):
        return _reported(recording, stored(recording, verdict))


def _reported(recording: Recording, verdict: RunVerdict) -> tuple[RunVerdict, Path | None]:
    try:
        report = write_html(recording, verdict, recording.path)
        write_markdown(recording, verdict, recording.path, report=report)
    except RecordingError:
        if not verdict.invalid:  # it was read well enough to be judged
            raise
        return verdict, None
    except OSError as error:
        return with_note(verdict, f"no report could be written into {recording.path}: {error.strerror}"), None
    return verdict, report


def judged(recording: Recording, verdict: RunVerdict, report: Path | None) -> Judged:
    """The verdict as the last event of a run."""
    ends = recording.events("end")
    return Judged(
        t_ns=ends[-1].t_ns if ends else 0,
        verdict=verdict.verdict.value,
        invalid=tuple(verdict.invalid),
        doubts=tuple(verdict.doubts),
        notes=tuple(verdict.notes),
        expectations=tuple(
            Expected(each.title, each.hypothesis, each.finding.value, each.text, each.figures, each.known_issue)
            for each in verdict.judgements
        ),
        recording=str(recording.path),
        report=str(report or ""),
    )
