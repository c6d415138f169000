"""Runs clients under test as the user who called sudo, and not as root.

Root is needed for hosts and rules, and not for a client: under sudo its command is that user's own, with that user's
rights and files. Without sudo, root has called us, and there is nobody else whose files the command could read.
"""

from __future__ import annotations

import pwd
from collections.abc import Mapping, Sequence

from hashidrill.core.util.commands import tool
from hashidrill.core.util.processes import is_machine_root


def as_invoker(command: Sequence[str], environment: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """The command and environment to start: unchanged where nobody called sudo, or where setpriv is missing."""
    uid, gid = environment.get("SUDO_UID", ""), environment.get("SUDO_GID", "")
    setpriv = tool("setpriv")
    if not (is_machine_root() and uid.isdecimal() and gid.isdecimal() and int(uid) and setpriv):
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
