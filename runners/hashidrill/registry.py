"""Finds faults, loads, probes and hypotheses by the name that YAML uses.

Built-in kinds are listed here; other packages add theirs through the entry-point groups `hashidrill.faults` and
`hashidrill.loads`. Hypotheses are functions in the files of a `hypotheses/` folder.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from hashidrill.errors import UnknownNameError

CLIENT = "client"
"""The kind of load that a client is; an experiment writes it under `clients:`, not under `load:`."""
_FAULT_MODULES = (
    "faults.noop", "faults.disk", "faults.process", "faults.cpu", "faults.network", "faults.toxics",
    "services.consul.faults.config", "services.consul.faults.leader", "services.consul.faults.agent",
    "services.consul.faults.streams", "services.consul.faults.sessions", "services.consul.faults.kv",
    "services.consul.faults.snapshot", "services.consul.faults.raft", "faults.tap",
)  # fmt: skip
_LOAD_MODULES = tuple(
    f"services.consul.loads.{name}" for name in ("kv", "cas", "locks", "checks", "views", "churn", "watch", "streams")
)


def near(name: str, names: Iterable[str]) -> str:
    """`did you mean X?` when something is near, else the list of all names."""
    known = sorted(names)
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(close)}?" if close else f"there are: {', '.join(known) or 'none'}"


@cache
def faults() -> dict[str, Any]:
    """Every fault class by its kind."""
    return _collect("hashidrill.faults", _FAULT_MODULES)


@cache
def loads() -> dict[str, Any]:
    """Every load class by its kind."""
    return _collect("hashidrill.loads", _LOAD_MODULES)


def fault(kind: str) -> Any:
    """The fault class. Raises UnknownNameError with near names."""
    return _get("fault", kind, faults())


def load(kind: str) -> Any:
    """The load class. Raises UnknownNameError with near names."""
    return _get("load", kind, loads())


def traffic(kind: str) -> Any:
    """What the load process runs: a load's class, or that of the clients, which have no kind in YAML."""
    if kind == CLIENT:
        return importlib.import_module("hashidrill.loads.clients").Client
    return load(kind)


def _get(noun: str, kind: str, known: dict[str, Any]) -> Any:
    if kind not in known:
        raise UnknownNameError(f"there is no {noun} {kind!r}: {near(kind, known)}")
    return known[kind]


def _collect(group: str, modules: Iterable[str]) -> dict[str, Any]:
    """Classes listed in each module's KINDS, then those of installed entry points."""
    kinds: dict[str, Any] = {}
    for module in modules:
        for cls in importlib.import_module(f"hashidrill.{module}").KINDS:
            kinds[cls.kind] = cls
    for entry in entry_points(group=group):
        cls = entry.load()
        kinds[cls.kind] = cls
    return kinds
