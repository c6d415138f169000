"""What runs on a schedule: the command line, where it runs, and the name of the job."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hashidrill.core.errors import UsageError
from hashidrill.gamedays.schedules.cron import Cron

WEBHOOK = "HASHIDRILL_NOTIFY"
"""The variable with the URL of the webhook. It is a secret, and stands in none of the files that are written here."""
NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9-]+")


@dataclass(frozen=True)
class Job:
    """One experiment or game day, and when it runs."""

    what: str
    """What makes it another job than the rest: the experiment or game day, and the datacenter that it attaches to."""
    words: Sequence[str]
    """The command line."""
    cron: Cron
    zone: str = "UTC"
    directory: Path = Path("/")
    """Where it runs, absolute: its recordings are below it."""
    environment: Mapping[str, str] | None = None
    user: str = ""
    """Who runs it, where that is not root."""
    secrets: Sequence[str] = ()
    """Variables with the tokens of the datacenter that it attaches to. Only their names are in what is written here."""

    def __post_init__(self) -> None:
        """Raises UsageError for what could begin a line of its own: systemd ends lines at a carriage return too."""
        for text in (self.what, *self.words, str(self.directory), self.user, *self.variables.values()):
            if not text.isprintable():
                raise UsageError(
                    f"{text!r}: no schedule can have a name, path or option with a line break or another character"
                    " that does not print: rename it"
                )

    @property
    def name(self) -> str:
        return f"hashidrill-{NOT_IN_A_NAME.sub('-', self.what).strip('-')}"

    @property
    def variables(self) -> Mapping[str, str]:
        return self.environment or {}
