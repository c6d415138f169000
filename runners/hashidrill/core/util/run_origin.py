"""The machine, boot, PID namespace and user of a run: the journal records them, and `heal` compares them."""

import hashlib
import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_UNKNOWN = ""
_ROOT = 0


def uptime_s() -> float:
    """Seconds since this machine booted, by a clock that cannot be set; the kernel dates processes by that clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def here() -> dict[str, str | int | float]:
    """`host`, `machine`, `boot` (the kernel's boot id), `pid_namespace` and `user` of this process, and `uptime_s`.

    `machine` is a digest of /etc/machine-id, which readers of a recording must not learn.
    """
    machine = _line("/etc/machine-id")
    return {
        "host": platform.node(),
        "machine": hashlib.sha256(f"hashidrill {machine}".encode()).hexdigest()[:16] if machine else _UNKNOWN,
        "boot": _line("/proc/sys/kernel/random/boot_id"),
        "pid_namespace": _link("/proc/self/ns/pid"),
        "user": os.geteuid(),
        "uptime_s": uptime_s(),
    }


def restarted(then: Mapping[str, Any]) -> bool:
    """Whether `then` was recorded on this machine before its last boot, so that no process from that time is left."""
    now = here()
    same = then.get("host") == now["host"] and then.get("machine") == now["machine"] != _UNKNOWN
    return same and bool(then.get("boot")) and then.get("boot") != now["boot"] != _UNKNOWN


def elsewhere(then: Mapping[str, Any]) -> str:
    """Why the processes of `then` cannot be found from here; "" if they can be found."""
    now = here()
    if not then.get("boot"):
        return "its journal does not say on which machine it ran: an older hashidrill wrote it"
    if then["boot"] != now["boot"] and not restarted(then):
        return f"it ran on another machine ({then.get('host')}): heal it there"
    if then["boot"] == now["boot"] and then.get("pid_namespace") != now["pid_namespace"]:
        return f"it ran in another container of this machine ({then.get('host')}), whose processes cannot be seen here"
    if then.get("user") != now["user"] != _ROOT:
        return f"it belongs to the user with the id {then.get('user')}, whose processes cannot be seen here"
    return ""


def _line(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return _UNKNOWN


def _link(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115 - a namespace is not a path
    except OSError:
        return _UNKNOWN
