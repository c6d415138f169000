"""Opens files as root, safely, below a folder that another user may write: that user's links lead root nowhere.

A path is opened folder by folder, each from the folder above it, so that no folder can be swapped between check and
use. A link is followed only if only root or this process's user may write to its folder: an administrator made it.

This module also runs on hosts (hashidrill.staging.carriers.shell), under the oldest Python that they may have.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from typing import Any

_FOLDER = os.O_PATH | os.O_DIRECTORY
_NEVER = os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS = 40
"""The kernel's own limit (path_resolution(7))."""


@contextlib.contextmanager
def folder(path: Any, *, make: bool = False) -> Iterator[int]:
    """The folder's descriptor, to open files in it by `dir_fd`. Raises OSError.

    `make`: also makes missing folders of the path, which only this user may access.
    """
    opened = _walked(os.fspath(path), _FOLDER, make=make)
    try:
        yield opened
    finally:
        os.close(opened)


def open_file(path: Any, flags: int) -> int:
    """Opens an existing regular file. Raises OSError."""
    opened = _walked(os.fspath(path), flags | os.O_NONBLOCK)  # a FIFO would wait for its other end
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))
    return opened


def create(at: int, name: str, mode: int = 0o600) -> int:
    """Creates a file in a folder, to read and write. Raises OSError; FileExistsError if the name exists."""
    return os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | _NEVER, mode, dir_fd=at)


def replace(at: int, name: str, content: bytes, owner: tuple[int, int] | None = None) -> None:
    """Replaces a file in a folder atomically; only its owner can read it. Raises OSError."""
    new = f".{name}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new, dir_fd=at)
    try:
        with os.fdopen(create(at, new), "wb") as file:
            file.write(content)
            if owner is not None:
                os.fchown(file.fileno(), *owner)
        os.rename(new, name, src_dir_fd=at, dst_dir_fd=at)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(new, dir_fd=at)
        raise


def _walked(path: str, flags: int, *, make: bool = False) -> int:
    """`flags`: how the last part is opened. Raises OSError."""
    left, links = _parts(path), 0
    here = os.open("/" if path.startswith("/") else ".", _FOLDER | os.O_CLOEXEC)
    try:
        while left:
            name = left.pop()
            target = _target(here, name)
            if not target:
                below = _below(here, name, _FOLDER if left else flags, make=make)
            else:
                links += 1
                _follow(here, name, path, links)
                left += _parts(target)
                below = os.open("/" if target.startswith("/") else ".", _FOLDER | os.O_CLOEXEC, dir_fd=here)
            os.close(here)
            here = below
    except BaseException:
        os.close(here)
        raise
    return here


def _parts(path: str) -> list[str]:
    return [one for one in reversed(path.split("/")) if one not in {"", "."}]


def _target(here: int, name: str) -> str:
    """The target of a link; "" for any other file, or a missing one."""
    try:
        return os.readlink(name, dir_fd=here)
    except OSError:
        return ""


def _follow(here: int, name: str, path: str, links: int) -> None:
    """Raises OSError if the link must not be followed."""
    if links > _MOST_LINKS or not _administered(here):
        raise OSError(errno.ELOOP, f"{name} in it is a link that a user other than root may have made", path)


def _below(here: int, name: str, flags: int, *, make: bool) -> int:
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=here)
    return os.open(name, flags | _NEVER, dir_fd=here)


def _administered(here: int) -> bool:
    """Whether only root, or this process's own user, may write into a folder."""
    found = os.fstat(here)
    return found.st_uid in {0, os.geteuid()} and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
