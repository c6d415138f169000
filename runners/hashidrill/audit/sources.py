"""Finds the files under the paths given, and reads each into a Document, or into a Problem that says why not."""

from __future__ import annotations

import fnmatch
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hashidrill.audit.hcl import read_hcl
from hashidrill.audit.json_text import read_json
from hashidrill.audit.kinds import entries_of, kind_of, part_of
from hashidrill.audit.python_text import Module, read_python
from hashidrill.audit.tree import Comment, MalformedError, Mapping, Place, Value
from hashidrill.audit.unit_files import Unit, Variable, read_environment, read_unit
from hashidrill.audit.unread import Unread, unread_kind

SUFFIXES = (".hcl", ".nomad", ".json", ".service", ".py", ".env")
"""Of files that are looked at in a directory. A file that is named itself is read whatever its name."""

_DROPINS = ".service.d"

SKIPPED = frozenset({".git", ".hg", ".svn", ".terraform", ".tox", ".venv", "__pycache__", "node_modules", "venv"})
"""Directories that are not gone into."""

MAX_BYTES = 1024 * 1024
"""Of a file that is read; configuration is far smaller."""


@dataclass(frozen=True)
class Document:
    """A file that was read. What it says is in the field that its kind has: value, unit, variables or module."""

    path: str
    kind: str
    text: str
    comments: list[Comment] = field(default_factory=list)
    value: Value | None = None
    unit: Unit | None = None
    variables: list[Variable] = field(default_factory=list)
    module: Module | None = None

    @property
    def body(self) -> Mapping:
        """An HCL or JSON document; nothing when it is of another kind, or a list."""
        return self.value if isinstance(self.value, Mapping) else Mapping((), Place(1, 1))


@dataclass(frozen=True)
class Problem:
    """A file that could not be judged: where and why. `line` is 0 when it is no matter of a line."""

    path: str
    line: int
    column: int
    what: str

    def __str__(self) -> str:
        where = f"{self.path}:{self.line}:{self.column}" if self.line else self.path
        return f"{where}: {self.what}"


@dataclass
class Sources:
    """All that was found: what is judged, what could not be, and what was left out, with reasons for `-v`."""

    documents: list[Document] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    """Files that hold what is judged in a language that is not read."""
    unknown: list[Document] = field(default_factory=list)
    """HCL and JSON files of unknown kind; each may be a part of an agent in the same directory."""


def collect(paths: Sequence[Path], *, kind: str | None = None, exclude: Sequence[str] = ()) -> Sources:
    """Reads everything under `paths`; a directory is walked in the order of names. Never raises for a file's sake."""
    sources = Sources()
    seen: set[tuple[int, int]] = set()
    for path in paths:
        try:
            status = path.stat()
        except OSError as error:
            sources.problems.append(Problem(str(path), 0, 0, _reason(error)))
            continue
        if stat.S_ISDIR(status.st_mode):
            for file in _walk(path, sources, exclude):
                _add(file, sources, seen, kind=kind, named=False)
        else:
            _add(path, sources, seen, kind=kind, named=True)
    _adopt(sources)
    return sources


def _adopt(sources: Sources) -> None:
    """Gives parts of an agent's configuration to the one kind of agent whose files stand in the same directory."""
    kinds: dict[Path, set[str]] = {}
    for document in sources.documents:
        if document.kind in {"consul-agent", "nomad-agent"}:
            kinds.setdefault(Path(document.path).parent, set()).add(document.kind)
    for document in sources.unknown:
        beside = kinds.get(Path(document.path).parent, set())
        [kind] = beside if len(beside) == 1 else [""]
        if document.value is not None and part_of(document.value, kind):
            sources.documents.append(replace(document, kind=kind))
        else:
            sources.skipped.append(f"{document.path}: not recognised as anything that is judged")
    sources.documents = with_dropins(sorted(sources.documents, key=lambda document: document.path))


def is_dropin(path: Path) -> bool:
    """Whether this changes a systemd unit: `consul.service.d/limits.conf`."""
    return path.suffix == ".conf" and path.parent.name.endswith(_DROPINS)


