"""Where the history is: one SQLite file for each user, in the XDG state directory."""

from __future__ import annotations

import os
from pathlib import Path

from hashidrill.core.util.folders import state_folder

VARIABLE = "HASHIDRILL_HISTORY"
"""The environment variable that names another file."""
DEFAULT = ".local/state/hashidrill/history.sqlite"
"""Below the home of whoever says nothing else."""


def history_file() -> Path:
    """`$HASHIDRILL_HISTORY`, or `$XDG_STATE_HOME/hashidrill/history.sqlite`, by default below ~/.local/state."""
    if said := os.environ.get(VARIABLE):
        return Path(said)
    return state_folder() / "history.sqlite"
