"""What a game day prints and asks at a terminal and on a war room's page: wrapped lines, questions, the summary."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from hashidrill.core.judging.verdict import Verdict
from hashidrill.faces.cli.common import print_text
from hashidrill.gamedays.gameday.report import surprise_line, tally
from hashidrill.reports.html import SYMBOLS
from hashidrill.reports.live import display as live
from hashidrill.reports.text import for_encoding, plain_line

if TYPE_CHECKING:
    from hashidrill.gamedays.gameday.leads import Expected
    from hashidrill.gamedays.warroom.room import Room


def tell(say: Console, line: str, style: str = "") -> None:
    for part in live.folded(line, say):
        live.say(say, part, style)


def ask(prompt: str, say: Console) -> str:
    """Asks for one line. Raises KeyboardInterrupt if no answer can come: the terminal is closed or the pipe ended."""
    *before, last = live.folded(prompt.rstrip(), say)
    for part in before:
        live.say(say, part)
    while True:
        try:
            return input(for_encoding(f"{last} ", sys.stdout.encoding))
        except (EOFError, OSError):  # the terminal is closed
            raise KeyboardInterrupt from None
        except UnicodeDecodeError:
            print_text("    that is not text in this terminal's encoding; type it again\n")


def summary(say: Console, found: dict[str, Any], folder: Path, page: Path) -> None:
    """The result of the day, and where its reports are."""
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


class Asker:
    """Asks at the terminal and on the page. If standard input is not a terminal, its end does not affect the page."""

    def __init__(self, room: Room, *, stdin: int | None = None) -> None:
        self._room = room
        self._stdin = sys.stdin.fileno() if stdin is None else stdin
        self._typed = b""
        self._ended = False
        self._answers: deque[str] = deque()
        self._told: deque[str] = deque()
        self._woken, self._wake = os.pipe()  # never closed: a page may answer at any moment

    def ask(self, prompt: str, expected: Expected, trouble: str = "") -> str:
        """Asks for one line. Raises KeyboardInterrupt if the terminal is closed."""
        sys.stdout.write(for_encoding(f"{prompt} ", sys.stdout.encoding))
        sys.stdout.flush()
        self._answers.clear()  # a page's late answer to the previous question must not answer this one
        text = expected.text or prompt.strip()
        with self._room.asking(
            text, expected.for_all, expected.choices, self._answered, hint=expected.hint, trouble=trouble
        ):
            while True:
                self._show_told(prompt)
                line = self._line()
                if line is not None:
                    return line
                if expected.is_over():
                    sys.stdout.write("\n")
                    return ""
                ready = select.select([self._woken, *([] if self._ended else [self._stdin])], [], [])[0]
                if self._woken in ready:
                    os.read(self._woken, 4096)
                    if self._answers:
                        answer = self._answers.popleft()
                        self._forget_typed()
                        sys.stdout.write(for_encoding(f"{answer}   (answered on the page)\n", sys.stdout.encoding))
                        return answer
                else:
                    self._read()

    def tell(self, line: str) -> None:
        """Shows a line above the open question, or above the next one. May be called in any thread."""
        self._told.append(line)
        os.write(self._wake, b"x")

    def _show_told(self, prompt: str) -> None:
        over = "\r\x1b[K" if sys.stdout.isatty() else "\n"  # keep the text typed so far
        while self._told:
            line = plain_line(self._told.popleft())
            sys.stdout.write(for_encoding(f"{over}{line}\n{prompt} ", sys.stdout.encoding))
            sys.stdout.flush()

    def _answered(self, text: str) -> None:
        self._answers.append(text)
        os.write(self._wake, b"x")

    def _forget_typed(self) -> None:
        """Discards keys that were typed before the page answered this question: they must not answer the next one."""
        if os.isatty(self._stdin):
            self._typed = b""
            with contextlib.suppress(OSError, termios.error):
                termios.tcflush(self._stdin, termios.TCIFLUSH)

    def _read(self) -> None:
        try:
            data = os.read(self._stdin, 4096)
        except OSError:  # the terminal is closed
            raise KeyboardInterrupt from None
        self._typed += data
        if data:
            return
        if os.isatty(self._stdin):
            raise KeyboardInterrupt
        self._ended = True
        self._typed += b"\n" if self._typed else b""

    def _line(self) -> str | None:
        while b"\n" in self._typed:
            line, self._typed = self._typed.split(b"\n", 1)
            try:
                return line.decode(sys.stdin.encoding or "utf-8").removesuffix("\r")
            except UnicodeDecodeError:
                sys.stdout.write("    that is not text in this terminal's encoding; type it again\n")
                sys.stdout.flush()
        return None
