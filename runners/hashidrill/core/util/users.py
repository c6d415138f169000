"""Whether we are root of the whole machine, or only of a user namespace."""

from __future__ import annotations

import os
from pathlib import Path

ALL_USERS = Path("/proc/self/uid_map")
_FIRST_IDS = ["0", "0", "4294967295"]


def is_machine_root() -> bool:
    """In a user namespace of an ordinary user, 0 is that user, and there is no other user to become."""
    try:
        return os.geteuid() == 0 and ALL_USERS.read_text().split() == _FIRST_IDS
    except OSError:
        return False
