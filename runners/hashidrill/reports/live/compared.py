"""Shows what came of a comparison, as `hashidrill.reports.live.display.final_summary` shows a run."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from hashidrill.core.judging.verdict import Verdict
from hashidrill.reports import compared
from hashidrill.reports.live.display import COLOURS, say, say_judgements
from hashidrill.reports.sections import SYMBOLS

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from hashidrill.core.compare.judged import ComparisonVerdict


def comparison_summary(console: Console, verdict: ComparisonVerdict, folder: Path, report_path: Path | None) -> None:
    """Each comparison, what came of each run, the figures side by side, and what to do next."""
    result = verdict.verdict
    say(console, "")
    say(console, f"{SYMBOLS[result]} {result.value}  {verdict.title}", f"bold {COLOURS[result]}")
    say(console, f"  {compared.meaning(verdict)}")
    for reason in verdict.invalid:
        say(console, f"  ! {reason}", "yellow")
    say_judgements(console, verdict.comparisons)
    for run in verdict.runs:
        worth = Verdict.INVALID if run.refused else run.verdict.verdict
        where = f"{run.variant}, round {run.round}"
        say(console, f"  {SYMBOLS[worth]} {where}: {compared.run_line(run)}", COLOURS[worth])
    say(console, "")
    for line in compared.text_lines(verdict):
        say(console, f"  {line}")
    for note in verdict.notes:
        say(console, f"  note: {note}", "yellow")
    say(console, "")
    if report_path is not None:
        say(console, f"  report     {report_path}")
    say(console, f"  judge it   hashidrill check {shlex.quote(str(folder))}")
