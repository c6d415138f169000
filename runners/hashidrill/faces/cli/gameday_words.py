"""What a game day says at a terminal: lines that fold between words, questions, and the summary at its end."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Any

from rich.console import Console

from hashidrill.core.judging.verdict import Verdict
from hashidrill.faces.cli.common import print_text
from hashidrill.gamedays.gameday.pages import surprise_line, tally
from hashidrill.reports.html import SYMBOLS
from hashidrill.reports.live import display as live
from hashidrill.reports.text import for_encoding


def tell(say: Console, line: str, style: str = "") -> None:
    """One line, folded."""
    for part in folded(line, say):
        live.say(say, part, style)


def folded(line: str, say: Console) -> list[str]:
    """A line as a person reads it on a terminal: folded between words, below its own indentation."""
    if not say.is_terminal or len(line) <= say.width or " " not in line.strip():
        return [line]
    lead = " " * (len(line) - len(line.lstrip(" ")))
    return textwrap.wrap(
        line, max(say.width, 30), subsequent_indent=lead, break_long_words=False, break_on_hyphens=False
    )


def ask(prompt: str, say: Console) -> str:
    """Raises KeyboardInterrupt where nobody can answer any more: a closed terminal, the end of a pipe."""
    *before, last = folded(prompt.rstrip(), say)
    for part in before:
        live.say(say, part)
    while True:
        try:
            return input(for_encoding(f"{last} ", sys.stdout.encoding))
        except (EOFError, OSError):  # of a terminal that is closed
            raise KeyboardInterrupt from None
        except UnicodeDecodeError:
            print_text("    that is not text in this terminal's encoding; type it again\n")


def summary(say: Console, found: dict[str, Any], folder: Path, page: Path) -> None:
    """What came of the day, and where its reports are."""
    verdict = Verdict(found["verdict"])
    live.say(say, "")
    live.say(say, f"{SYMBOLS[verdict]} {verdict.value}  {found['title']}", "bold")
    tell(say, f"  {found['because']} {tally(found)}")
    for each in found["runs"]:
        live.say(say, f"  {each['verdict'] or each['state']:<8} {each['name']}")
    for surprise in found["surprises"]:
        tell(say, f"  surprise: {surprise_line(surprise)}")
    for action in found["actions"]:
        tell(say, f"  to do: {action['what']} ({action['name']}, due {action['due']})")
    live.say(say, f"  report     {page}")
    live.say(say, f"  for chats  {folder / 'report.md'}")
    if found["actions"]:
        live.say(say, f"  to do      {folder / 'actions.md'}")
