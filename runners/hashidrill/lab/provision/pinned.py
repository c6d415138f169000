"""The SHA-256 of release files that this package knows beforehand (pins.sha256, in the format of `sha256sum`).

A maintainer adds a version with `python -m hashidrill.lab.provision.pins`.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from pathlib import Path

_LINE = re.compile(r"([0-9a-f]{64})  (\S+)")


def parse(text: str) -> dict[str, str]:
    """Path below the vendor's base URL -> SHA-256. Raises ValueError for a line that is neither a pin nor a comment."""
    pins: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None or match[2] in pins:
            raise ValueError(f"line {number}: expected `SHA256  PATH`, each path once, found {line!r}")
        pins[match[2]] = match[1]
    return pins


@cache
def _known() -> dict[str, str]:
    return parse(pins_file().read_text())


def pins_file() -> Path:
    # wheels are always unpacked, so this is a file on disk
    return Path(str(resources.files("hashidrill.lab.provision") / "pins.sha256"))


def pinned(path: str) -> str | None:
    """The SHA-256 that the file at this path below its vendor's base URL must have; None where it is not known."""
    return _known().get(path)
