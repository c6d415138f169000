"""Waiting for what comes by itself."""

import time


def wait(what, check, within_s=30.0, gap_s=0.02):
    """The first true answer of `check`; fails where none comes within that time."""
    deadline = time.monotonic() + within_s
    while not (found := check()):
        assert time.monotonic() < deadline, f"waited {within_s:g}s for {what}; last seen: {found!r}"
        time.sleep(gap_s)
    return found
