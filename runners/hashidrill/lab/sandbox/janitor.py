"""Cleans up after a run, however its runner ended.

It holds the read end of a pipe whose write end only the runner holds, so end of file means that the runner has ended.
It then waits until the sandbox's first process ends (the kernel ends the other processes with it), and removes the
run's own directory and cgroups.

    janitor '{"root": "/var/tmp/hashidrill-...", "pid_file": "..."}' < pipe
"""

import contextlib
import glob
import json
import os
import select
import shutil
import sys
import time
from typing import Any

from hashidrill.lab.sandbox.cgroups import give_back

_GROUPS = ("/sys/fs/cgroup", *(f"/sys/fs/cgroup/{v1}" for v1 in ("cpu", "cpu,cpuacct", "memory")))
_GIVE_UP_S = 30.0
_GAP_S = 0.02


def main(spec: dict[str, Any]) -> None:
    """Returns once everything is removed, or after 30 s."""
    pidfd = None
    while select.select([sys.stdin], [], [], None if pidfd is not None else _GAP_S)[0] == [] or os.read(0, 64):
        pidfd = pidfd if pidfd is not None else _open(spec["pid_file"])
    pidfd = pidfd if pidfd is not None else _open(spec["pid_file"])
    if pidfd is not None:
        select.select([pidfd], [], [], _GIVE_UP_S)
    deadline = time.monotonic() + _GIVE_UP_S
    while not _removed(spec["root"]) and time.monotonic() < deadline:
        select.select([], [], [], _GAP_S)
    give_back()


def _open(pid_file: str) -> int | None:
    """A pidfd of the sandbox's first process, once its pid is known; it never means another process."""
    try:
        with open(pid_file) as file:  # noqa: PTH123 - no pathlib here
            return os.pidfd_open(int(file.read()))
    except (OSError, ValueError):
        return None


def _removed(root: str) -> bool:
    name = os.path.basename(root)  # noqa: PTH119 - no pathlib here
    for pattern in _GROUPS:
        for group in (*glob.glob(f"{pattern}/{name}/*/"), f"{pattern}/{name}"):  # noqa: PTH207 - no pathlib here
            with contextlib.suppress(OSError):
                os.rmdir(group)  # noqa: PTH106 - no pathlib here
    shutil.rmtree(root, ignore_errors=True)
    left = [root, *(f"{place}/{name}" for place in _GROUPS)]
    return not any(os.path.exists(path) for path in left)  # noqa: PTH110 - no pathlib here


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
