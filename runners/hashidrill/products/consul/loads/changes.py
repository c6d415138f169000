"""When a change was sent, written into the change itself: whoever is told of it can say how long that took.

Loads that change things put a mark into what they write (a KV value, a service's metadata, a check's output); loads
that watch look for the newest mark in what they are told. The times are the run's clock, which all of them share.
"""

from __future__ import annotations

import re

_MARK = re.compile(rb"@hd([0-9]{1,19})@")


def mark(sent_ns: int) -> str:
    """What goes into a change that is sent at that moment of the run's clock."""
    return f"@hd{sent_ns}@"


def newest_ns(told: bytes) -> int:
    """When the newest change in there was sent; 0 when there is no mark in it."""
    return max((int(found) for found in _MARK.findall(told)), default=0)
