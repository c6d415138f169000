"""Recognizes the journals that this machine wrote: their lines carry a MAC, and `heal` ignores all other lines.

The key of this machine and user is made at first use, in the state directory, and only its owner can read it. Each
run's own key is derived from the machine's key and the run's id; the engine receives only the run's key, so a line of
one run does not count in another. A MAC covers the file's name, the line's number and its bytes. So heal ignores a line
that was changed, repeated or moved between files, and notices a missing line. The first line has the SHA-256 of
resolved.json, which holds the hosts' addresses.

A MAC cannot show that a journal is old. So a run of an attached datacenter is noted as open in the state directory,
with its number of lines, until it has nothing left to heal. A copy, a truncated journal or a run that was settled long
ago does not match the note.
"""

import contextlib
import hashlib
import hmac
import json
import os
import re
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hashidrill.core.errors import NotOursError, UsageError
from hashidrill.core.recording.journal import Entry, LineKey, read_journal, signed_entries, signed_lines
from hashidrill.core.recording.writer import RESOLVED_NAME
from hashidrill.core.util import safe_json
from hashidrill.core.util.files import HEAL_NAME, JOURNAL_NAME, private_folder
from hashidrill.core.util.folders import state_folder

KEY_NAME = "machine.key"
OPEN_NAME = "open"
_BYTES = 32
AUDIT_NAME = "audit.jsonl"
LINKED = (JOURNAL_NAME, HEAL_NAME, RESOLVED_NAME, AUDIT_NAME, "artifacts")
"""Files and folders that heal reads or writes: a link among them is refused."""


@dataclass(frozen=True)
class OurRun:
    """A run that this machine recorded: its entries with a valid MAC, in order, and its key.

    `lost` says which of its lines are missing; "" if no line is.
    """

    id: str
    journal: list[Entry]
    later: list[Entry]
    """Entries that heal wrote after the run's end."""
    key: LineKey
    lost: str = ""

    @property
    def entries(self) -> list[Entry]:
        return [*self.journal, *self.later]


def machine_key() -> bytes:
    """The key of this machine and user; made if missing. Raises UsageError if not storable, or another user's."""
    path = state_folder() / KEY_NAME
    try:
        private_folder(path.parent)
        if not path.exists():
            new = path.with_name(f"{KEY_NAME}.{secrets.token_hex(4)}")
            try:
                _write_synced(new, secrets.token_bytes(_BYTES))
                with contextlib.suppress(FileExistsError):  # another process was first: its key counts
                    os.link(new, path)
            finally:
                new.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            status, key = os.fstat(file.fileno()), file.read(_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"{path}: the key of this machine cannot be kept there: {error.strerror}; set XDG_STATE_HOME to a"
            " folder that you own"
        ) from None
    private = status.st_uid == os.geteuid() and stat.S_ISREG(status.st_mode) and not status.st_mode & 0o077
    if not private or len(key) != _BYTES:
        raise UsageError(
            f"{path}: not a key that you alone can read: remove it, and the next run makes a new one; heal then asks "
            f"for confirmation for earlier recordings"
        )
    return key


def key_of(run_id: str) -> LineKey:
    """The key of one run. Raises UsageError."""
    return LineKey(hmac.digest(machine_key(), f"run {run_id}".encode(), "sha256"))


def received_key(given: Mapping[str, Any]) -> LineKey:
    """The key that an engine received; if it received none, the key signs nothing."""
    secret, note = given.get("key", ("", ""))
    return LineKey(bytes.fromhex(secret), Path(note) if note else None)


def note_open(run_id: str, recording: Path) -> Path:
    """Notes a run as open, synced to disk. Returns the note. Raises UsageError."""
    path = note_of(run_id)
    try:
        private_folder(path.parent)
        _write_synced(path, json.dumps({"recording": str(recording.resolve()), "lines": 0}).encode())
    except OSError as error:
        raise UsageError(f"{path}: the run cannot be noted there: {error.strerror}") from None
    return path


