"""The card that `hashidrill retry` prints: one line a verdict, the reasons short; what does not apply goes below."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hashidrill.clients.retry.judged import Judged, overall
from hashidrill.core.judging.verdict import Verdict

_COLOURS = {Verdict.PASS: "bold green", Verdict.FAIL: "bold red", Verdict.INVALID: "yellow"}


def as_json(command: Sequence[str], judged: Sequence[Judged]) -> dict[str, Any]:
    """What --json prints."""
    return {"command": list(command), "verdicts": [one.as_json() for one in judged]}


def print_card(console: Console, command: Sequence[str], judged: Sequence[Judged]) -> None:
    """One line for each verdict, as wide as the console."""
    console.print(Text(shlex.join(command), style="bold"))
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    for one in judged:
        if one.applies:
            table.add_row(Text(one.verdict, _COLOURS[one.verdict]), one.name, one.fault, Text(one.text))
    for one in judged:
        if not one.applies:
            dim = [Text(word, "dim") for word in (one.verdict, one.name, one.fault, one.text)]
            table.add_row(*dim)
    console.print(table)
    counts = {verdict: sum(one.verdict is verdict and one.applies for one in judged) for verdict in Verdict}
    rest = sum(not one.applies for one in judged)
    verdict = overall(judged)
    summary = ", ".join(f"{count} {name}" for name, count in counts.items())
    line = Text.assemble((verdict.value, _COLOURS[verdict]), f": {summary}")
    console.print(line + Text(f"; {rest} say nothing about this command" if rest else ""))
