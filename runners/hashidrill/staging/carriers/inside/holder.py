"""Keeps a task of Nomad's there for as long as somebody renews it by SIGUSR1, and does nothing else.

What observes on a host, and what reverts from notes, is started in its allocation. It ends at SIGTERM and SIGINT, and
when nobody renews it: a runner that was killed leaves no task behind.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

_RENEWS, _STOPS = signal.SIGUSR1, (signal.SIGTERM, signal.SIGINT)


def main(told: dict[str, Any]) -> None:
    """`lease_s`: seconds without a renewal after which it ends. Exits with 0."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [_RENEWS, *_STOPS])
    os.write(1, json.dumps({"event": "ready", "python": sys.version.split()[0]}).encode() + b"\n")
    while True:
        came = signal.sigtimedwait([_RENEWS, *_STOPS], told["lease_s"])
        if came is None or came.si_signo in _STOPS:
            sys.exit(0)
