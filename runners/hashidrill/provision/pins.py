"""The SHA-256 of release files that this package knows beforehand (pins.sha256, in the format of `sha256sum`).

Add a version, as a maintainer, on a machine with network:

    python -m hashidrill.provision.pins consul 1.23.0

It downloads the archives for amd64 and arm64, checks them against the vendor's own list, and appends what it measured.
The vendor's list comes from the same server as the archives: compare with another source before you commit.
"""

from __future__ import annotations

import re
import sys
import tempfile
from functools import cache
from importlib import resources
from pathlib import Path

_LINE = re.compile(r"([0-9a-f]{64})  (\S+)")
ARCHITECTURES = ("amd64", "arm64")


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
    return parse(_file().read_text())


def _file() -> Path:
    # wheels are always unpacked, so this is a file on disk
    return Path(str(resources.files("hashidrill.provision") / "pins.sha256"))


def pinned(path: str) -> str | None:
    """The SHA-256 that the file at this path below its vendor's base URL must have; None where it is not known."""
    return _known().get(path)


def main(name: str, version: str) -> None:
    """Append the pins of one version. Raises BinaryError, WayError."""
    from hashidrill.provision import archive as binaries_archive  # noqa: PLC0415 - it imports this module
    from hashidrill.provision.products import product_named  # noqa: PLC0415 - as above

    lines = []
    with tempfile.TemporaryDirectory(prefix="hashidrill-pins-") as work:
        for arch in ARCHITECTURES:
            path, sha256 = binaries_archive.measured(product_named(name), version, arch, Path(work), _say)
            if (known := pinned(path)) is not None:
                _say(f"{path}: {'pinned already' if known == sha256 else f'PINNED AS {known}, and is now {sha256}'}")
            else:
                lines.append(f"{sha256}  {path}\n")
    with _file().open("a") as file:
        file.writelines(lines)
    _say("".join(lines).rstrip() or "nothing was added")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
