"""Durations of earlier work on this machine, for progress lines like `2 min of about 6 min`.

A build of Consul, or the start of a datacenter, has no planned length. `$XDG_STATE_HOME/hashidrill/durations.json`
keeps the last few durations of each, in seconds. A run's length follows from its experiment
(hashidrill.lab.runs.rounds.expected_s).
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from hashidrill.core.util.files import private_folder, write_whole
from hashidrill.core.util.folders import state_folder
from hashidrill.core.util.safe_json import parse

_NAME = "durations.json"
_LAST = 5
_MOST = 500
"""The file keeps the durations of this many kinds of work, and drops the kinds measured longest ago."""


def usual_s(what: str) -> float | None:
    """The median of the last few durations; None if this work was never timed here."""
    took = sorted(_read().get(what, ()))
    return took[len(took) // 2] if took else None


@contextlib.contextmanager
def timed(what: str, *, now_s: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Records how long the block takes, unless it raises. Ignores a state folder that cannot be written."""
    began_s = now_s()
    yield
    known = _read()
    known[what] = [*known.pop(what, ()), round(now_s() - began_s, 1)][-_LAST:]
    with contextlib.suppress(OSError):
        private_folder(state_folder())
        write_whole(state_folder() / _NAME, json.dumps(dict([*known.items()][-_MOST:])) + "\n")


def _read() -> dict[str, list[float]]:
    try:
        found: Any = parse((state_folder() / _NAME).read_bytes())
        return {str(what): [float(each) for each in took] for what, took in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def so_far(took_s: float, expected_s: float | None = None) -> str:
    """`2 min 5 s of about 6 min`; without an estimate `2 min 5 s`. Says so if the estimate is already exceeded."""
    took = shown(took_s)
    if expected_s is None:
        return took
    grain_s = 1 if expected_s < 10 else 5 if expected_s < 60 else 10 if expected_s < 300 else 60
    about_s = grain_s * max(round(expected_s / grain_s), 1)
    return f"{took} of about {shown(about_s)}" if took_s <= about_s else f"{took}, expected: about {shown(about_s)}"


def shown(seconds: float) -> str:
    """A duration in whole seconds, or minutes from 1 h on: `12 s`, `2 min 5 s`, `6 min`, `1 h 3 min`."""
    whole = round(seconds)
    parts = ((whole // 3600, "h"), (whole % 3600 // 60, "min"), (whole % 60 if whole < 3600 else 0, "s"))
    return " ".join(f"{number} {unit}" for number, unit in parts if number) or "0 s"
