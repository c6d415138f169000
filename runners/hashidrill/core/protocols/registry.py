"""Finds products, faults, loads and all other plug-ins by the names that YAML and the command line use.

All of them are entry points, which each package lists in its pyproject.toml. If
hashidrill and another package register the same name, the other package wins. An entry point is imported when its name
is used.

    hashidrill.services           PRODUCT = its class (hashidrill.core.protocols.service.Service)
    hashidrill.default_services   PRODUCT = the same, for a service that runs in a datacenter that names none
    hashidrill.signals            the first word of signals that a product's probes write = its class
    hashidrill.settings           PRODUCT = how to read its agents' settings (hashidrill.core.probes.agent_reports)
    hashidrill.attach             PRODUCT = how to attach running agents (hashidrill.staging.attach.product)
    hashidrill.refusals           PRODUCT = how to ask its agent about a configuration (hashidrill.rollouts.gate)
    hashidrill.attached           kubernetes = what pods add to attached agents (hashidrill.staging.attach.product)
    hashidrill.commands           COMMAND = a function that adds the command (hashidrill.faces.cli.commands)
    hashidrill.documents          KIND = a function that checks a file of that kind (hashidrill.faces.cli.validate)
    hashidrill.faults             any name = a class, or a module or package in which classes declare their `kind`;
                                  faults under the name of a product act on its agents
    hashidrill.loads              the same
    hashidrill.probes             the same
"""

import importlib
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hashidrill.core.errors import UnknownNameError, UsageError

CLIENT = "client"
"""The kind of load of a client, which an experiment declares under `clients:`, not under `load:`."""
SERVICES, DEFAULTS, SIGNALS = "hashidrill.services", "hashidrill.default_services", "hashidrill.signals"
ATTACH = "hashidrill.attach"
"""The group of entry points of the products that can be attached."""
FAULTS, LOADS, PROBES = "hashidrill.faults", "hashidrill.loads", "hashidrill.probes"
DOCUMENTS = "hashidrill.documents"
_PROTOCOLS = {
    SERVICES: ("hashidrill.core.protocols.service", "Service", "hashidrill.core.protocols.service.BaseService"),
    FAULTS: ("hashidrill.core.protocols.abc", "Fault", "hashidrill.core.faults.base.BaseFault"),
    LOADS: ("hashidrill.core.protocols.abc", "Load", "hashidrill.core.loads.base.BaseLoad"),
    PROBES: ("hashidrill.core.protocols.abc", "ProbeKind", "hashidrill.core.probes.declared.DeclaredProbe"),
}
"""For each group of entry points: the protocol of its classes, and their usual base class."""
_KIND = re.compile(r'^    kind(?:: ClassVar\[str\])? = "([^"]+)"$', re.MULTILINE)


def near(name: str, names: Iterable[str]) -> str:
    """`did you mean X?` if a name is similar, otherwise the list of all names."""
    import difflib  # noqa: PLC0415 - few names are wrong

    known = sorted(names)
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    close = close or difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(close)}?" if close else f"there are: {', '.join(known) or 'none'}"


@cache
def _installed() -> Any:
    """The entry points of all distributions, with `select(group=)`. Finding one group takes as long as finding all."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - not every command needs a kind or a service

    return entry_points()


@cache
def entries(group: str) -> Mapping[str, Any]:
    """The entry points of a group by name, hashidrill's own first. Imports nothing."""
    found = _installed().select(group=group)
    return {each.name: each for each in sorted(found, key=lambda each: not each.value.startswith("hashidrill."))}


@cache
def plugin(group: str, name: str) -> Any:
    """The object behind an entry point. Raises KeyError for an unknown name, UsageError for a failed import."""
    entry = entries(group)[name]
    try:
        return entry.load()
    except Exception as error:  # noqa: BLE001 - it may be another package's code
        said = f"the plug-in {entry.value} (entry point {entry.name!r} of {entry.group}) cannot be imported"
        raise UsageError(f"{said}: {type(error).__name__}: {error}; fix or uninstall it") from None


class _Services(Mapping[str, Any]):
    """Every service class by its name; a lookup imports the class. Raises UsageError for a broken plug-in."""

    def __getitem__(self, name: str) -> Any:
        return _checked(SERVICES, name)

    def __iter__(self) -> Iterator[str]:
        if not entries(SERVICES):
            raise UsageError("hashidrill is installed without its entry points: run `uv sync`, or install it again")
        return iter(entries(SERVICES))

    def __contains__(self, name: object) -> bool:
        return name in entries(SERVICES)

    def __len__(self) -> int:
        return len(entries(SERVICES))


def services() -> Mapping[str, Any]:
    """Every service class by its name. A lookup imports the class."""
    return _Services()


def services_with(protocol: type[Any]) -> list[Any]:
    """The service classes with an optional protocol of hashidrill.core.protocols.service. Imports all."""
    return [cls for cls in services().values() if isinstance(cls, protocol)]


def default_services() -> list[str]:
    """The services that run if a datacenter names none."""
    return list(entries(DEFAULTS))


