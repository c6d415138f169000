"""Stores runs in the history, and notifies the webhook when a verdict turned from PASS to FAIL."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from hashidrill.core.judging.verdict import RunVerdict
from hashidrill.core.recording.reader import Recording
from hashidrill.core.units import counted
from hashidrill.gamedays.history.on_turn_red import VARIABLE, keep, keep_day, webhook_url
from hashidrill.gamedays.history.pages import turn_data, turn_line
from hashidrill.gamedays.history.store import Run, Turn
from hashidrill.reports.html import attached_to
from hashidrill.reports.live import display as live

Notify = Annotated[
    str | None,
    typer.Option(
        "--notify",
        metavar="URL",
        help=f"Webhook to call when a verdict turns from PASS to FAIL. The URL is a secret: better set {VARIABLE}.",
    ),
]


def cut_off(kept: str, again: str) -> str:
    """What Ctrl-C did to a command that makes many local runs."""
    return f"interrupted: the run is reverted, its datacenter removed; kept: {kept}; again: {again}"


def cut_short(recording: Path, again: str, *, kept: Path | None = None) -> str:
    """The effect of Ctrl-C on a run, what is kept, and how to resume."""
    found = Recording(recording)
    if found.outcome == "revert":
        return f"interrupted: a fault could not be reverted: `hashidrill heal {recording}`"
    gone = len(found.events("fault.gone"))
    undone = f"{counted(gone, 'fault')} reverted and proven gone" if gone else "no fault was in force"
    ends = "that datacenter still runs" if attached_to(found) else "the datacenter is removed"
    return f"interrupted: {undone}, {ends}; kept: {kept or recording}; again: {again}"


@dataclass
class Memory:
    """Keeps runs in the history, and notifies the webhook."""

    webhook: str | None = None
    interrupted: bool = False
    """Ctrl-C came, or the terminal was closed, while a finished run was being stored: its verdict stands, and no
    further run begins.
    """

    @classmethod
    def of(cls, notify: str | None = None) -> Memory:
        """Raises UsageError for an invalid URL."""
        return cls(webhook_url(notify))

    def stop(self) -> None:
        self.interrupted = True

    def keep(self, recording: Recording, verdict: RunVerdict | None, say: Console) -> dict[str, Any]:
        """Stores a run, reports a change of verdict if there is one, and returns that part of the --json output. No
        error here makes a run fail.

        If the run has no verdict (Ctrl-C ended it), it is judged first.
        """
        found: list[Turn] = []
        hint = f"; if it lacks this run, `hashidrill history add {recording.path}` adds it"
        with self._interruptible(found, say, hint):
            keep(recording, verdict, webhook=self.webhook, tell=_noted(say), turned=_said(found, say))
        return {"turned": turn_data(found[0] if found else None)}

    def keep_day(self, folder: Path, say: Console) -> None:
        """Like `keep`, for a game day that ended; its runs are in the history already."""
        found: list[Turn] = []
        with self._interruptible(found, say, ""):
            keep_day(folder, webhook=self.webhook, tell=_noted(say), turned=_said(found, say))

    @contextlib.contextmanager
    def _interruptible(self, found: list[Turn], say: Console, hint: str) -> Iterator[None]:
        """Ctrl-C ends the block and is remembered: the verdict exists already, and still has to be printed."""
        try:
            yield
        except KeyboardInterrupt:
            self.interrupted = True
            if not found:  # otherwise Ctrl-C came later, and the code that calls the webhook has reported it
                _noted(say)(f"interrupted while the history was written; the verdict stands{hint}")


def _noted(say: Console) -> Callable[[str], None]:
    return lambda text: live.say(say, f"note: {text}", "yellow")


def _said(found: list[Turn], say: Console) -> Callable[[Turn], None]:
    def turned(turn: Turn) -> None:
        found.append(turn)
        _say_turn(turn, say)

    return turned


def _say_turn(turn: Turn, say: Console) -> None:
    live.say(say, turn_line(turn), "bold red")
    if isinstance(turn.now, Run):
        live.say(say, f"  what changed: hashidrill history changed {turn.experiment} --run {turn.now.id}")
