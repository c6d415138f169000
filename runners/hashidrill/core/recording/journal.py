"""The journal of a run: append-only JSON lines, synced to disk around every fault.

Readers skip a line that a crash or a full disk tore; hashidrill.core.recording.seal tells judges about such lines.
`t_ns` is the run's clock; `wall` is seconds since the epoch, for comparison with other logs. `mac` is the line's number
and its MAC (hashidrill.core.recording.signed_runs).
"""

import contextlib
import hmac
import json
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from hashidrill.core.errors import FaultError, JournalHeldError
from hashidrill.core.util.files import held_by_us, private, private_folder, write_whole
from hashidrill.core.util.redaction import Redactor
from hashidrill.core.util.safe_json import parse

KEPT = "kept"


class Undos:
    """Keeps the undos' secrets, which the journal must not hold, in `folder`; without it, those cannot be healed."""

    def __init__(self, folder: Path | None, redactor: Redactor) -> None:
        self._folder = folder
        self._redactor = redactor
        self._kept: dict[str, Path] = {}

    def for_journal(self, undo: Mapping[str, Any]) -> dict[str, Any]:
        """The undo as the journal may hold it; this returns when the secrets are on disk. Raises FaultError."""
        self._redactor.learn(undo)
        shown: dict[str, Any] = self._redactor.data(undo)
        if json.dumps(shown) == json.dumps(undo):
            return dict(undo)
        if self._folder is None:
            return {**shown, KEPT: ""}
        fault_id = str(undo["fault_id"])
        path = self._folder / f"{fault_id}.json"
        try:
            private_folder(self._folder)
            with private(path, "wb") as file:
                file.write(json.dumps(undo).encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise FaultError(f"{fault_id}: its undo cannot be kept: {path}: {error.strerror or error}") from None
        self._kept[fault_id] = path
        return {**shown, KEPT: str(path)}

    def forget(self, fault_id: str) -> None:
        """Forgets the undo of a fault that is gone, or whose hosts are gone."""
        path = self._kept.pop(fault_id, None)
        if path is not None:
            with contextlib.suppress(OSError):  # the sandbox's end removes it
                path.unlink(missing_ok=True)

    def restored(self, undo: Mapping[str, Any]) -> dict[str, Any]:
        """Restores the whole undo from the journal's part. Raises FaultError if its secrets are gone."""
        whole = _restored(undo)
        if undo.get(KEPT):
            self._kept[str(undo["fault_id"])] = Path(undo[KEPT])
        self._redactor.learn(whole)
        return whole


def _restored(undo: Mapping[str, Any]) -> dict[str, Any]:
    if KEPT not in undo:
        return dict(undo)
    fault_id, path = undo["fault_id"], Path(str(undo[KEPT] or os.devnull))
    try:
        status = path.lstat()
        ours = status.st_uid == os.geteuid() and status.st_mode == stat.S_IFREG | 0o600
        whole = parse(path.read_bytes()) if ours else {}
    except (OSError, ValueError):
        whole = {}
    same = isinstance(whole, dict) and all(whole.get(name) == undo.get(name) for name in ("fault_id", "kind", "host"))
    if not whole or not same:
        where = undo[KEPT] or "nowhere"
        raise FaultError(
            f"{fault_id}: the journal holds its undo without the secrets. Their file ({where}) is gone or belongs "
            f"to another user: restore by hand the settings that the journal shows"
        )
    return dict(whole)


_LOCK_GAP_S = 0.02
_SETTLING = re.compile(rb'"(?:end|fault\.(?:intent|gone|ended))"')
_TAIL_BYTES = 16_384
"""More bytes than an `end` line needs, with its seal."""
_MAC = b', "mac": "'
_DIGITS = 12


@dataclass(frozen=True)
class Entry:
    """One line: an event and its time. `event` is a key of `EVENTS`; `data` holds the other fields."""

    t_ns: int
    wall: float
    event: str
    data: dict[str, Any] = field(default_factory=dict)


EVENTS = {
    "run": "the run began: id, format, experiment, root, origin (machine, boot, namespace, user), sandbox, attached,"
    " resolved: SHA-256 of resolved.json",
    "phase": "a phase began: load, start, ready, steady, method, recovery, quiesce, closed",
    "fault.intent": "fault_id, kind, target, undo, step: written and synced before apply",
    "fault.applied": "fault_id: apply returned",
    "fault.proven": "fault_id, evidence: the observer saw the effect",
    "fault.unproven": "fault_id, evidence: the observer did not see it",
    "fault.failed": "fault_id, error: apply raised",
    "fault.still": "fault_id, evidence: the observer saw the effect again, just before the revert",
    "fault.faded": "fault_id, evidence: the observer no longer saw it before the revert; when it went is unknown",
    "fault.undone": "fault_id, by: a fault of the kind `by` undid it, as planned",
    "fault.moved": "fault_id, on: the role that the fault follows moved to another host",
    "fault.reverted": "fault_id: revert returned",
    "fault.gone": "fault_id, evidence: the observer saw that the effect is gone",
    "fault.ended": "fault_id, evidence: no observer saw the effect go: the target is gone, or another run has it",
    "fault.stuck": "fault_id, error or evidence: it could not be reverted, or is still seen",
    "mark.begin": "mark, step, ends_ns: a named part of the method began; it breaks nothing",
    "mark.end": "mark, step: that part ended",
    "clock.stops": "at_s, waits_for: the method's clock stands still because the next step waits for earlier ones",
    "clock.goes": "at_s, stood_ns, text: the clock goes on; everything planned after `at_s` shifts by stood_ns",
    "moment": "step, when, came (bool), waited_ns, evidence: the moment of a step (`when:`) came, or did not",
    "attended.begins": "at_s, in_force: a person begins to act; faults in force stay in force",
    "attended.did": "what, text and details: a command with its host, exit code and output, or a decision",
    "attended.ends": "the person is done, and the method ends",
    "guardrail": "condition, evidence: a guardrail tripped",
    "steady": "held (bool), evidence: the steady state held, or did not",
    "profile": "host, agent, kind, began_ns, why; file (below artifacts/) or error: a Go profile was taken, or failed",
    "search": "load, found, level, text, tried: the level at which a load's search ended",
    "note": "any other note: text",
    "end": "outcome: complete, steady-state, fault, revert, guardrail, interrupted, crashed; error;"
    " written: rows by table; sealed: SHA-256 by file, and of the journal up to here",
}


_NEEDED: dict[str, dict[str, type]] = {
    "phase": {"phase": str},
    "fault.intent": {"kind": str, "target": dict, "undo": dict},
    "fault.proven": {"evidence": dict},
    "fault.unproven": {"evidence": dict},
    "fault.gone": {"evidence": dict},
    "fault.still": {"evidence": dict},
    "fault.faded": {"evidence": dict},
    "mark.begin": {"mark": str},
    "mark.end": {"mark": str},
    "clock.goes": {"at_s": float, "stood_ns": int},
    "profile": {"host": str, "kind": str, "began_ns": int},
    "end": {"outcome": str},
}
"""The fields, with types, that an entry needs in addition to its time; each `fault.` entry also needs a `fault_id`."""
LONGEST_NS = 7 * 24 * 3600 * 10**9
"""No run takes a week: each of its parts takes at most an hour. So no run wrote a later time."""
_FAR_S = 10**11


class Clock:
    """Nanoseconds since the run began, by CLOCK_MONOTONIC (shared by all processes of one machine)."""

    def __init__(self, origin_ns: int | None = None) -> None:
        self.origin_ns = time.monotonic_ns() if origin_ns is None else origin_ns

    def now_ns(self) -> int:
        return time.monotonic_ns() - self.origin_ns


@dataclass(frozen=True)
class LineKey:
    """Signs the lines of one run. `note` is the file that holds the number of lines that heal must find."""

    secret: bytes = field(default=b"", repr=False)
    note: Path | None = None

    def signed(self, line: bytes, file: str, number: int) -> bytes:
        """The line of a journal with its number and MAC; unchanged without a key."""
        if not self.secret:
            return line
        body = line.removesuffix(b"}\n")
        return body + _MAC + self._mac(body, file, number) + b'"}\n'

    def number(self, line: bytes, file: str) -> int | None:
        """The number of a line that was signed with this key; None for any other line."""
        body, _, mac = line.rpartition(_MAC)
        number = mac.partition(b":")[0]
        if not self.secret or not number.isdigit() or len(number) > _DIGITS:
            return None
        expected = self._mac(body, file, int(number)) + b'"}\n'
        return int(number) if hmac.compare_digest(mac, expected) else None

    def _mac(self, body: bytes, file: str, number: int) -> bytes:
        mac = hmac.digest(self.secret, f"{file} {number} ".encode() + body, "sha256")
        return f"{number}:{mac.hex()}".encode()

    def keep(self, lines: int) -> None:
        """Records that this many lines are on disk."""
        if self.note is not None:
            with contextlib.suppress(OSError, ValueError):  # a truncated journal may go unnoticed; the run continues
                known = json.loads(self.note.read_bytes())
                write_whole(self.note, json.dumps({**known, "lines": lines}))


UNSIGNED = LineKey()
"""Signs nothing."""


class Journal:
    """Appends entries. `write` returns once the line is in the file, and, with `sync`, on disk.

    One process at a time holds a journal: the lock (flock) ends with the process. Raises JournalHeldError if another
    process still holds it after `within_s`. `redactor` removes secrets from each line, and `undos` keeps the secrets
    that an undo needs. With a `key`, each line carries a MAC (hashidrill.core.recording.signed_runs).
    """

    def __init__(
        self,
        path: Path,
        clock: Clock,
        on_entry: Callable[[Entry], None] | None = None,
        *,
        within_s: float = 0.0,
        redactor: Redactor | None = None,
        undos: Path | None = None,
        key: LineKey | None = None,
    ) -> None:
        # no links: in a stranger's recording, one could lead to any of this user's files
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self.redactor = redactor or Redactor()
        self.undos = Undos(undos, self.redactor)
        try:
            _hold(self._fd, path, within_s)
        except BaseException:
            os.close(self._fd)
            raise
        self._clock = clock
        self._lock = threading.Lock()
        self._on_entry = on_entry
        self._torn = _ends_torn(path)
        self._key, self._name = key or UNSIGNED, path.name
        signed, missing = signed_entries(path, self._key)
        self._lines = len(signed) + missing

    def write(self, event: str, *, sync: bool = False, **data: Any) -> Entry:
        """Appends one entry. `sync=True` also waits for the disk: use it for everything that heal depends on."""
        with self._lock:  # the clock is read under the lock, so that lines are in order of time
            entry = Entry(self._clock.now_ns(), time.time(), event, self.redactor.data(data))
            self._append(self._key.signed(to_line(entry).encode(), self._name, self._lines))
            self._lines += 1
            if sync:
                os.fsync(self._fd)
            if event == "fault.intent":
                self._key.keep(self._lines)
        if self._on_entry is not None:
            self._on_entry(entry)
        return entry

    def _append(self, line: bytes) -> None:
        """Writes the whole line, or raises OSError. First ends a line that a full disk tore earlier."""
        rest = b"\n" + line if self._torn else line
        self._torn = True
        while rest:
            rest = rest[os.write(self._fd, rest) :]
        self._torn = False

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _hold(fd: int, path: Path, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not held_by_us(fd):
        if time.monotonic() >= deadline:
            raise JournalHeldError(f"{path}: another process writes to it: the run is still in progress")
        time.sleep(_LOCK_GAP_S)


def _ends_torn(path: Path) -> bool:
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def to_line(entry: Entry) -> str:
    """The entry as one line of the file, with its newline."""
    return json.dumps({"t_ns": entry.t_ns, "wall": entry.wall, "event": entry.event, **entry.data}, default=str) + "\n"


def outcome_of(path: Path) -> str:
    """How this journal's run ended, from its last `end` line; `died` if it has no such line. Raises OSError.

    Reads only the end of the file if that suffices, to be quick for thousands of runs.
    """
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        for start in dict.fromkeys((max(0, size - _TAIL_BYTES), 0)):
            file.seek(start)
            lines = file.read().splitlines(keepends=True)
            for line in reversed(lines[1:] if start else lines):
                entry = entry_of(line) if b'"end"' in line else None
                if entry is not None and entry.event == "end" and is_whole(entry):
                    return str(entry.data["outcome"])
    return "died"


def settled(path: Path) -> bool:
    """Whether the run has ended and all its faults are gone, so heal has nothing to do. Raises OSError.

    Reads only the lines about faults; False if one of them is malformed.
    """
    content, open_, ended = path.read_bytes(), set(), False
    for start in sorted({content.rfind(b"\n", 0, found.start()) + 1 for found in _SETTLING.finditer(content)}):
        try:
            said = json.loads(content[start : content.index(b"\n", start)])
            event, fault_id = said["event"], said.get("fault_id")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return False
        ended = ended or event == "end"
        if event == "fault.intent":
            open_.add(fault_id)
        elif event in {"fault.gone", "fault.ended"}:
            open_.discard(fault_id)
    return ended and not open_


def read_journal(path: Path) -> list[Entry]:
    """All complete entries of a journal, in order; a torn last line is left out."""
    return list(_entries(path))


def _entries(path: Path) -> Iterator[Entry]:
    with path.open("rb") as lines:
        for line in lines:
            if (entry := entry_of(line)) is not None:
                yield entry


def signed_entries(path: Path, key: LineKey) -> tuple[list[Entry], int]:
    """The entries signed with that key, in order of their numbers, and how many numbers between them are missing.

    If a line is repeated, the first one counts; lines without a valid MAC do not count.
    """
    lines, missing = signed_lines(path, key)
    return [entry for line in lines if (entry := entry_of(line)) is not None], missing


def signed_lines(path: Path, key: LineKey) -> tuple[list[bytes], int]:
    """Like `signed_entries`, for a file with any kind of lines. Raises OSError."""
    found: dict[int, bytes] = {}
    with path.open("rb") as lines:
        for line in lines:
            number = key.number(line, path.name)
            if number is not None:
                found.setdefault(number, line)
    return [found[number] for number in sorted(found)], max(found, default=-1) + 1 - len(found)


def entry_of(line: bytes) -> Entry | None:
    """The entry of a line; None if it is torn or foreign."""
    if not line.endswith(b"\n"):
        return None
    try:
        data = json.loads(line)
        data.pop("mac", None)
        entry = Entry(data.pop("t_ns"), data.pop("wall"), data.pop("event"), storable(data))
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return None
    return entry if isinstance(entry.event, str) else None


def is_whole(entry: Entry) -> bool:
    """Whether the entry has all fields of its event: readers need not check them. heal also uses incomplete entries."""
    times = type(entry.t_ns) is int and abs(entry.t_ns) < LONGEST_NS and _is_wall(entry.wall)
    if not times:
        return False
    needed = dict(_NEEDED.get(entry.event, {}))
    if entry.event.startswith("fault."):
        needed["fault_id"] = str
    return all(isinstance(entry.data.get(name), kind) for name, kind in needed.items()) and _says_enough(entry.data)


def _says_enough(data: dict[str, Any]) -> bool:
    """Whether evidence has its measurement, a target its host and agent, and a step its number."""
    evidence, target = data.get("evidence"), data.get("target")
    if isinstance(evidence, dict) and not isinstance(evidence.get("measured"), str):
        return False
    if isinstance(target, dict) and not all(isinstance(target.get(name), str) for name in ("host", "agent")):
        return False
    return isinstance(data.get("params", {}), dict) and isinstance(data.get("step", 0), int)


def _is_wall(wall: Any) -> bool:
    return isinstance(wall, (int, float)) and 0 <= wall < _FAR_S


def storable(value: Any) -> Any:
    r"""The value, with lone surrogates (which UTF-8 cannot encode) written as escapes like `\udc80`.

    Surrogates come from clients: JSON can escape half of a character, and a key of bytes is often read with
    `surrogateescape`. SQLite refuses them, and so would every report.
    """
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {storable(key): storable(each) for key, each in value.items()}
    return [storable(each) for each in value] if isinstance(value, list) else value
