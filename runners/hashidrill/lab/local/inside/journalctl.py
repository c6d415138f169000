"""`journalctl -u UNIT [-n LINES]` on a local host: the last lines of an agent's log.

`parse` reads the command line, as in hashidrill.lab.local.inside.systemctl.
"""

from __future__ import annotations

import getopt
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TextIO

from hashidrill.lab.local.inside.systemctl import MisusedError, last_lines, units_of

_LINES = 1000
_SHORT = "u:n:S:U:g:p:o:befqraxm"
_LONG = (
    "unit=",
    "lines=",
    "since=",
    "until=",
    "grep=",
    "priority=",
    "output=",
    "boot",
    "pager-end",
    "follow",
    "quiet",
    "reverse",
    "all",
    "catalog",
    "full",
    "no-pager",
    "no-hostname",
    "utc",
)
_KNOWS = "this host supports: journalctl -u UNIT [-n LINES] [--no-pager]"


@dataclass(frozen=True)
class Journalctl:
    """A parsed command line."""

    units: tuple[str, ...]
    """Without `.service`."""
    lines: int = _LINES


def parse(words: Iterable[str]) -> Journalctl:
    """Ignores options that this host does not support (`--since`, `-f`). Raises MisusedError."""
    try:
        options, rest = getopt.gnu_getopt([*words], _SHORT, _LONG)
    except getopt.GetoptError as error:
        raise MisusedError(f"journalctl: {error.msg}; {_KNOWS}") from None
    units = units_of(value for option, value in options if option in {"-u", "--unit"})
    counts = [value for option, value in options if option in {"-n", "--lines"}] or [str(_LINES)]
    if rest or not units or not (counts[-1].isascii() and counts[-1].isdecimal()):
        raise MisusedError(f"journalctl: {_KNOWS}")
    if outside := [unit for unit in units if not unit or "/" in unit]:  # a path would lead to files that are not logs
        raise MisusedError(f"journalctl: {outside[0]}: no such unit")
    return Journalctl(units, int(counts[-1]))


def main(words: list[str], *, socket: str, logs: str) -> int:
    """Prints the logs of the units that `-u` names."""
    try:
        asked = parse(words)
    except MisusedError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return run(asked, socket=socket, logs=logs)


def run(asked: Journalctl, *, socket: str, logs: str, out: TextIO | None = None, err: TextIO | None = None) -> int:  # noqa: ARG001 - as systemctl's
    """One unit's log after the other."""
    for unit in asked.units:
        (out or sys.stdout).writelines(last_lines(f"{logs}/{unit}.log", asked.lines) if asked.lines else [])
    return 0
