"""The report of a rehearsal: what it proves and what it does not, each run, and how the run followed the runbook."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hashidrill.core.errors import HashidrillError, UsageError
from hashidrill.core.judging.verdict import Verdict
from hashidrill.core.recording.reader import Recording
from hashidrill.core.units import counted
from hashidrill.core.util.files import write_whole
from hashidrill.gamedays.runbooks.judge import Drill
from hashidrill.gamedays.runbooks.rehearsal import Rehearsal
from hashidrill.reports.document import (
    Badge,
    Bullets,
    Code,
    Folded,
    Html,
    Part,
    Section,
    Table,
    el,
    plain,
    to_html,
    to_markdown,
)
from hashidrill.reports.followed import TITLE, FollowedStep, table_of
from hashidrill.reports.html import REPORT_NAME, SYMBOLS, page, timeline_frame, verdict_banner
from hashidrill.reports.text import NOTHING, listed
from hashidrill.reports.timeline import timeline

SUMMARY_NAME = "report.md"
_TONES = {Verdict.PASS: "held", Verdict.FAIL: "broken", Verdict.INVALID: "invalid"}
_NOT_PROVEN = (
    "Not proven: that it helps with other versions, sizes and loads; that a person reads it correctly and fast. Only"
    " the marked blocks were followed, not the prose."
)
_RUNS = ("verdict", "run", "diagnosis", "diagnosed", "acted", "users back", "commands", "report")


def write_reports(rehearsal: Rehearsal) -> Path:
    """Writes Markdown and HTML into the rehearsal's folder; returns the HTML's path. Raises UsageError on failure."""
    page_path = rehearsal.folder / REPORT_NAME
    try:
        write_whole(rehearsal.folder / SUMMARY_NAME, markdown(rehearsal))
        write_whole(page_path, str(html(rehearsal)))
    except OSError as error:
        raise UsageError(
            f"{rehearsal.folder}: the report cannot be written: {error.strerror}; make room, then `hashidrill rehearse"
            f" {rehearsal.runbook.path} --with {rehearsal.folder}` writes it from the recordings"
        ) from None
    return page_path


def proofs(rehearsal: Rehearsal) -> Iterator[str]:
    """What the runs prove and do not prove, one sentence each."""
    spared = [drill for drill in rehearsal.drills if drill.look_alike and drill.verdict is Verdict.PASS]
    for drill in rehearsal.drills:
        if drill not in spared:
            yield f"{_where(drill)}: {_proof(drill)}"
    if names := list(dict.fromkeys(drill.experiment for drill in spared)):
        yield f"It changed nothing on {listed(names, 8)}, where nothing had to be changed."
    yield from rehearsal.notes
    yield _NOT_PROVEN


def _proof(drill: Drill) -> str:
    if drill.verdict is Verdict.INVALID:
        return f"this run proves nothing: {'; '.join(drill.invalid)}"
    if drill.verdict is Verdict.FAIL:
        return "; ".join([*drill.harm, *drill.wrong])
    back = "" if drill.back_s is None else f", and users were back after {drill.back_s:.0f} s"
    return (
        f"the runbook led to {drill.reached} {drill.diagnosed_s or 0:.0f} s after the pager{back}, while the fault was"
        " in force. No healthy server was restarted, and no data that the experiment counts was lost."
    )


def _where(drill: Drill) -> str:
    versions = ", ".join(f"{name.capitalize()} {version}" for name, version in drill.versions.items())
    return f"{drill.experiment}{f' ({versions})' if versions else ''}"


def _after(seconds: float | None) -> str:
    return NOTHING if seconds is None else f"{seconds:.1f} s"


def _rows(rehearsal: Rehearsal) -> Iterator[tuple[str | Badge | Code, ...]]:
    for drill in rehearsal.drills:
        folder = Path(drill.recording)
        near = folder.name if folder.parent == rehearsal.folder else ""
        link = f"{near}/{REPORT_NAME}" if near and (folder / REPORT_NAME).is_file() else ""
        yield (
            Badge(drill.verdict.value, _TONES[drill.verdict]),
            f"{drill.experiment}{' (look-alike)' if drill.look_alike else ''}",
            drill.reached if drill.reached == drill.expected else f"{drill.reached or 'none'}, not {drill.expected}",
            *map(_after, (drill.diagnosed_s, drill.acted_s, drill.back_s)),
            str(drill.commands),
            Code(folder.name, link),
        )


def _sections(rehearsal: Rehearsal) -> list[Section]:
    return [
        Section("What it proves", [Bullets([*proofs(rehearsal)])]),
        Section("Runs", [Table(_RUNS, [*_rows(rehearsal)])]),
    ]


def _followed(rehearsal: Rehearsal) -> Section:
    """The steps of each run; folded, except for the run whose timeline is shown."""
    shown = _shown(rehearsal)
    parts: list[Part] = []
    for drill in rehearsal.drills:
        steps = table_of([FollowedStep(**step) for step in drill.steps])
        parts.append(steps if drill is shown else Folded(f"In {drill.experiment}", [steps]))
    return Section(TITLE if shown is None else f"{TITLE}: {shown.experiment}", parts)


def _shown(rehearsal: Rehearsal) -> Drill | None:
    return next((drill for drill in rehearsal.drills if not drill.look_alike and drill.steps), None)


def html(rehearsal: Rehearsal) -> Html:
    """The whole page, with the timeline of the first run in which the runbook had to help."""
    verdict = rehearsal.verdict
    shown = _shown(rehearsal)
    title = f"{rehearsal.runbook.title}, rehearsed"
    banner = verdict_banner(
        (SYMBOLS[verdict], verdict.value, verdict.value.lower()),
        title,
        el("p", f"The pager said: {rehearsal.runbook.front.pager}"),
        el("p", f"{rehearsal.runbook.path} · {counted(len(rehearsal.drills), 'run')}", class_="when"),
    )
    drawn = None if shown is None else _timeline(shown)
    above = [] if drawn is None else [timeline_frame()]
    parts = [banner, *to_html(_sections(rehearsal)), *above, *to_html([_followed(rehearsal)])]
    return page(f"{verdict.value}: {title}", parts, drawn)


def _timeline(drill: Drill) -> dict[str, Any] | None:
    try:
        recording = Recording(Path(drill.recording))
        return timeline(recording, reads=recording.loads)
    except (HashidrillError, OSError):
        return None


def markdown(rehearsal: Rehearsal) -> str:
    """The report for a chat or a wiki."""
    verdict = rehearsal.verdict
    blocks = [
        f"# {SYMBOLS[verdict]} {verdict.value}: {plain(rehearsal.runbook.title)}, rehearsed",
        plain(f"The pager said: {rehearsal.runbook.front.pager}"),
        *to_markdown([*_sections(rehearsal), _followed(rehearsal)]),
    ]
    return "\n\n".join(blocks) + "\n"
