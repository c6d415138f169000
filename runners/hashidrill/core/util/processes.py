"""Starts hashidrill's modules as processes; this process's user and priority. Imports only the standard library."""

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hashidrill


def boot_command(module: str, spec: Mapping[str, Any]) -> list[str]:
    """The command line that runs a hashidrill module without site-packages, so that it starts in some 30 ms."""
    source = str(Path(hashidrill.__file__).parents[1])
    boot = (
        f"import sys; sys.path.insert(0, {source!r}); import runpy; runpy.run_module({module!r}, run_name='__main__')"
    )
    return [sys.executable, "-I", "-S", "-c", boot, json.dumps(spec)]


def python_path() -> str:
    """The PYTHONPATH for hashidrill in another process: this copy first, then the user's value."""
    there = os.environ.get("PYTHONPATH")
    return os.pathsep.join([str(Path(hashidrill.__file__).parents[1]), *([there] if there else [])])


SOONER = -10
"""The niceness of processes that keep time: half of the 20 steps above the usual priority."""
_AUTOGROUP = Path("/proc/self/autogroup")


def ahead() -> None:
    """Raises this process's priority, if the user may do that (root may); its children keep the usual priority.

    Without it, a process that measures would measure its own waits while the measured process uses every core. If the
    kernel first shares the processor among sessions (autogroups), niceness only counts within a session; a session
    leader raises the priority of its whole session.
    """
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, 0, SOONER)
        if os.getsid(0) == os.getpid():
            _AUTOGROUP.write_text(f"{SOONER}\n")


ALL_USERS = Path("/proc/self/uid_map")
_FIRST_IDS = ["0", "0", "4294967295"]


def is_machine_root() -> bool:
    """Whether this process is root outside of user namespaces: in one, user id 0 may be an unprivileged user."""
    try:
        return os.geteuid() == 0 and ALL_USERS.read_text().split() == _FIRST_IDS
    except OSError:
        return False
