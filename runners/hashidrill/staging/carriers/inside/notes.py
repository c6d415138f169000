"""The notes that agents leave on a host while their faults are in force: the owner, and how to revert.

In a task of Nomad, two more programs: `hand_over` leaves the arguments of a fault for its agent, and `keep` keeps
the task running while it is renewed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import stat
import sys
from pathlib import Path
from typing import Any

from hashidrill.core.util import trusted_paths
from hashidrill.staging.carriers.inside.system import RefusedError, System

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class Note:
    """The note of a fault in force. The note may hold a process's environment, so only root may read it."""

    def __init__(self, folder: Path, fault_id: str) -> None:
        self.path = folder / (re.sub(r"[^\w.@-]", "_", fault_id) + ".json")

    def read(self) -> dict[str, Any] | None:
        """None if there is no note. Raises RefusedError for a note that cannot be read, or that another user may
        have written.
        """
        try:
            _only_ours(self.path.parent, os.lstat(self.path.parent))
            _only_ours(self.path, os.lstat(self.path))
            with os.fdopen(trusted_paths.open_file(self.path, os.O_RDONLY)) as file:
                _only_ours(self.path, os.fstat(file.fileno()))
                found: dict[str, Any] = json.loads(file.read())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise RefusedError("note", f"{self.path} cannot be read: {error}") from None
        return found

    def write(self, said: dict[str, Any]) -> None:
        """Writes the note whole or not at all. Raises RefusedError, also for a full disk."""
        place = self.path.parent
        try:
            with trusted_paths.folder(place, make=True) as folder:
                for found in (os.lstat(place), os.fstat(folder)):
                    _only_ours(place, found)
                trusted_paths.replace(folder, self.path.name, json.dumps(said).encode())
        except OSError as error:
            raise RefusedError("note", f"{self.path} cannot be written: {error.strerror}") from None

    def forget(self) -> None:
        with contextlib.suppress(OSError):
            self.path.unlink()
        with contextlib.suppress(OSError):
            self.path.parent.rmdir()  # the last note leaves no folder either


def _only_ours(path: Path, found: os.stat_result) -> None:
    """Raises RefusedError for a file that another user owns or may write: root starts programs named in a note."""
    if found.st_uid != os.geteuid() or found.st_mode & _OTHERS_WRITE or stat.S_ISLNK(found.st_mode):
        raise RefusedError(
            "note",
            f"{path} is not this user's alone (owner {found.st_uid}, mode {found.st_mode & 0o7777:o}): others could"
            " decide what is started; name another folder in carriers.ssh.notes or carriers.nomad.notes",
        )


def another(ours: str, left: dict[str, Any]) -> bool:
    """Whether the note belongs to another run, if both name a run."""
    theirs = str(left["spec"].get("run", ""))
    return bool(ours and theirs and ours != theirs)


def whose(note: Note, left: dict[str, Any], system: System) -> str:
    """Describes the note for the operator who finds it.

    An agent writes its note after it has reverted what an earlier agent left under that id, so no fault of this run
    is there.
    """
    spec = left["spec"]
    who = f", started by {spec['who']}" if spec.get("who") else ""
    lives = not system.gone(left["agent"])
    agent = f"which process {left['agent']} has in force" if lives else f"which process {left['agent']}, now gone, left"
    return f"{note.path} is of the run {spec['run']}{who}: a fault ({spec['kind']}) {agent}; it is left alone"


def others_of(folder: Path, ours: str, system: System) -> list[dict[str, str]]:
    """The faults of other runs noted on this host: their kinds and owners."""
    found = []
    for path in sorted(folder.glob("*.json")):
        note = Note(folder, path.stem)
        with contextlib.suppress(RefusedError, KeyError, TypeError):
            left = note.read()
            if left is not None and another(ours, left):
                found.append({"kind": str(left["spec"]["kind"]), "why": whose(note, left, system)})
    return found


_FOLDER = "NOMAD_SECRETS_DIR"


def arguments_note() -> Note:
    """Raises RefusedError."""
    if not os.environ.get(_FOLDER):
        raise RefusedError("no-secrets", f"this task has no folder for secrets: {_FOLDER} is not set")
    return Note(Path(os.environ[_FOLDER]) / "hashidrill", "arguments")


def take_arguments() -> dict[str, Any]:
    """Takes the arguments and removes them. Raises RefusedError."""
    found = arguments_note().read()
    if found is None:
        raise RefusedError("no-arguments", "no arguments were handed over, so nothing was applied")
    arguments_note().forget()
    return found


def hand_over(told: dict[str, Any]) -> None:
    """Leaves `args` for the agent in the task's folder for secrets, for root alone, until the agent takes them.

    A job's specification must not hold tokens and gossip keys: all who may read jobs see it, and Nomad stores it.
    """
    try:
        arguments_note().write(told["args"])
        said = {"event": "handed"}
    except RefusedError as error:
        said = {"event": "refused", "name": error.name, "why": str(error)}
    os.write(1, json.dumps(said).encode() + b"\n")


_RENEWS, _STOPS = signal.SIGUSR1, (signal.SIGTERM, signal.SIGINT)


def keep(told: dict[str, Any]) -> None:
    """Keeps its task running until `lease_s` seconds pass without SIGUSR1, or SIGTERM or SIGINT comes. Exits with 0.

    Observers and reverts from notes run in its allocation, so a killed runner leaves no task behind.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, [_RENEWS, *_STOPS])
    os.write(1, json.dumps({"event": "ready", "python": sys.version.split()[0]}).encode() + b"\n")
    while True:
        came = signal.sigtimedwait([_RENEWS, *_STOPS], told["lease_s"])
        if came is None or came.si_signo in _STOPS:
            sys.exit(0)
