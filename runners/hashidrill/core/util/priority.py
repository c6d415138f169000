"""As root, raises the scheduling priority of engine and loads, so that a busy machine does not inflate latencies."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

SOONER = -10
"""Niceness of what keeps time: half of the 20 steps that there are above the ordinary."""
_AUTOGROUP = Path("/proc/self/autogroup")


def ahead() -> None:
    """Put this process before ordinary ones, where the user may ask for that (root may); its children stay behind.

    What measures would otherwise measure its own waiting, when what it measures takes every core. Where the kernel
    shares the processor among sessions first (autogroups), niceness says nothing beyond its own session; a process
    that leads one moves it as a whole.
    """
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, 0, SOONER)
        if os.getsid(0) == os.getpid():
            _AUTOGROUP.write_text(f"{SOONER}\n")
