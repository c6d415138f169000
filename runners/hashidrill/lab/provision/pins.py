"""Adds the pins (checksums) of a version's archives. For maintainers, on a machine with network access.

    python -m hashidrill.lab.provision.pins consul 1.23.0

It downloads the archives for amd64 and arm64, checks them against the vendor's own list, and appends their
checksums. The vendor's list comes from the same server as the archives: compare it with another source before you
commit.
"""

import sys
import tempfile
from pathlib import Path

from hashidrill.lab.provision import archive
from hashidrill.lab.provision.products import product_named

ARCHITECTURES = ("amd64", "arm64")


def main(name: str, version: str) -> None:
    """Appends the pins of one version. Raises BinaryError, WayError."""
    lines = []
    with tempfile.TemporaryDirectory(prefix="hashidrill-pins-") as work:
        for arch in ARCHITECTURES:
            path, sha256 = archive.measured(product_named(name), version, arch, Path(work), _say)
            if (known := archive.pinned(path)) is not None:
                _say(f"{path}: {'pinned already' if known == sha256 else f'PINNED AS {known}, BUT NOW HAS {sha256}'}")
            else:
                lines.append(f"{sha256}  {path}\n")
    with archive.pins_file().open("a") as file:
        file.writelines(lines)
    _say("".join(lines).rstrip() or "nothing was added")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
