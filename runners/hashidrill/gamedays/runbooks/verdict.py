"""The verdict of a rehearsal in the form of any run's: for reports, for the history, and to judge a recording again."""

from __future__ import annotations

import math
from collections.abc import Mapping

from hashidrill.core.judging.verdict import NOT_JUDGED, Finding, Judgement, RunVerdict
from hashidrill.core.recording.reader import Recording
from hashidrill.gamedays.runbooks.judged import Drill, judge_drill

DIAGNOSIS, HELPS, HARMLESS = "right_diagnosis", "users_are_back", "no_harm"
"""The `hypothesis` of each judgement."""
_UNHARMED = "no quorum was lost, no healthy server was restarted, nothing that is counted was lost"


def is_rehearsal(recording: Recording) -> bool:
    """Whether a runbook was followed in this run: its experiment's expectations say nothing about that."""
    return isinstance(recording.run.get("rehearsal"), Mapping)


def rehearsal_verdict(recording: Recording) -> RunVerdict:
    """Judges the recording of a rehearsal. Raises RecordingError for one of a newer hashidrill."""
    recording.check_format()
    return as_verdict(judge_drill(recording.path))


def as_verdict(drill: Drill) -> RunVerdict:
    """The same verdict: harm is BROKEN in any run, the rest is not judged where the run proves nothing."""
    judgements = [_diagnosis(drill), _harm(drill)]
    if not drill.look_alike:
        judgements.insert(1, _helps(drill))
    return RunVerdict(list(drill.invalid), judgements, notes=list(drill.notes))


def _diagnosis(drill: Drill) -> Judgement:
    seen = ", ".join(f"{name} = {'missing' if value is None else value}" for name, value in drill.because.items())
    said = f"{drill.reached}{f' ({seen})' if seen else ''}"
    finding, text = _found(drill, drill.mistaken, said)
    return Judgement(
        f"{DIAGNOSIS}({drill.expected})", DIAGNOSIS, finding, text, _seconds({"diagnosed_s": drill.diagnosed_s})
    )


def _helps(drill: Drill) -> Judgement:
    wrong = [text for text in drill.wrong if text not in drill.mistaken]
    back = "" if drill.back_s is None else f"users are back {drill.back_s:.1f}s after the pager, "
    finding, text = _found(drill, wrong, f"{back}the fault still held, and every step worked")
    return Judgement(
        HELPS, HELPS, finding, text, _seconds({"acted_s": drill.acted_s, "back_s": drill.back_s}, never="never")
    )


def _harm(drill: Drill) -> Judgement:
    if drill.harm:
        return Judgement(HARMLESS, HARMLESS, Finding.BROKEN, "\n".join(drill.harm))
    wrong = [text for text in drill.wrong if text not in drill.mistaken] if drill.look_alike else []
    finding, text = _found(drill, wrong, f"it did nothing; {_UNHARMED}" if drill.look_alike else _UNHARMED)
    return Judgement(HARMLESS, HARMLESS, finding, text)


def _found(drill: Drill, wrong: list[str], held: str) -> tuple[Finding, str]:
    if drill.invalid:
        return Finding.INVALID, f"{NOT_JUDGED}{drill.invalid[0]}"
    return (Finding.BROKEN, "\n".join(wrong)) if wrong else (Finding.HELD, held)


def _seconds(figures: Mapping[str, float | None], *, never: str = "") -> dict[str, float | str]:
    """Those that came; the others are `never`, or left out."""
    told = {name: value if value is not None and math.isfinite(value) else never for name, value in figures.items()}
    return {name: value for name, value in told.items() if value != ""}
