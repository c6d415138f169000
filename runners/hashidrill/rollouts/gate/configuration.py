"""Reads the configuration of an agent as the agent reads it: HCL or JSON, a file or a directory, later over earlier.

Of a directory, Consul, Nomad and Vault read `*.hcl` and `*.json` in lexical order, and no directory below it. Maps are
merged key by key, lists are joined; of Vault, a later file replaces a whole block (`Config.Merge` in vault 1.21).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hashidrill.clients.audit import tree
from hashidrill.clients.audit.audited import HEAD, agents_in
from hashidrill.clients.audit.kinds import kind_of
from hashidrill.clients.audit.sources import read_configuration
from hashidrill.core.errors import UsageError
from hashidrill.core.util.nested import merge

SUFFIXES = (".hcl", ".json")
MAX_BYTES = 1024 * 1024
PRODUCTS = {"consul": "consul-agent", "nomad": "nomad-agent", "vault": "vault-server"}
"""Whose configuration can be gated, and the kind of such a file in an audit."""
_REPLACED = {"vault"}
"""Products of which a later file replaces a block, instead of adding to it."""


@dataclass(frozen=True)
class Source:
    """One file: its path for people (in a repository, from its top), where its copy is, and what it says."""

    shown: str
    path: Path
    text: str = field(repr=False)
    body: tree.Mapping = field(repr=False)


@dataclass(frozen=True)
class Place:
    """Where a key was last said."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True)
class Configuration:
    """All files of one side, merged: `settings` is plain data, `places` says where each key that is no map stands."""

    product: str
    settings: Mapping[str, Any]
    places: Mapping[str, Place]
    sources: Sequence[Source]

    def place(self, key: str) -> Place | None:
        """Where a key stands, or the nearest key above it."""
        while key:
            if key in self.places:
                return self.places[key]
            key = key.rpartition(".")[0]
        return None


def sources_of(paths: Sequence[Path], *, top: Path | None = None) -> list[Source]:
    """The files under these paths, in the order in which an agent reads them.

    `top`: messages name files from there on. Raises UsageError: nothing there, no configuration in it, bad HCL.
    """
    files = [file for path in paths for file in _files(path, top)]
    return [_read(file, _shown(file, top)) for file in files]


def _files(path: Path, top: Path | None) -> list[Path]:
    shown = _shown(path, top)
    if not path.exists():
        raise UsageError(
            f"{shown}: there is no such file or directory; name the configuration as the agent is given it"
        )
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and file.is_file())
    if not found:
        raise UsageError(f"{shown}: no *.hcl or *.json in this directory; agents read nothing below it")
    return found


def _shown(path: Path, top: Path | None) -> str:
    return str(path) if top is None else str(path.relative_to(top))


def _read(file: Path, shown: str) -> Source:
    try:
        if not file.is_file():  # reading a FIFO would wait for ever
            raise UsageError(f"{shown}: is no regular file")
        data = file.read_bytes()
        text = data.decode().replace("\r\n", "\n")
    except OSError as error:
        raise UsageError(f"{shown}: cannot be read: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{shown}: is not UTF-8; save it as UTF-8") from None
    if len(data) > MAX_BYTES:
        raise UsageError(f"{shown}: {len(data) // 1024} kB is no configuration of an agent")
    try:
        value = read_configuration(file.name, text)[0]
    except tree.MalformedError as error:
        raise UsageError(f"{shown}:{error.place.line}:{error.place.column}: {error.what}") from None
    if not isinstance(value, tree.Mapping):
        raise UsageError(f"{shown}:1:1: a configuration is an object at its top, not a list or a single value")
    return Source(shown, file, text, value)


def configurations(product: str, sources: Sequence[Source]) -> list[Configuration]:
    """What each agent of that product makes of its part of these files, read as an audit reads a directory."""
    parts = [sources] if product in _REPLACED else agents_in(sources, lambda source: source.body)
    return [_merged(product, part) for part in parts]