def faults() -> dict[str, Any]:
    """Every fault class by its kind. Imports all of them."""
    return {kind: _class(FAULTS, kind) for kind in _kinds(FAULTS)}


def loads() -> dict[str, Any]:
    """Every load class by its kind. Imports all of them."""
    return {kind: _class(LOADS, kind) for kind in _kinds(LOADS)}


def probes() -> dict[str, Any]:
    """Every class of probe that `probes:` may name, by its kind. Imports all of them."""
    return {kind: _class(PROBES, kind) for kind in _kinds(PROBES)}


def fault_kinds() -> list[str]:
    """The kinds of all faults, without importing any module."""
    return list(_kinds(FAULTS))


def load_kinds() -> list[str]:
    """The kinds of all loads, without importing any module."""
    return list(_kinds(LOADS))


def probe_kinds() -> list[str]:
    """The kinds of all probes, without importing any module."""
    return list(_kinds(PROBES))


def summaries(group: str) -> dict[str, str]:
    """The first line of each kind's docstring, by kind. It is read from the source text of a module or package."""
    return {kind: _summary(kind, where) for kind, where in sorted(_kinds(group).items())}


def _summary(kind: str, where: Any) -> str:
    if not isinstance(where, str):
        return (where.__doc__ or "").strip().partition("\n")[0]
    spec = find_spec(where)
    source = Path(spec.origin).read_text("utf-8") if spec is not None and spec.origin is not None else ""
    declared = next(each for each in _KIND.finditer(source) if each[1] == kind)
    classes = source[: declared.start()].rpartition("\nclass ")[2]
    found = re.match(r'.*?:\n    """(.*?)(?:"""|\n)', classes, re.DOTALL)
    return found[1].strip() if found else ""


def fault(kind: str) -> Any:
    """The fault class; only its module is imported. Raises UnknownNameError with similar names."""
    return _get("fault", kind, FAULTS)


def load(kind: str) -> Any:
    """The load class; only its module is imported. Raises UnknownNameError with similar names."""
    return _get("load", kind, LOADS)


def probe(kind: str) -> Any:
    """The probe class; only its module is imported. Raises UnknownNameError with similar names."""
    return _get("probe", kind, PROBES)


def product_of(kind: str) -> str:
    """The product on whose agents that kind of fault acts; "" for a fault of any host."""
    name = next((where for where, found in _by_entry(FAULTS).items() if kind in found), "")
    return name if name in entries(SERVICES) else ""


def _get(noun: str, kind: str, group: str) -> Any:
    if kind not in _kinds(group):
        raise UnknownNameError(f"there is no {noun} {kind!r}: {near(kind, _kinds(group))}")
    return _class(group, kind)


def _class(group: str, kind: str) -> Any:
    where = _kinds(group)[kind]
    if not isinstance(where, str):
        return where
    try:
        members = vars(importlib.import_module(where)).values()
        return next(cls for cls in members if isinstance(cls, type) and vars(cls).get("kind") == kind)
    except (ImportError, StopIteration) as error:
        why = f": {error}" if str(error) else ""
        raise UsageError(f"{kind} should be a class of the module {where}, but is not{why}") from None


@cache
def _kinds(group: str) -> dict[str, Any]:
    return {kind: where for found in _by_entry(group).values() for kind, where in found.items()}


@cache
def _by_entry(group: str) -> dict[str, dict[str, Any]]:
    """The kinds of each entry point. A class knows its kind; a module's kinds are read from its text."""
    found = {}
    for name, entry in entries(group).items():
        if ":" in entry.value:
            cls = _checked(group, name)
            found[name] = {cls.kind: cls}
        else:
            found[name] = kinds_in(entry.value)
    return found


def kinds_in(room: str) -> dict[str, str]:
    """Each kind that a module, or a package's modules, declare, with its module. The kinds are read from the source
    text, without an import.
    """
    spec = find_spec(room)
    if spec is None or spec.origin is None:
        raise UsageError(f"there is no module {room}, which an entry point names; fix or uninstall its package")
    files = {room: Path(spec.origin)}
    if spec.submodule_search_locations is not None:
        files = {f"{room}.{path.stem}": path for path in sorted(Path(spec.origin).parent.glob("*.py"))}
    return {kind: module for module, path in files.items() for kind in _KIND.findall(path.read_text())}


@cache
def _checked(group: str, name: str) -> Any:
    """The class of an entry point. Raises UsageError if it lacks a member of its protocol."""
    cls = plugin(group, name)
    module, protocol, base = _PROTOCOLS[group]
    asked = getattr(importlib.import_module(module), protocol)
    said_of_class = (each for each, of in asked.__annotations__.items() if str(of).startswith("ClassVar"))
    if lacking := sorted(each for each in {*vars(asked), *said_of_class} - {*dir(cls)} if not each.startswith("_")):
        said = f"the {protocol.lower()} {entries(group)[name].value} (entry point of {group}) lacks"
        raise UsageError(f"{said} {', '.join(lacking)}; build it on {base}")
    return cls
