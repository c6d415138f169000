"""The seal of a recording: checksums in the journal's `end`, so that a damaged recording is not judged.

The seal reveals a full disk, a torn copy or an edit, but not a forgery: a forger would write the seal as well.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hashidrill.core.errors import RecordingError
from hashidrill.core.recording.journal import Entry, entry_of, is_whole
from hashidrill.core.recording.reader import Recording
from hashidrill.core.recording.writer import DATABASE_NAME, RESOLVED_NAME, RUN_NAME, TABLES
from hashidrill.core.util.files import JOURNAL_NAME

SEALED_FILES = (DATABASE_NAME, "experiment.yaml", RESOLVED_NAME, "hypotheses.json", RUN_NAME)
ARTIFACTS_NAME = "artifacts"
_COUNTED = ("complete", "guardrail")
_SHOWN = 5


def seal(path: Path) -> dict[str, str]:
    """The SHA-256 of each file that a verdict depends on, by name; for the journal, of its current content."""
    return {name: _sha256(path / name) for name in [*_files(path), JOURNAL_NAME] if (path / name).is_file()}


def damage(recording: Recording) -> list[str]:
    """The reasons why this recording cannot be trusted; empty if the recording is as its run left it."""
    found = list(_unreadable_lines(recording.path / JOURNAL_NAME))
    if not recording.run_reads:
        found.append(f"{RUN_NAME} is not readable")
    sealed = [entry for entry in recording.events("end") if "sealed" in entry.data]
    if sealed:
        found += _wrong_ends(recording, sealed)
        found += _broken_seals(recording, sealed[-1].data["sealed"])
        found += _missing_rows(recording, sealed[-1].data.get("written"))
    elif recording.outcome in _COUNTED:
        found.append(f"its journal ends as {recording.outcome!r} without a seal: the recording was never closed")
    return [f"the recording is damaged: {reason}" for reason in found]


def _files(path: Path) -> list[str]:
    """Names of the files to seal, even missing ones; links out of the recording are not followed."""
    left = sorted((path / ARTIFACTS_NAME).rglob("*"))
    artifacts = [str(file.relative_to(path)) for file in left if file.is_file() and not file.is_symlink()]
    return [*SEALED_FILES, *artifacts]


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _wrong_ends(recording: Recording, sealed: list[Entry]) -> Iterator[str]:
    """A run ends once. The seal does not cover `end` itself, but run.json has the same outcome and is sealed."""
    if len(sealed) > 1:
        yield f"its journal ends {len(sealed)} times"
    said = {key: sealed[-1].data.get(key) for key in ("outcome", "error")}
    if recording.outcome in _COUNTED and said != {key: recording.run.get(key) for key in said}:
        yield f"its journal ends as {said['outcome']!r}, {RUN_NAME} as {recording.run.get('outcome')!r}"


def _broken_seals(recording: Recording, sealed: Any) -> Iterator[str]:
    if not isinstance(sealed, dict):
        yield "its seal is not readable"
        return
    path = recording.path
    now = seal(path)
    now[JOURNAL_NAME] = _sha256_before_the_seal(path / JOURNAL_NAME)
    rewritten = {RUN_NAME} if "sealed" not in recording.events("end")[-1].data else set()  # with a later `end`
    for name in sorted({*sealed, *now} - rewritten):
        if name not in now:
            yield f"{name} is missing"
        elif name not in sealed:
            yield f"{name} was not there when the run ended"
        elif sealed[name] != now[name]:
            yield f"{name} has changed since the run (its SHA-256 was {str(sealed[name])[:12]}, now {now[name][:12]})"


def _sha256_before_the_seal(journal: Path) -> str:
    """The SHA-256 of all lines before the sealed `end`, and of all later lines except the runner's own `end`."""
    digest = hashlib.sha256()
    with journal.open("rb") as lines:
        for line in lines:
            entry = entry_of(line)
            if entry is None or entry.event != "end":
                digest.update(line)
    return digest.hexdigest()


def _missing_rows(recording: Recording, written: Any) -> Iterator[str]:
    """Reports tables with fewer rows than the writer received, for example because a full disk stopped it."""
    if not isinstance(written, dict):
        yield "its `end` does not say how much was recorded"
        return
    try:
        there = {table: recording.count(table) for table in (*TABLES, *recording.detail_tables)}
    except RecordingError as error:
        yield str(error)
        return
    for table in dict.fromkeys([*there, *written]):
        if there.get(table, 0) != written.get(table):
            yield f"{table}: {written.get(table)} were recorded, {there.get(table, 0)} are there"


def _unreadable_lines(journal: Path) -> Iterator[str]:
    """Reports malformed lines of the journal, except a torn last line, which a killed run may leave."""
    bad: list[int] = []
    ended = False
    with journal.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            entry = entry_of(line)
            if (entry is None and (ended or line.endswith(b"\n"))) or (entry is not None and not is_whole(entry)):
                bad.append(number)
            ended = ended or (entry is not None and entry.event == "end")
    if bad:
        more = "" if len(bad) <= _SHOWN else f" and {len(bad) - _SHOWN} more"
        yield f"{JOURNAL_NAME}: not readable in line {', '.join(map(str, bad[:_SHOWN]))}{more}"