def configuration(product: str, sources: Sequence[Source]) -> Configuration:
    """That of the one agent that reads these files. Raises UsageError where they are those of several agents."""
    found = configurations(product, sources)
    if len(found) > 1:
        raise UsageError(f"{several(found)}: name the files of one agent")
    return found[0]


def several(found: Sequence[Configuration]) -> str:
    """For messages: which files make them different agents."""
    heads = [each.shown for one in found for each in one.sources if each.body.has(HEAD)]
    return f"{' and '.join(heads)} are {len(found)} agents, because each sets {HEAD}"


def _merged(product: str, sources: Sequence[Source]) -> Configuration:
    settings: dict[str, Any] = {}
    places: dict[str, Place] = {}
    for source in sources:
        said = plain(source.body, _Reading.of(product, source))
        if product in _REPLACED:
            gone = tuple(f"{key}." for key, value in said.items() if isinstance(value, Mapping))
            places = {key: place for key, place in places.items() if not (gone and key.startswith(gone))}
            settings |= said
        else:
            settings = joined(settings, said)
        places |= {key: Place(source.shown, at.line, at.column) for key, at in _places(source.body)}
    return Configuration(product, settings, places, tuple(sources))


def joined(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """As Consul and Nomad merge two files: maps key by key, lists one after the other, and else the later value."""
    result = dict(earlier)
    for key, value in later.items():
        below = result.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            result[key] = joined(below, value)
        elif isinstance(below, list) and isinstance(value, list):
            result[key] = [*below, *value]
        else:
            result[key] = value
    return result


@dataclass(frozen=True)
class _Reading:
    """What differs between the products: `unfolds` a list of one object to that object, `adds` up what is said twice.

    Consul takes a list of one config entry, and refuses that entry without the list; in its JSON, of an object that is
    said twice the later one counts (as `consul validate` of 1.22.2 shows).
    """

    unfolds: bool = True
    adds: bool = True

    @classmethod
    def of(cls, product: str, source: Source) -> _Reading:
        consul = product == "consul"
        return cls(unfolds=not consul, adds=not (consul and source.path.suffix == ".json"))


def plain(body: tree.Mapping, reading: _Reading) -> dict[str, Any]:
    """An HCL or JSON body as plain data: labels of a block are keys."""
    found: dict[str, Any] = {}
    for entry in body.entries:
        value = _plain(entry.value, reading)
        for label in reversed(entry.labels):
            value = {label: value}
        if reading.adds and isinstance(value, Mapping) and isinstance(found.get(entry.key), Mapping):
            found[entry.key] = merge(found[entry.key], value)
        else:
            found[entry.key] = value
    return found


def _plain(value: tree.Value, reading: _Reading) -> Any:
    if isinstance(value, tree.Mapping):
        return plain(value, reading)
    if isinstance(value, tree.Sequence):
        if reading.unfolds and len(value.items) == 1 and isinstance(value.items[0], tree.Mapping):
            return plain(value.items[0], reading)
        return [_plain(item, reading) for item in value.items]
    return value.text if isinstance(value, tree.Expression) else value.value


def _places(body: tree.Mapping, above: str = "") -> Iterator[tuple[str, tree.Place]]:
    for entry in body.entries:
        key = ".".join([*([above] if above else []), entry.key, *entry.labels])
        yield key, entry.place
        value = entry.value
        if isinstance(value, tree.Sequence) and len(value.items) == 1:
            value = value.items[0]
        if isinstance(value, tree.Mapping):
            yield from _places(value, key)


def recognised(sources: Sequence[Source]) -> str | None:
    """The product that these files are for, by what only one product's configuration says; None when nothing tells."""
    whole = tree.Mapping(tuple(entry for source in sources for entry in source.body.entries), tree.Place(1, 1))
    kind = kind_of(whole)
    return next((product for product, its in PRODUCTS.items() if its == kind), None)
