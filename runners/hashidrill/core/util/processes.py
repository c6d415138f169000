"""Starts hashidrill's modules in other processes; the priority and user of this one. Imports only the standard
library.
"""

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hashidrill


def boot_command(module: str, spec: Mapping[str, Any]) -> list[str]:
    """The command line that runs a hashidrill module without site-packages: it starts in some 30 ms."""
    source = str(Path(hashidrill.__file__).parents[1])
    boot = (
        f"import sys; sys.path.insert(0, {source!r}); import runpy; runpy.run_module({module!r}, run_name='__main__')"
    )
    return [sys.executable, "-I", "-S", "-c", boot, json.dumps(spec)]


def python_path() -> str:
    """PYTHONPATH for hashidrill in another process: this copy first, then the user's value."""
    there = os.environ.get("PYTHONPATH")
    return os.pathsep.join([str(Path(hashidrill.__file__).parents[1]), *([there] if there else [])])


SOONER = -10
"""Niceness for processes that keep time: half of the 20 steps above the ordinary."""
_AUTOGROUP = Path("/proc/self/autogroup")


def ahead() -> None:
    """Raises this process's priority, if the user may (root may); its children keep the ordinary one.

    Otherwise a measuring process would measure its own waiting when the measured one takes every core. If the kernel
    shares the processor among sessions first (autogroups), niceness only counts within a session; a session leader
    moves its session as a whole.
    """
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, 0, SOONER)
        if os.getsid(0) == os.getpid():
            _AUTOGROUP.write_text(f"{SOONER}\n")


ALL_USERS = Path("/proc/self/uid_map")
_FIRST_IDS = ["0", "0", "4294967295"]


def is_machine_root() -> bool:
    """In a user namespace of an unprivileged user, number 0 is that user, and no other user exists to switch to."""
    try:
        return os.geteuid() == 0 and ALL_USERS.read_text().split() == _FIRST_IDS
    except OSError:
        return False