def open_recordings() -> list[Path]:
    """The recordings of all runs noted as open."""
    found = []
    for note in sorted((state_folder() / OPEN_NAME).glob("*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # torn, or its run has just ended
            found.append(Path(safe_json.parse(note.read_bytes())["recording"]))
    return found


def forget_open(run_id: str) -> None:
    """Removes the note: the run left nothing to heal."""
    with contextlib.suppress(OSError):
        note_of(run_id).unlink(missing_ok=True)


def our_run(run: Path) -> OurRun:
    """The run, if this machine recorded it. Otherwise raises NotOursError with the reason. Raises UsageError."""
    for name in LINKED:
        if (run / name).is_symlink():
            raise NotOursError(f"its {name} is a link")
    if not (run / JOURNAL_NAME).is_file():
        raise NotOursError(f"its {JOURNAL_NAME} is not a regular file")
    began = next((entry for entry in read_journal(run / JOURNAL_NAME) if entry.event == "run"), None)
    run_id = "" if began is None else str(began.data.get("id", ""))
    if not re.fullmatch(r"[\w.-]{1,250}", run_id):
        raise NotOursError("its journal does not say which run it belongs to")
    key = key_of(run_id)
    signed, missing = signed_entries(run / JOURNAL_NAME, key)
    if not signed or signed[0].event != "run" or signed[0].data.get("id") != run_id:
        raise NotOursError("another machine or user wrote it, or a hashidrill without a key")
    _check_resolved(run, signed[0])
    lost = f"{missing} of its lines are gone" if missing else ""
    if "attached" in signed[0].data:
        lost = _noted(run, run_id, len(signed) + missing) or lost
    after = signed_entries(run / HEAL_NAME, key)[0] if (run / HEAL_NAME).is_file() else []
    return OurRun(run_id, signed, after, key, lost)


def audit_told(run: Path, run_id: str) -> str:
    """How many audit lines the recording has, and whether all are as this machine wrote them; "" without lines.

    Raises UsageError.
    """
    path = run / AUDIT_NAME
    try:
        lines, (signed, missing) = path.read_bytes().splitlines(), signed_lines(path, key_of(run_id))
    except OSError:
        return ""
    doubts = [f"{missing} are missing"] if missing else []
    if others := len(lines) - len(signed):
        doubts.append(f"{others} {'is' if others == 1 else 'are'} torn, changed, or of another machine")
    if not signed or b'"verb": "end"' not in signed[-1]:
        doubts.append("the last line does not say that the run ended")
    return f"{AUDIT_NAME}: {len(lines)} lines, {'; '.join(doubts) or 'as this machine wrote them'}"


def _check_resolved(run: Path, began: Entry) -> None:
    """Raises NotOursError if the experiment, which holds the hosts' addresses, has changed since the run began."""
    try:
        digest = hashlib.sha256((run / RESOLVED_NAME).read_bytes()).hexdigest()
    except OSError:
        digest = ""
    if digest != began.data.get("resolved"):
        raise NotOursError(f"its {RESOLVED_NAME} has changed since the run began")


def _noted(run: Path, run_id: str, lines: int) -> str:
    """How many journal lines an open run has lost, by its note; "" if none. Raises NotOursError if there is no note, or
    if the note names another folder.
    """
    try:
        note = safe_json.parse(note_of(run_id).read_bytes())
        recording, least = Path(note["recording"]), int(note["lines"])
    except FileNotFoundError:
        raise NotOursError("by this machine's notes, that run has nothing left to heal: this is an old copy") from None
    except (OSError, ValueError, KeyError, TypeError):  # torn, because the machine went down
        return f"how many lines its journal had is unknown: {note_of(run_id)} is not readable"
    if recording != run.resolve() and recording.exists():
        raise NotOursError(f"it is a copy: the run is recorded in {recording}")
    return f"its journal ends after {lines} lines and had {least}" if lines < least else ""


def note_of(run_id: str) -> Path:
    """The note of an open run."""
    return state_folder() / OPEN_NAME / f"{run_id}.json"


def _write_synced(path: Path, content: bytes) -> None:
    """Writes a new file that only its owner can read, and syncs the file and its name to disk."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
