"""Where the history is: one SQLite file for each user, in the XDG state directory."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "HASHIDRILL_HISTORY"
"""The environment variable that names another file."""
DEFAULT = ".local/state/hashidrill/history.sqlite"
"""Below the home of whoever says nothing else."""


def history_file() -> Path:
    """`$HASHIDRILL_HISTORY`, or `$XDG_STATE_HOME/hashidrill/history.sqlite`, by default below ~/.local/state."""
    if said := os.environ.get(VARIABLE):
        return Path(said)
    base = Path(os.environ.get("XDG_STATE_HOME") or "")
    if not base.is_absolute():
        base = Path(os.path.expanduser("~/.local/state"))  # noqa: PTH111 - HOME may be unset, which Path.home raises for
    return base / "hashidrill" / "history.sqlite"
