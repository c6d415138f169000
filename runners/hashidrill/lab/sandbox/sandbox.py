"""Enters a sandbox from outside: its directory, its first process, and the janitor that cleans up after both."""

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hashidrill.core.errors import MachineError
from hashidrill.core.util.files import held_by_us, private
from hashidrill.core.util.processes import boot_command
from hashidrill.core.util.safe_json import parse

NAME_PREFIX = "hashidrill-"
_JANITOR_WITHIN_S = 40.0
_LONGEST_SOCKET_PATH = 107


def work_parent() -> Path:
    """The folder for sandboxes' data: /var/tmp, which is on a real disk, unless `HASHIDRILL_WORK` names another."""
    named = os.environ.get("HASHIDRILL_WORK")
    if named:
        return Path(named)
    var_tmp = Path("/var/tmp")  # noqa: S108 - a directory with a random name is made in it, mode 0700
    return var_tmp if os.access(var_tmp, os.W_OK) else Path(tempfile.gettempdir())


@contextlib.contextmanager
def handed_over(given: Mapping[str, Any] | int | None) -> Iterator[int]:
    """A file descriptor with `given`, only in memory, for the standard input of a process that calls `read_given`. If
    `given` is a descriptor, it is used unchanged.
    """
    if given is None or isinstance(given, int):
        yield subprocess.DEVNULL if given is None else given
        return
    fd = os.memfd_create("hashidrill-given")
    try:
        with os.fdopen(os.dup(fd), "wb") as file:
            file.write(json.dumps(given).encode())
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)


def read_given() -> dict[str, Any]:
    """The data that the starting process handed over; this process's children cannot read it again."""
    given: dict[str, Any] = parse(sys.stdin.buffer.read())
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return given


@dataclass
class Sandbox:
    """A started sandbox: `process` ends with it."""

    root: Path
    process: subprocess.Popen[bytes]

    @property
    def output(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout


@contextlib.contextmanager
def sandbox(
    command: Sequence[str], environment: Mapping[str, str], log: Path, *, given: Mapping[str, Any] | int | None = None
) -> Iterator[Sandbox]:
    """Runs `command` in new namespaces; `{root}` in it stands for the sandbox's directory. Its output is a pipe.

    `given` is JSON on its standard input (`read_given`), because every user sees a command line. At the end of the
    block, the sandbox and its directory are removed, even when this process is killed. Raises MachineError.
    """
    root = _new_root()
    pid_file = str(root / "pid")
    read_end, write_end = os.pipe()
    # the janitor starts before there is anything to clean up
    janitor = subprocess.Popen(
        boot_command("hashidrill.lab.sandbox.janitor", {"root": str(root), "pid_file": pid_file}),
        stdin=read_end,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(read_end)
    process: subprocess.Popen[bytes] | None = None
    held = -1
    try:
        held = _make(root)
        with handed_over(given) as stdin, private(log, "ab") as errors:
            spec = {
                "command": [part.replace("{root}", str(root)) for part in command],
                "environment": dict(environment),
                "parent": os.getpid(),
                "pid_file": pid_file,
            }
            process = subprocess.Popen(
                boot_command("hashidrill.lab.sandbox.init", spec),
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        yield Sandbox(root, process)
    finally:
        if process is not None:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        os.close(write_end)
        if held >= 0:
            os.close(held)
        try:
            janitor.wait(_JANITOR_WITHIN_S)
        except subprocess.TimeoutExpired:
            janitor.kill()
            janitor.wait()


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for this process, removed afterwards, or by `hashidrill heal` if this process was killed.

    Raises MachineError.
    """
    root = _new_root()
    held = _make(root)
    try:
        (root / "pid").write_text(str(os.getpid()))  # shows that this sandbox is not one that is just starting
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)
        os.close(held)


def _new_root() -> Path:
    root = work_parent() / f"{NAME_PREFIX}{secrets.token_hex(4)}"
    if len(str(root / "s" / "consul-9.canary.new")) > _LONGEST_SOCKET_PATH:
        raise MachineError(f"{root.parent}: too long a path for Unix sockets; set HASHIDRILL_WORK to a shorter one")
    return root


def _make(root: Path) -> int:
    """Makes the directory. Returns it open and locked: `heal` in another container sees the lock, but not the pids."""
    try:
        root.mkdir(mode=0o700, parents=True)
        held = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise MachineError(
            f"{root.parent}: no directory for the datacenter's data can be made there: {error.strerror}; "
            "set HASHIDRILL_WORK to your own directory on a real disk"
        ) from None
    held_by_us(held)
    return held
