"""Finds a hypothesis by its name: in the files that hold them, or where a judge says instead."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path

from hashidrill.core.hypothesis.files import Finder, collect, folders_of
from hashidrill.core.hypothesis.marked import Hypothesis


def get(name: str, *, near_to: Path | None = None) -> Hypothesis:
    """The hypothesis of that name. Raises UnknownNameError with near names, UsageError for a file that does not load.

    `near_to` is an experiment file (or its folder) that the user runs: also searched are the `hypotheses/` folders next
    to it or above, and next to or above the working directory. Inside `looking_up`, only that lookup counts.
    """
    return getter(near_to)(name)


def getter(near_to: Path | None = None) -> Callable[[str], Hypothesis]:
    """`get` for all that one experiment names: the folders near it are looked at once, at the first."""
    finder = Finder(near_to or _near.get())

    def of(name: str) -> Hypothesis:
        lookup = _lookup.get()
        return finder.find(name) if lookup is None else lookup(name)

    return of


_near: ContextVar[Path | None] = ContextVar("near", default=None)


@contextlib.contextmanager
def near(path: Path) -> Iterator[None]:
    """Within this block, hypotheses near that path count where no other path is said: it plays experiments there."""
    token = _near.set(path)
    try:
        yield
    finally:
        _near.reset(token)


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


def all_hypotheses(*, near_to: Path | None = None, named: Path | None = None) -> dict[str, Hypothesis]:
    """Every hypothesis by its name: the shipped ones, and a user's own, which win over shipped ones of that name.

    One's own are those near an experiment that is run, or those of the folder that the user named.
    """
    return {name: each for name, each in collect(folders_of(near_to, named=named)).items() if not each.sides}


def all_comparisons(*, near_to: Path | None = None, named: Path | None = None) -> dict[str, Hypothesis]:
    """Every comparison hypothesis by its name, as `all_hypotheses`."""
    return {name: each for name, each in collect(folders_of(near_to, named=named)).items() if each.sides}
