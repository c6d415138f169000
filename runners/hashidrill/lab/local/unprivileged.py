"""The user that agents run as when hashidrill runs as root: agents are under test, and must not own the machine.

Under sudo that is whoever called it, else `nobody`. An ordinary user's sandbox has no other user to offer, and neither
has a root without the capabilities to become another user and still see what that user's processes do. A data folder
below one that only root can enter (HASHIDRILL_WORK=/root/...) keeps agents root's as well.
"""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from hashidrill.core.util.processes import is_machine_root

_STATUS = Path("/proc/self/status")
_CHOWN, _DAC_OVERRIDE, _KILL, _SETGID, _SETUID, _SYS_PTRACE = 0, 1, 5, 6, 7, 19
_NEEDED = sum(1 << bit for bit in (_CHOWN, _DAC_OVERRIDE, _KILL, _SETGID, _SETUID, _SYS_PTRACE))
"""To hand files over, to become the user, and to go on signalling and watching its processes (capabilities(7))."""
_PASSABLE, _GROUP_ONLY = 0o711, 0o750
_OWNER_PASSES, _OTHERS_PASS = 0o100, 0o001


@dataclass(frozen=True)
class AgentUser:
    """Numbers of a user and its group."""

    uid: int
    gid: int

    def owns(self, path: Path) -> None:
        """Hand a file or folder over. Raises OSError."""
        os.chown(path, self.uid, self.gid)

    def reaches(self, root: Path, host: Path) -> None:
        """Lets the user into the folder `host` below `root`: it can pass the folders between, and list none of them.

        Others on the machine cannot enter `host`. Raises OSError.
        """
        for folder in (root, *reversed([parent for parent in host.parents if root in parent.parents])):
            folder.chmod(_PASSABLE)
        os.chown(host, -1, self.gid)
        host.chmod(_GROUP_ONLY)


def agent_user(root: Path) -> AgentUser | None:
    """The user for agents whose files are below `root`; None where they run as the user of the sandbox."""
    if not is_machine_root() or _NEEDED & ~_capabilities():
        return None
    user = _user()
    return user if user is not None and all(_passable(parent, user) for parent in root.parents) else None


def _passable(folder: Path, user: AgentUser) -> bool:
    status = folder.stat()
    owned = status.st_uid == user.uid
    return bool(status.st_mode & (_OWNER_PASSES if owned else _OTHERS_PASS))


def _user() -> AgentUser | None:
    uid, gid = os.environ.get("SUDO_UID", ""), os.environ.get("SUDO_GID", "")
    if uid.isdecimal() and gid.isdecimal() and int(uid):
        return AgentUser(int(uid), int(gid))
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        return None
    return AgentUser(nobody.pw_uid, nobody.pw_gid)


def _capabilities() -> int:
    """The effective set of this process; empty where it cannot be read."""
    try:
        [line] = [line for line in _STATUS.read_text().splitlines() if line.startswith("CapEff:")]
        return int(line.split()[1], 16)
    except (OSError, ValueError):
        return 0