def with_dropins(documents: Sequence[Document]) -> list[Document]:
    """Each unit with its drop-ins, which say nothing of their own then. One without its unit among the files does.

    A unit in the same directory as the drop-ins' own comes first; otherwise the only one of that name.
    """
    units = [one for one in documents if one.unit is not None and not is_dropin(Path(one.path))]
    of: dict[str, list[Document]] = {}
    for dropin in (one for one in documents if one.unit is not None and is_dropin(Path(one.path))):
        folder = Path(dropin.path).parent
        named = [unit for unit in units if Path(unit.path).name == folder.name.removesuffix(".d")]
        near = [unit for unit in named if Path(unit.path).parent == folder.parent]
        for unit in near or (named if len(named) == 1 else []):
            of.setdefault(unit.path, []).append(dropin)
    taken = {dropin.path for dropins in of.values() for dropin in dropins}
    found = []
    for one in documents:
        if one.unit is None:
            found.append(one)
        elif one.path in taken:
            found.append(replace(one, unit=None))
        elif is_dropin(Path(one.path)):
            found.append(replace(one, unit=replace(one.unit, partial=True)))
        else:
            # by the name of the file alone, whatever directory it stands in: systemd.unit(5)
            later = sorted(of.get(one.path, []), key=lambda each: Path(each.path).name)
            more = [(each.path, each.unit) for each in later if each.unit is not None]
            found.append(replace(one, unit=one.unit.with_dropins(more)))
    return found


def _walk(root: Path, sources: Sources, exclude: Sequence[str]) -> Iterator[Path]:
    """Regular files with our suffixes below `root`; symlinks to directories are not followed, so none can loop."""

    def unreadable(error: OSError) -> None:
        sources.problems.append(Problem(str(error.filename), 0, 0, _reason(error)))

    for folder, folders, files in os.walk(root, onerror=unreadable):
        for name in sorted(folders):
            if name in SKIPPED or _excluded(Path(folder, name), exclude):
                sources.skipped.append(f"{Path(folder, name)}/: not gone into")
        folders[:] = sorted(
            name for name in folders if name not in SKIPPED and not _excluded(Path(folder, name), exclude)
        )
        for name in sorted(files):
            path = Path(folder, name)
            if _excluded(path, exclude):
                if name.endswith(SUFFIXES):
                    sources.skipped.append(f"{path}: excluded")
            elif name.endswith(SUFFIXES) or is_dropin(path):
                yield path
            elif what := unread_kind(path):
                sources.unread.append(Unread(str(path), what))


def _excluded(path: Path, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(str(path), pattern) or fnmatch.fnmatch(path.name, pattern) for pattern in patterns)


def _add(path: Path, sources: Sources, seen: set[tuple[int, int]], *, kind: str | None, named: bool) -> None:
    try:
        status = path.stat()
        if (status.st_dev, status.st_ino) in seen:
            return
        seen.add((status.st_dev, status.st_ino))
        text = _text(path, status)
        found = read_document(str(path), text, kind=kind)
    except OSError as error:
        sources.problems.append(Problem(str(path), 0, 0, _reason(error)))
    except MalformedError as error:
        if not named and path.suffix == ".json" and not text.lstrip().startswith(("{", "[")):
            sources.skipped.append(f"{path}: not JSON from its first character on")  # editors' JSON with comments
            return
        what = f"{error.what}{_hint(text) if error.place.line else ''}"
        sources.problems.append(Problem(str(path), error.place.line, error.place.column, what))
    else:
        if found.kind:
            sources.documents.append(found)
        elif named:
            what = "nothing here looks like a configuration that is judged; --kind says what it is"
            sources.problems.append(Problem(str(path), 0, 0, what))
        else:
            sources.unknown.append(found)


def _text(path: Path, status: os.stat_result) -> str:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(0, "not a regular file")  # reading a FIFO would wait for ever
    if status.st_size > MAX_BYTES:
        raise OSError(
            0, f"{status.st_size // 1024} kB is no configuration: files over {MAX_BYTES // 1024} kB are not read"
        )
    data = path.read_bytes()
    if b"\0" in data:
        raise OSError(0, "a binary file")
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise OSError(0, f"not UTF-8, first in line {line}") from None


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower() if error.errno else str(error.strerror)


def _hint(text: str) -> str:
    """Templates of templates (levant, Jinja, nomad-pack) are not configuration before they are rendered."""
    return "; this looks like a template: render it, then audit the result" if "[[" in text or "{%" in text else ""


def read_document(path: str, text: str, *, kind: str | None = None) -> Document:
    """One file's text; its kind is empty when nothing tells what it is. Raises MalformedError."""
    suffix = Path(path).suffix
    if kind == "python" or (kind is None and suffix == ".py"):
        module, comments = read_python(text)
        return Document(path, "python", text, comments, module=module)
    if kind == "systemd-unit" or (kind is None and (suffix == ".service" or is_dropin(Path(path)))):
        unit = read_unit(text)
        return Document(path, "systemd-unit", text, unit.comments, unit=unit)
    if kind == "environment" or (kind is None and (suffix == ".env" or Path(path).name == ".env")):
        variables, comments = read_environment(text)
        return Document(path, "environment", text, comments, variables=variables)
    value: Value
    if suffix == ".json" or text.lstrip().startswith("{"):
        value, comments = read_json(text), []
    else:
        value, comments = read_hcl(text)
    found = kind or kind_of(value) or ("consul-entry" if entries_of(value) else "")
    return Document(path, found, text, comments, value=value)
