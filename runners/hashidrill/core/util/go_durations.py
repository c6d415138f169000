"""Durations as Go writes them: `1m2.5s`, `250ms`, `0s`."""

import re

_PART = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|s|us|µs|ns)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


def seconds(text: str) -> float | None:
    """The duration in seconds; None if the text is not a duration."""
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return round(sum(float(number) * _SECONDS[unit] for number, unit in parts), 9)
