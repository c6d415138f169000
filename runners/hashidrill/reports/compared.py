"""The reports of a comparison: the finding of each pair, and the figures of all variants side by side."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from hashidrill.core.compare.judged import ComparisonVerdict, JudgedRun, Kept, judge_comparison
from hashidrill.core.judging.verdict import Finding, RunVerdict, Verdict
from hashidrill.core.recording.reader import Recording
from hashidrill.core.units import counted
from hashidrill.core.util.files import VERDICT_NAME, write_whole
from hashidrill.reports.document import Badge, Code, Html, Section, Table, code, el, plain, to_html, to_markdown
from hashidrill.reports.html import FINDINGS, REPORT_NAME, SYMBOLS, page, verdict_banner
from hashidrill.reports.markdown import MOST_ROWS, SUMMARY_NAME
from hashidrill.reports.write import judge_and_report

_MEANINGS = {
    Verdict.PASS: "Every variant does what is expected of it, and every comparison holds.",
    Verdict.FAIL: "At least one comparison or expectation does not hold.",
    Verdict.INVALID: "This comparison proves nothing, good or bad.",
}


def judge_and_report_comparison(
    kept: Kept,
    *,
    near_to: Path | None = None,
    recorded_hypotheses: bool | Path = False,
    known: Mapping[Path, RunVerdict] | None = None,
) -> tuple[ComparisonVerdict, Path | None]:
    """Judge a comparison, and write verdict.json, report.html and summary.md into its folder.

    Returns (verdict, path of the report); the path is None if nothing could be written. `known` has the verdicts of
    recordings that were already judged and reported; the others are judged now.
    """

    def judged_by(recording: Recording) -> RunVerdict:
        found = (known or {}).get(recording.path)
        how = {"near_to": near_to, "recorded_hypotheses": recorded_hypotheses}
        return judge_and_report(recording, **how)[0] if found is None else found  # type: ignore[arg-type]

    verdict = judge_comparison(kept, near_to=near_to, recorded_hypotheses=recorded_hypotheses, judged_by=judged_by)
    report = kept.path / REPORT_NAME
    try:
        write_whole(kept.path / VERDICT_NAME, json.dumps(verdict.to_data(), indent=2, allow_nan=False) + "\n")
        write_whole(report, str(render(verdict, kept.path)))
        write_whole(kept.path / SUMMARY_NAME, markdown(verdict, kept.path))
    except OSError:
        return verdict, None
    return verdict, report


def meaning(verdict: ComparisonVerdict) -> str:
    """The verdict in a sentence, and how many comparisons hold."""
    held = sum(each.finding in {Finding.HELD, Finding.KNOWN} for each in verdict.comparisons)
    total = len(verdict.comparisons)
    said = f" {held} of {counted(total, 'comparison')} held." if total else " It has no `compare`."
    return f"{_MEANINGS[verdict.verdict]}{said}"


def run_line(run: JudgedRun) -> str:
    if run.refused:
        return f"refused: it {run.refused}"
    broken = [each.title for each in run.verdict.judgements if each.finding.verdict is not Verdict.PASS]
    return "; ".join([*run.verdict.invalid[:1], *broken]) or "every expectation held"


def figure_rows(verdict: ComparisonVerdict) -> list[tuple[str, ...]]:
    """Name of the figure, then its number for each variant: the middle value of the rounds."""
    return [(row.name, *(row.shown[name] for name in verdict.variants)) for row in verdict.figures]


def text_lines(verdict: ComparisonVerdict) -> Iterator[str]:
    """The figures side by side, as a table in plain text."""
    rows = [("figure", *verdict.variants), *figure_rows(verdict)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows if len(rows) > 1 else ():
        first, *others = (
            cell.ljust(width) if not n else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join([first, *others])


def markdown(verdict: ComparisonVerdict, folder: Path) -> str:
    blocks = [
        f"### {SYMBOLS[verdict.verdict]} {verdict.verdict.value}: {plain(verdict.title)}",
        f"{meaning(verdict)} Variants: {', '.join(map(code, verdict.variants))}.",
        "\n".join(f"- {plain(reason)}" for reason in [*verdict.invalid, *verdict.notes][:MOST_ROWS]),
        *to_markdown(_sections(verdict, folder)),
        f"Report: [{REPORT_NAME}](<{REPORT_NAME}>)",
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def render(verdict: ComparisonVerdict, folder: Path) -> Html:
    result = verdict.verdict
    reasons = [*verdict.invalid, *verdict.notes][:MOST_ROWS]
    banner = verdict_banner(
        (SYMBOLS[result], result.value, result.value.lower()),
        verdict.title,
        el("p", meaning(verdict)),
        el("ul", [el("li", reason) for reason in reasons], class_="reasons") if reasons else None,
        el("p", f"{verdict.experiment} \u00b7 {' against '.join(verdict.variants)}", class_="when"),
    )
    return page(f"{result}: {verdict.title}", [banner, *to_html(_sections(verdict, folder))])


def _sections(verdict: ComparisonVerdict, folder: Path) -> list[Section]:
    compared = [
        (
            Badge(" ".join(FINDINGS[each.finding]), each.finding.value),
            Code(each.title),
            each.text + (f" ({each.known_issue})" if each.known_issue else ""),
        )
        for each in verdict.comparisons
    ]
    figures = Table(("figure", *verdict.variants), figure_rows(verdict), numbers_from=1)
    note = "The middle value of the rounds that count. Latencies are under fault, from when an operation was due."
    runs = [
        (f"{run.round}", Code(run.variant), _verdict_of(run).value, run_line(run), _link(run, folder))
        for run in verdict.runs
    ]
    return [
        Section("Comparisons", [Table(("finding", "comparison", "evidence"), compared)]),
        Section("Figures side by side", [figures, note] if figures.rows else []),
        Section("Runs", [Table(("round", "variant", "verdict", "result", "recording"), runs)]),
        Section("How to judge it again", [(Code(f"hashidrill check {folder}"),)]),
    ]


def _verdict_of(run: JudgedRun) -> Verdict:
    return Verdict.INVALID if run.refused else run.verdict.verdict


def _link(run: JudgedRun, folder: Path) -> Code:
    near, report = Path(os.path.relpath(run.path, folder)), run.path / REPORT_NAME
    return Code(str(near), (near / REPORT_NAME).as_posix() if report.is_file() else "")
