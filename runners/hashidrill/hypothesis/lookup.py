"""Finds a hypothesis by its name: in the files that hold them, or where a judge says instead."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path

from hashidrill.hypothesis.files import Finder, collect
from hashidrill.hypothesis.marked import Hypothesis


def get(name: str, *, near_to: Path | None = None) -> Hypothesis:
    """The hypothesis of that name. Raises UnknownNameError with near names, UsageError for a file that does not load.

    `near_to` is the experiment file (or its folder): also searched is a `hypotheses/` folder next to it or above.
    Inside `looking_up`, only that lookup counts.
    """
    return getter(near_to)(name)


def getter(near_to: Path | None = None) -> Callable[[str], Hypothesis]:
    """`get` for all that one experiment names: the folders near it are looked at once, at the first."""
    finder = Finder(near_to)

    def of(name: str) -> Hypothesis:
        lookup = _lookup.get()
        return finder.find(name) if lookup is None else lookup(name)

    return of


_lookup: ContextVar[Callable[[str], Hypothesis] | None] = ContextVar("lookup", default=None)


@contextlib.contextmanager
def looking_up(lookup: Callable[[str], Hypothesis]) -> Iterator[None]:
    """Within this block, `get` returns what `lookup` finds, also for a hypothesis that asks for another one."""

    def alone(name: str) -> Hypothesis:
        token = _lookup.set(None)  # it may itself ask
        try:
            return lookup(name)
        finally:
            _lookup.reset(token)

    token = _lookup.set(alone)
    try:
        yield
    finally:
        _lookup.reset(token)


def all_hypotheses(*, near_to: Path | None = None) -> dict[str, Hypothesis]:
    """Every hypothesis by its name: the shipped ones, and a user's own, which win over shipped ones of that name."""
    return {name: each for name, each in collect(near_to).items() if not each.sides}


def all_comparisons(*, near_to: Path | None = None) -> dict[str, Hypothesis]:
    """Every comparison hypothesis by its name, as `all_hypotheses`."""
    return {name: each for name, each in collect(near_to).items() if each.sides}
