"""The summary of a run for a pull request or a chat: short, and plain GitHub-flavoured Markdown."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from hashidrill.core.judging.verdict import RunVerdict
from hashidrill.core.recording.reader import FaultWindow, Recording
from hashidrill.core.util.files import write_whole
from hashidrill.reports.document import code, plain, row_table, to_markdown
from hashidrill.reports.figures import (
    FIGURES,
    asked,
    experiment_name,
    experiment_title,
    figure_rows,
    found_on_the_way,
    how_it_ended,
    marked,
    state_of,
)
from hashidrill.reports.followed import followed_section
from hashidrill.reports.html import FINDINGS, REPORT_NAME, SYMBOLS, attached_to, tally
from hashidrill.reports.story import ALERTS, alert_rows, story
from hashidrill.reports.text import NOTHING

SUMMARY_NAME = "summary.md"
MOST_ROWS = 50


def write_markdown(recording: Recording, verdict: RunVerdict, into: Path, *, report: Path | None = None) -> Path:
    """Write the summary to `into` (a directory gets `summary.md`) and return the file's path.

    `report` is the HTML report to link; by default the one next to the summary, if there is one.
    """
    path = into / SUMMARY_NAME if into.is_dir() else into
    if report is None and (path.parent / REPORT_NAME).is_file():
        report = path.parent / REPORT_NAME
    link = Path(os.path.relpath(report, path.parent)) if report else None
    write_whole(path, markdown_summary(recording, verdict, report=link))
    return path


def markdown_summary(recording: Recording, verdict: RunVerdict, *, report: Path | str | None = None) -> str:
    """The summary as text. `report` is the link to the HTML report."""
    result, rehearsed = verdict.verdict, followed_section(recording)
    ended, told = how_it_ended(recording), story(recording, verdict)
    blocks = [
        f"### {SYMBOLS[result]} {result.value}: {plain(experiment_title(recording))}",
        " ".join(part for part in (tally(verdict), plain(ended)) if part),
        plain(" ".join([told.warning, *told.sentences, told.closest]).strip(), 2000),
        "\n".join(f"- {plain(reason)}" for reason in [*verdict.invalid, *verdict.doubts, *verdict.notes][:MOST_ROWS]),
        _expectations(verdict),
        _faults(recording.faults),
        "\n".join(f"- Mark: {plain(text)}" for text in marked(recording)[:MOST_ROWS]),
        row_table(FIGURES, [(code(load), *shown) for load, *shown in figure_rows(recording)], numbers_from=2),
        row_table(ALERTS, [(code(alert), *map(plain, shown)) for alert, *shown in alert_rows(recording)]),
        "\n".join(f"- {plain(text)}" for text in found_on_the_way(recording)),
        *(to_markdown([rehearsed]) if rehearsed is not None else []),
        _footer(recording, report),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _expectations(verdict: RunVerdict) -> str:
    rows = [
        (
            f"{FINDINGS[judgement.finding][0]} {FINDINGS[judgement.finding][1]}",
            code(judgement.title),
            plain(verdict.text_of(judgement)) + (f" ({plain(judgement.known_issue)})" if judgement.known_issue else ""),
        )
        for judgement in verdict.judgements
    ]
    return row_table(("finding", "expectation", "evidence"), rows)


def _faults(faults: Sequence[FaultWindow]) -> str:
    rows = [
        (
            code(fault.kind),
            plain(fault.host),
            plain(asked(fault)) or NOTHING,
            _measured(fault.proof),
            _measured(fault.gone_proof),
            plain(state_of(fault)),
        )
        for fault in faults
    ]
    return row_table(("fault", "host", "asked for", "measured in force", "measured afterwards", "state"), rows)


def _measured(evidence: object) -> str:
    return plain(str(evidence["measured"])) if isinstance(evidence, dict) and "measured" in evidence else NOTHING


_PRODUCTS = ("consul", "nomad", "vault")


def _footer(recording: Recording, report: Path | str | None) -> str:
    run = recording.run
    versions = run.get("versions")
    known = versions if isinstance(versions, dict) else {}
    run_id = str(run.get("id") or recording.path.name)
    tools = [f"{name.capitalize()} {plain(str(known[name]))}" for name in _PRODUCTS if known.get(name)]
    tools.append(f"hashidrill {plain(str(run.get('hashidrill') or 'of an unknown version'))}")
    where = f" against the attached datacenter {code(name)}" if (name := attached_to(recording)) else ""
    lines = [f"Run {code(run_id)} of {code(experiment_name(recording))}{where}, {', '.join(tools)}."]
    if report is not None:
        target = re.sub(r"[<>\n\r]", "", str(report))
        lines.append(f"Report: [{plain(str(report))}](<{target}>)")
    if run.get("command"):
        lines.append(f"Again: {code(str(run['command']))}")
    return "  \n".join(lines)
