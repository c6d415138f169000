"""Files that are replaced whole, that only their owner may read, that one process at a time holds, and logs of lines
that are on the disk before anything goes on.
"""

from __future__ import annotations

import fcntl
import os
from typing import IO, TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path

COMPARISON_NAME = "comparison.json"
"""What several recordings are compared by; it makes its folder a comparison."""
VERDICT_NAME = "verdict.json"
HEAL_NAME = "heal.jsonl"
"""The file for what heal finds after a run has ended: the journal itself is sealed by then."""
JOURNAL_NAME = "journal.jsonl"
"""The file that makes a folder a recording."""


def private(path: Path, mode: Literal["wb", "ab"]) -> IO[bytes]:
    """Open a file for writing that its owner alone may read. Raises OSError."""
    opener = lambda name, flags: os.open(name, flags, 0o600)  # noqa: E731 - as `open` wants it
    file = open(path, mode, opener=opener)  # noqa: SIM115 - Path.open takes no opener; the caller closes it
    os.fchmod(file.fileno(), 0o600)  # it may have been there before
    return file


def private_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing; their owner alone may look into them. Raises OSError."""
    for folder in [*reversed(path.parents), path]:
        if not folder.exists():
            folder.mkdir(mode=0o700, exist_ok=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """Replace `path`: a reader sees the old file or the new one, and a failed write leaves the old one.

    Only its owner may read it. Nothing is written through a link: in a stranger's recording, a link of this name could
    lead to any file of ours. Raises OSError.
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
    """Take the lock on an open file or directory; False where another process has it.

    True as well on a file system without locks: there is nobody to ask.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def append_line(fd: int, line: bytes) -> None:
    """Write a whole line at the end of a file that was opened to append; it is on the disk then. Raises OSError."""
    while line:
        line = line[os.write(fd, line) :]
    os.fsync(fd)


def whole_lines(text: bytes) -> bytes:
    """Without what comes after the last newline: the line that its writer died in."""
    return text[: text.rfind(b"\n") + 1]
