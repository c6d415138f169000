"""A folder that only this process and what it starts can see: the recording of a game that is on.

A mount namespace of its own with a file system in memory. Whoever may become root on the machine can still enter it,
or read the memory of the processes: that is said in playbooks/training.md, and a shell of the game has no such rights.
"""

from __future__ import annotations

import os
from pathlib import Path

from hashidrill.errors import MachineError
from hashidrill.sandbox import syscalls as sc

_SIZE = "512m"


def seal(folder: Path) -> None:
    """From now on, what is written below `folder` is in memory, and nobody else sees it. Call it with one thread.

    Raises MachineError where the kernel refuses.
    """
    uid, gid = os.geteuid(), os.getegid()
    try:
        if uid == 0:
            sc.unshare(sc.CLONE_NEWNS)
        else:  # under its own number: what it starts is the same user as ever
            sc.unshare(sc.CLONE_NEWNS | sc.CLONE_NEWUSER)
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
            Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
        sc.mount("none", "/", "", sc.MS_REC | sc.MS_PRIVATE)
        sc.mount("game", str(folder), "tmpfs", sc.MS_NOSUID | sc.MS_NODEV, f"mode=700,size={_SIZE}")
    except OSError as error:
        raise MachineError(
            f"the kernel refuses a place that the trainee cannot see: {error.strerror}; `hashidrill doctor` shows what"
            " a sandbox needs"
        ) from None
