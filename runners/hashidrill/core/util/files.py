"""Files that are replaced atomically, private files, locks, and logs whose lines are synced to disk."""

import fcntl
import os
from pathlib import Path
from typing import IO, Literal

COMPARISON_NAME = "comparison.json"
"""The file that compares several recordings; it makes its folder a comparison."""
VERDICT_NAME = "verdict.json"
HEAL_NAME = "heal.jsonl"
"""The file for heal's results after a run has ended, because the journal is sealed by then."""
JOURNAL_NAME = "journal.jsonl"
"""The file that makes a folder a recording."""


def private(path: Path, mode: Literal["wb", "ab"]) -> IO[bytes]:
    """Opens a file for writing that only its owner may read. Raises OSError."""
    opener = lambda name, flags: os.open(name, flags, 0o600)  # noqa: E731 - `open` calls it so
    file = open(path, mode, opener=opener)  # noqa: SIM115 - Path.open has no opener; the caller closes it
    os.fchmod(file.fileno(), 0o600)  # it may have existed before
    return file


def private_folder(path: Path) -> None:
    """Makes a folder and its missing parents, which only their owner may access. Raises OSError."""
    for folder in [*reversed(path.parents), path]:
        if not folder.exists():
            folder.mkdir(mode=0o700, exist_ok=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """Replaces `path`: a reader sees either the old or the new file, and a failed write leaves the old one.

    Only its owner may read the file. Does not write through a link: in a stranger's recording, a link of this name
    could lead to any of the user's files. Raises OSError.
    """
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def held_by_us(fd: int) -> bool:
    """Takes the lock on an open file or directory; False if another process holds the lock.

    Also True on a file system without locks.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def append_line(fd: int, line: bytes) -> None:
    """Appends a whole line to a file that was opened to append, and syncs it to disk. Raises OSError."""
    while line:
        line = line[os.write(fd, line) :]
    os.fsync(fd)


def whole_lines(text: bytes) -> bytes:
    """The text up to its last newline, without an unfinished last line."""
    return text[: text.rfind(b"\n") + 1]
