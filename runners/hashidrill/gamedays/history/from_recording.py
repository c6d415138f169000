"""Stores recordings in the history: verdict, figures, versions and configuration, without secrets and operations.

`record_run` and `record_day` never fail: they report what went wrong in one line.
"""

import contextlib
import datetime as dt
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hashidrill.core.compare.figures import figures
from hashidrill.core.errors import HashidrillError, RecordingError
from hashidrill.core.experiment.model import Step
from hashidrill.core.judging.comparison import RUN_BY
from hashidrill.core.judging.judge import judge, read_verdict
from hashidrill.core.judging.verdict import RunVerdict, Verdict
from hashidrill.core.recording.reader import Recording
from hashidrill.core.util.folders import project
from hashidrill.core.util.redaction import Redactor
from hashidrill.gamedays.history.store import (
    OURS,
    WAITS_S,
    Day,
    Drilled,
    Expected,
    Number,
    Run,
    Series,
    Store,
    Stored,
    digest,
    history_file,
    opened,
)
from hashidrill.gamedays.runbooks.judge import is_rehearsal, rehearsal_verdict
from hashidrill.reports.html import attached_to

_ABOUT = {*RUN_BY, "expect"}
_ROOT = "ROOT"
"""Stands for the directory of a run, which differs each time, in the configuration of its agents."""
_MOST_TEXT = 2000
_UNITS = (
    ("_bytes_per_s", "bytes/s"),
    ("_per_s", "/s"),
    ("_ms", "ms"),
    ("_s", "s"),
    ("_bytes", "bytes"),
    ("_share", "share"),
)


def run_from(recording: Recording, verdict: RunVerdict | None = None) -> Run:
    """The history's run of a recording. Without `verdict`, uses the stored verdict, or judges the recording.

    Raises RecordingError for a recording that cannot be read, or does not name its experiment.
    """
    verdict = verdict or _verdict(recording)
    run = recording.run
    redactor = Redactor()
    redactor.learn_environment(os.environ)
    # experiments in two folders may share a metadata.name; `named` distinguishes them, but older recordings lack it
    name = str(run.get("named") or run.get("experiment") or _experiment_name(recording))
    variant, experiment = _asked(recording)
    if is_rehearsal(recording):
        name, variant = _rehearsed(run["rehearsal"], variant)
    began_s, ended_s = _times(recording)
    root = str(run.get("root") or "")
    versions, machine = _mapping(run, "versions"), _machine(_mapping(run, "machine"))
    config = _placeless(_mapping(run, "config"), root) if root else _mapping(run, "config")
    said: dict[str, Any] = redactor.clean(
        {
            "experiment": experiment,
            "config": config,
            "invalid": [_cut(each) for each in verdict.invalid],
            "expectations": [
                {"title": each.title, "finding": each.finding.value, "text": _cut(each.text)}
                for each in verdict.judgements
            ],
        }
    )
    hashidrill = str(run.get("hashidrill") or "")
    return Run(
        id=str(run.get("id") or recording.path.name),
        series=Series(
            redactor.text(name), redactor.text(variant), redactor.text(attached_to(recording)) or OURS, str(project())
        ),
        began_s=began_s,
        ended_s=ended_s,
        verdict=verdict.verdict,
        outcome=recording.outcome,
        path=str(recording.path.resolve()),
        hashidrill=hashidrill,
        title=redactor.text(str(run.get("title") or "")),
        invalid=tuple(said["invalid"]),
        expectations=tuple(Expected(**each) for each in said["expectations"]),
        drilled=tuple(_drilled(recording)),
        figures={each.name: each for each in _numbers(recording, verdict)},
        versions=versions,
        experiment=said["experiment"],
        config=said["config"],
        machine=machine,
        conditions=digest([hashidrill, versions, said["experiment"], said["config"], machine]),
    )


def _drilled(recording: Recording) -> list[Drilled]:
    """The proven failure modes, once each, in order; none for an unreadable experiment: the journal names no roles."""
    try:
        method = recording.experiment.method
    except (HashidrillError, OSError):
        return []
    steps = [
        method[fault.step]
        for fault in recording.faults
        if fault.proven and fault.faded_ns is None and fault.gone_ns is not None and 0 <= fault.step < len(method)
    ]
    return list(dict.fromkeys(Drilled(step.fault, step.on) for step in steps if isinstance(step, Step)))


def when(text: object) -> float:
    """Seconds since 1970 of an RFC 3339 time. Raises ValueError."""
    moment = dt.datetime.fromisoformat(str(text))
    return (moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)).timestamp()


def _verdict(recording: Recording) -> RunVerdict:
    try:
        return read_verdict(recording.path)
    except RecordingError:
        return rehearsal_verdict(recording) if is_rehearsal(recording) else judge(recording)


def _rehearsed(about: Mapping[str, Any], variant: str) -> tuple[str, str]:
    where = f"{about.get('experiment')} {variant}".strip()
    return f"runbook-{about.get('runbook')}", where


def _experiment_name(recording: Recording) -> str:
    try:
        return recording.experiment.metadata.name
    except (HashidrillError, OSError):
        raise RecordingError(f"{recording.path}: it does not name its experiment") from None


