"""Hands a fault its arguments where the program that waits for them cannot be told: by Nomad's exec, next to a job.

What stands in a job's specification is for everybody who may read jobs, and stays in Nomad's state: settings with
tokens and gossip keys are among the arguments. They wait in the task's folder for secrets, for root alone, and are
gone once the agent has taken them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from hashidrill.staging.carriers.inside.notes import Note
from hashidrill.staging.carriers.inside.system import RefusedError

_FOLDER = "NOMAD_SECRETS_DIR"


def place() -> Note:
    """Raises RefusedError."""
    if not os.environ.get(_FOLDER):
        raise RefusedError("no-secrets", f"this task has no folder for secrets: {_FOLDER} is not set")
    return Note(Path(os.environ[_FOLDER]) / "hashidrill", "arguments")


def taken() -> dict[str, Any]:
    """The arguments, which are there no longer. Raises RefusedError."""
    found = place().read()
    if found is None:
        raise RefusedError(
            "no-arguments", "nothing says what to do: no arguments were handed over; nothing was applied"
        )
    place().forget()
    return found


def main(told: dict[str, Any]) -> None:
    """Leaves `args` there for the agent."""
    try:
        place().write(told["args"])
        said = {"event": "handed"}
    except RefusedError as error:
        said = {"event": "refused", "name": error.name, "why": str(error)}
    os.write(1, json.dumps(said).encode() + b"\n")
