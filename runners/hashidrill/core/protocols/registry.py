"""Finds faults, loads, probes and hypotheses by the name that YAML uses.

A room of faults or loads is a package: each class in it that declares `kind: ClassVar[str] = "NAME"` is found, and
listed nowhere else. Other packages add theirs through the entry-point groups `hashidrill.services`, `hashidrill.faults`
and `hashidrill.loads`. Hypotheses are functions in the files of a `hypotheses/` folder.
"""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from hashidrill.core.errors import UnknownNameError, UsageError

CLIENT = "client"
"""The kind of load that a client is; an experiment writes it under `clients:`, not under `load:`."""
_FAULTS, _LOADS = "hashidrill.faults", "hashidrill.loads"
_FAULT_ROOMS = ("hashidrill.core.faults", "hashidrill.kubernetes.chaos_mesh", "hashidrill.kubernetes.litmus")
"""The rooms of the faults of any host; a service says its own."""
_KIND = re.compile(r'^    kind: ClassVar\[str\] = "([^"]+)"$', re.MULTILINE)
_SERVICE_MODULES = (
    "hashidrill.products.consul.service",
    "hashidrill.products.nomad.service",
    "hashidrill.products.vault.service",
    "hashidrill.products.sample.service",
    "hashidrill.kubernetes.lab_plane.service",
)


_PROTOCOLS = {
    _FAULTS: ("Fault", "hashidrill.core.faults.base.BaseFault"),
    _LOADS: ("Load", "hashidrill.core.loads.base.BaseLoad"),
}
"""Entry-point group to the protocol in hashidrill.core.protocols.abc, and to the class that has most of it."""


def near(name: str, names: Iterable[str]) -> str:
    """`did you mean X?` when something is near, else the list of all names."""
    known = sorted(names)
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(close)}?" if close else f"there are: {', '.join(known) or 'none'}"


def faults() -> dict[str, Any]:
    """Every fault class by its kind. Imports all of them."""
    return {kind: _find(_FAULTS, kind) for kind in fault_kinds()}


def loads() -> dict[str, Any]:
    """Every load class by its kind. Imports all of them."""
    return {kind: _find(_LOADS, kind) for kind in load_kinds()}


def fault_kinds() -> list[str]:
    """The kinds of all faults. Imports none of the built-in ones."""
    return list(_modules(_FAULTS) | _others(_FAULTS))


def load_kinds() -> list[str]:
    """The kinds of all loads. Imports none of the built-in ones."""
    return list(_modules(_LOADS) | _others(_LOADS))


@cache
def services() -> dict[str, Any]:
    """Every service class by its name: ours, then those of installed packages. Raises UsageError for a broken one."""
    found = {cls.name: cls for module in _SERVICE_MODULES for cls in importlib.import_module(module).SERVICES}
    for entry in _installed().select(group="hashidrill.services"):
        cls = _loaded(entry)
        if lacking := [name for name in ("name", "Spec", "places", "agent") if not hasattr(cls, name)]:
            said = f"the service {entry.value} (entry point of hashidrill.services) lacks {', '.join(lacking)}"
            raise UsageError(f"{said}; build it on hashidrill.core.protocols.service.BaseService")
        found[cls.name] = cls
    return found


def fault(kind: str) -> Any:
    """The fault class; only its module is imported. Raises UnknownNameError with near names."""
    return _get("fault", kind, _FAULTS)


def load(kind: str) -> Any:
    """The load class; only its module is imported. Raises UnknownNameError with near names."""
    return _get("load", kind, _LOADS)


def traffic(kind: str) -> Any:
    """What the load generator runs: a load's class, or that of the clients, which have no kind in YAML."""
    if kind == CLIENT:
        return importlib.import_module("hashidrill.core.loads.clients").ClientLoad
    return load(kind)


def _get(noun: str, kind: str, group: str) -> Any:
    known = _modules(group) | _others(group)
    if kind not in known:
        raise UnknownNameError(f"there is no {noun} {kind!r}: {near(kind, known)}")
    return _find(group, kind)


def _find(group: str, kind: str) -> Any:
    """A class of an entry point goes before a built-in one of that kind."""
    others = _others(group)
    if kind in others:
        return others[kind]
    name = _modules(group)[kind]
    try:
        members = vars(importlib.import_module(name)).values()
        return next(cls for cls in members if isinstance(cls, type) and vars(cls).get("kind") == kind)
    except (ImportError, StopIteration) as error:
        why = f": {error}" if str(error) else ""
        raise UsageError(f"{kind} should be a class of the module {name}, and is not{why}") from None


@cache
def _modules(group: str) -> dict[str, str]:
    """The module of each kind that is built in, or that a service brings."""
    modules: dict[str, str] = {}
    if group == _FAULTS:
        for room in _FAULT_ROOMS:
            modules |= kinds_in(room)
    for service in services().values():
        modules |= service.faults if group == _FAULTS else service.loads
    return modules


def kinds_in(room: str) -> dict[str, str]:
    """The module of each kind that the modules of a package declare. It reads their text and imports none of them."""
    folder = Path(importlib.import_module(room).__path__[0])
    return {
        kind: f"{room}.{path.stem}" for path in sorted(folder.glob("*.py")) for kind in _KIND.findall(path.read_text())
    }


@cache
def _others(group: str) -> dict[str, Any]:
    """The classes of installed entry points: only a class itself knows its kind."""
    classes = [_whole(group, entry.value, _loaded(entry)) for entry in _installed().select(group=group)]
    return {cls.kind: cls for cls in classes}


@cache
def _installed() -> Any:
    """The entry points of all distributions, with `select(group=)`. To find one group takes as long as to find all."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - not every command asks for a kind or a service

    return entry_points()


def _loaded(entry: Any) -> Any:
    """What an entry point names. Raises UsageError when it cannot be imported, whatever it raises."""
    try:
        return entry.load()
    except Exception as error:  # noqa: BLE001 - it is another package's code
        said = f"the plug-in {entry.value} (entry point {entry.name!r} of {entry.group}) cannot be imported"
        raise UsageError(f"{said}: {type(error).__name__}: {error}; fix or uninstall it") from None


def _whole(group: str, where: str, cls: Any) -> Any:
    """A class of another package. Raises UsageError when it has not all that a fault or a load says of itself."""
    from hashidrill.core.protocols import abc  # noqa: PLC0415 - only plug-ins are looked at

    protocol, base = _PROTOCOLS[group]
    members = {**vars(getattr(abc, protocol)), **getattr(abc, protocol).__annotations__}
    if lacking := sorted(name for name in members.keys() - dir(cls) if not name.startswith("_")):
        noun = protocol.lower()
        raise UsageError(f"the {noun} {where} (entry point of {group}) lacks {', '.join(lacking)}; build it on {base}")
    return cls