def _asked(recording: Recording) -> tuple[str, dict[str, Any]]:
    """(variant, the run's part of the file); empty for an unreadable experiment."""
    try:
        experiment, variant = recording.experiment, recording.variant
    except (HashidrillError, OSError):
        return "", {}
    return variant, experiment.model_dump(mode="json", by_alias=True, exclude_unset=True, include=_ABOUT)


def _times(recording: Recording) -> tuple[float, float]:
    journal = recording.journal
    if not journal:
        raise RecordingError(f"{recording.path}: its journal is empty")
    return journal[0].wall, max(journal[-1].wall, journal[0].wall)


def _mapping(run: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = run.get(key)
    return dict(value) if isinstance(value, Mapping) else {}


def _machine(said: dict[str, Any]) -> dict[str, Any]:
    """The machine's memory in whole GiB: the kernel's share differs after each boot."""
    size = said.pop("memory_bytes", None)
    return {**said, "memory_gib": round(size / 2**30)} if isinstance(size, int) else said


def _placeless(value: Any, root: str) -> Any:
    """The text without the run's directory."""
    if isinstance(value, str):
        return value.replace(root, _ROOT)
    if isinstance(value, Mapping):
        return {key: _placeless(below, root) for key, below in value.items()}
    return [_placeless(each, root) for each in value] if isinstance(value, list) else value


def _numbers(recording: Recording, verdict: RunVerdict) -> Iterator[Number]:
    try:
        known = figures(recording.experiment)
    except (HashidrillError, OSError):
        known = []
    for figure in known:
        yield Number(figure.name, figure.unit, figure.of(recording).number, figure.floor)
    seen: Counter[str] = Counter()
    for judgement in verdict.judgements:
        seen[judgement.hypothesis] += 1
        count = seen[judgement.hypothesis]
        of = judgement.hypothesis if count == 1 else f"{judgement.hypothesis}#{count}"
        for name, said in judgement.figures.items():
            value, unit = _number(said), _unit(name)
            if value is not None and unit:  # figures without a unit are numbers of samples
                yield Number(f"{of}.{name}", unit, value)


def _number(said: object) -> float | None:
    if isinstance(said, bool):
        return None
    if isinstance(said, int | float):
        return None if math.isnan(said) else float(said)
    return math.inf if said == "never" else None


def _unit(name: str) -> str:
    return next((unit for suffix, unit in _UNITS if name.endswith(suffix)), "")


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}…"


def day_document(folder: Path) -> dict[str, Any]:
    """The report of a game day, as plain data. Raises RecordingError."""
    from hashidrill.core.util.safe_json import parse  # noqa: PLC0415 - only game days need it

    file = folder / "report.json"
    try:
        document = parse(file.read_bytes())
        if not isinstance(document, dict):
            raise ValueError("not a mapping")  # noqa: TRY004, TRY301 - handled like any unreadable report
        Verdict(document["verdict"])
        when(document["started_at"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordingError(f"{file}: is not a report of a game day: {type(error).__name__}: {error}") from None
    else:
        return document


Tell = Callable[[str], None]


def _on_stderr(text: str) -> None:
    sys.stderr.write(f"hashidrill: warning: {text}\n")


def record_run(
    recording_dir: Path | Recording,
    *,
    verdict: RunVerdict | None = None,
    tell: Tell = _on_stderr,
    waits_s: float = WAITS_S,
) -> Stored | None:
    """Stores a run at its end. None if that failed; `tell` then receives one line. Raises nothing."""
    with _never_fails(tell, "run"):
        recording = recording_dir if isinstance(recording_dir, Recording) else Recording(recording_dir)
        run = run_from(recording, verdict)
        with opened(history_file(), waits_s=waits_s) as database:
            return Store(database).add(run)
    return None


def record_day(day_dir: Path, *, tell: Tell = _on_stderr) -> Stored | None:
    """Like `record_run`, for a game day's folder, which holds a report.json. A resumed day replaces its entry."""
    with _never_fails(tell, "game day"):
        day, runs = _day(day_dir)
        with opened(history_file()) as database:
            return Store(database).add_day(day, runs)
    return None


@contextlib.contextmanager
def _never_fails(tell: Tell, what: str) -> Iterator[None]:
    """Reports errors to `tell`: a failure of the history must not change how a run ends."""
    try:
        yield
    except HashidrillError as error:
        tell(f"this {what} is not in the history: {error}")
    except Exception as error:  # noqa: BLE001 - nothing that goes wrong here may change how a run ends
        tell(f"this {what} is not in the history: {type(error).__name__}: {error}; its recording is complete")


def _day(folder: Path) -> tuple[Day, list[str]]:
    said = Redactor().clean(day_document(folder))
    began_s = when(said["started_at"])
    ended = said.get("ended_at")
    runs = said["runs"] if isinstance(said.get("runs"), list) else []
    recordings = [each["recording"] for each in runs if isinstance(each, dict) and each.get("recording")]
    name, where = str(said.get("name") or folder.name), str(said.get("attached") or "")
    day = Day(
        str(said.get("id") or folder.name),
        f"{name} at {where}" if where else name,
        str(said.get("title") or ""),
        began_s,
        when(ended) if ended else began_s,
        Verdict(said["verdict"]),
        str(said.get("outcome") or ""),
        str(folder.resolve()),
        str(project()),
    )
    return day, [Path(str(each)).name for each in recordings]
