"""Runs of a client as the tap would have recorded them, from plain calls. Times are seconds."""

from hashidrill.core.tap.attempts import Attempt, Run

_NS = 1_000_000_000


def attempt(start=0.0, *, end=None, **about):
    about = {"connection": 1, "method": "GET", "path": "/v1/kv/x", **about}
    return Attempt(round(start * _NS), round((start if end is None else end) * _NS), **about)


def run(*attempts, ok=True, ended=True, start=0.0, end=None, **about):
    last = max((a.end_ns for a in attempts), default=0)
    return Run(attempts, ok, ended, round(start * _NS), last if end is None else round(end * _NS), **about)


def tried(gaps, *, fault="503", ok=False, **about):
    """An operation that failed at first and after each of these gaps."""
    starts = [sum(gaps[:count]) for count in range(len(gaps) + 1)]
    return run(*(attempt(start, fault=fault, **about) for start in starts), ok=ok)


def recovered(fault="503", *, attempts=2, ok=True, **about):
    """An operation whose last attempt passed."""
    failed = [attempt(number * 0.1, fault=fault, **about) for number in range(attempts - 1)]
    passed = {**about, "status": 200, "upstream": True}
    return run(*failed, attempt(attempts * 0.1, **passed), ok=ok)
