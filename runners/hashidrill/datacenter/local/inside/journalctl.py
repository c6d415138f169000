"""`journalctl -u UNIT [-n LINES]` on a host of ours: the last lines of an agent's log."""

from __future__ import annotations

import sys

from hashidrill.datacenter.local.inside.systemctl import last_lines

_LINES = 1000
_WITH_VALUE = {"-u": "unit", "--unit": "unit", "-n": "lines", "--lines": "lines", "-S": "", "--since": "", "-g": ""}


def main(words: list[str], *, socket: str, logs: str) -> int:  # noqa: ARG001 - as systemctl is called
    """Prints what `-u` names; what it does not know of (`--since`) it leaves out."""
    found = {"unit": "", "lines": str(_LINES)}
    rest = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    for word, value in zip(rest, [*rest[1:], ""], strict=True):
        if name := _WITH_VALUE.get(word):
            found[name] = value
    if not found["unit"] or not found["lines"].isdecimal():
        sys.stderr.write("journalctl: this host knows: journalctl -u UNIT [-n LINES] [--no-pager]\n")
        return 1
    unit = found["unit"].removesuffix(".service")
    if "/" in unit:  # a path: files elsewhere are no business of whoever is on call
        sys.stderr.write(f"journalctl: {unit}: no such unit\n")
        return 1
    sys.stdout.writelines(last_lines(f"{logs}/{unit}.log", int(found["lines"])))
    return 0
