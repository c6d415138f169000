"""Finds system tools; runs short commands for their output, with a time limit and no secrets in their environment."""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from hashidrill.core.errors import MachineError
from hashidrill.core.util.redaction import without_secrets

SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")
"""Where tc and iptables live; Debian leaves these folders out of ordinary users' PATH."""


def tool(name: str) -> str | None:
    """The path of a system tool, in PATH or in the folders for system tools; None if it is not installed."""
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(SYSTEM_FOLDERS))


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Answer:
    """The exit code, and standard output and error without colours."""

    code: int
    output: str
    error: str

    @property
    def words(self) -> str:
        """The whole output, without empty lines."""
        lines = [line.rstrip() for line in f"{self.output}\n{self.error}".splitlines() if line.strip()]
        return "\n".join(lines)


def ask(command: Sequence[str], *, within_s: float = 30.0) -> Answer:
    """Runs a command. Raises MachineError if it does not start, or does not end within `within_s`."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            timeout=within_s,
            check=False,
            stdin=subprocess.DEVNULL,
            env=without_secrets(os.environ),
            encoding="utf-8",
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        raise MachineError(f"`{' '.join(command[:3])}` gave no answer within {within_s:g}s; run it by hand") from None
    except OSError as error:
        raise MachineError(f"{command[0]} cannot be run: {error.strerror}") from None
    return Answer(done.returncode, _COLOUR.sub("", done.stdout), _COLOUR.sub("", done.stderr))
