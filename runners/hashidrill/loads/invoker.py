"""Runs clients under test as the user who called sudo, and not as root.

Root is needed for hosts and rules, and not for a client: under sudo its command is that user's own, with that user's
rights and files. Without sudo, root has called us, and there is nobody else whose files the command could read.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping, Sequence
from pathlib import Path

from hashidrill.provision import packages

_ALL_USERS = Path("/proc/self/uid_map")
_FIRST_IDS = ["0", "0", "4294967295"]


def as_invoker(command: Sequence[str], environment: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """The command and environment to start: unchanged where nobody called sudo, or where setpriv is missing."""
    uid, gid = environment.get("SUDO_UID", ""), environment.get("SUDO_GID", "")
    setpriv = packages.tool("setpriv")
    if not (_is_root() and uid.isdecimal() and gid.isdecimal() and int(uid) and setpriv):
        return list(command), dict(environment)
    rights = ["--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"]
    try:
        account = pwd.getpwuid(int(uid))
    except KeyError:
        groups, own = "--clear-groups", {}
    else:
        groups = "--init-groups"
        own = {"HOME": account.pw_dir, "USER": account.pw_name, "LOGNAME": account.pw_name}
    start = [setpriv, f"--reuid={uid}", f"--regid={gid}", groups, *rights, "--"]
    return [*start, *command], {**environment, **own}


def _is_root() -> bool:
    """Of the machine: in a user namespace of an ordinary user, 0 is that user, and there is nobody to become."""
    try:
        return os.geteuid() == 0 and _ALL_USERS.read_text().split() == _FIRST_IDS
    except OSError:
        return False
