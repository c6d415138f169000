"""Whether the binary of a product that tests want is on this machine already, for scripts: the exit code says so.

python -m hashidrill.lab.provision.is_here nomad
"""

from __future__ import annotations

import sys

from hashidrill.core.errors import BinaryError
from hashidrill.lab.provision.binaries import locate
from hashidrill.lab.provision.products import AUDITED_VERSIONS, DEFAULT_VERSIONS, KUBERNETES_VERSIONS


def main(name: str) -> int:
    """0 when it is, 1 when it would have to be downloaded or built first."""
    version = dict(reversed((*DEFAULT_VERSIONS, *AUDITED_VERSIONS, *KUBERNETES_VERSIONS)))[name]
    try:
        return 0 if locate(name, version) is not None else 1
    except BinaryError:
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
