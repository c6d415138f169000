"""Finds the files under the given paths, and reads each into a Document, or into a Problem with the reason.

Users mistake silence for approval, so a file in an unsupported language is named if it mentions Consul, Nomad or Vault.
"""

import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path

from hashidrill.clients.audit.command_lines import Unit, Variable, read_environment, read_unit
from hashidrill.clients.audit.hcl import read_hcl
from hashidrill.clients.audit.hcl1 import CONSUL, NOMAD, VAULT, read_hcl1
from hashidrill.clients.audit.kinds import entries_of, kind_of, names_an_agent, part_of
from hashidrill.clients.audit.python_code import Module, read_python
from hashidrill.clients.audit.tree import Comment, MalformedError, Mapping, Place, Scalar, Value, read_json
from hashidrill.core.units import counted

_LOOKED_AT_BYTES = 256 * 1024
SPEAKS_OF_US = re.compile(rb"consul|nomad|vault", re.IGNORECASE)
_GO = re.compile(rb"hashicorp/(consul|nomad|vault)/api")
_JOB_BYTES = re.compile(rb"^\s*job\s+(\"|\[\[)", re.MULTILINE)

_KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("compose file", ("docker-compose*.yml", "docker-compose*.yaml", "compose*.yml", "compose*.yaml")),
    ("template", ("*.tpl", "*.tmpl", "*.ctmpl", "*.tftpl", "*.j2", "*.jinja", "*.erb", "*.levant")),
    ("shell script", ("*.sh", "*.bash", "*.zsh", "*.ksh")),
    ("Dockerfile", ("Dockerfile*", "*.dockerfile", "Containerfile*")),
    ("Terraform file", ("*.tf", "*.tf.json")),
    ("Go file", ("*.go",)),
)
_HELM, _YAML = ("values*.yaml", "values*.yml"), ("*.yaml", "*.yml")


@dataclass(frozen=True, order=True)
class Unread:
    """A file and its apparent type: `Nomad Pack template`, `compose file`, ..."""

    path: str
    what: str


def unread_kind(path: Path) -> str:
    """The apparent type of a file that the audit cannot read; "" for a file that it ignores."""
    kind = next((what for what, patterns in _KINDS if _matches(path, patterns)), "")
    if not kind and _matches(path, _YAML):
        helm = _matches(path, _HELM) or any((above / "Chart.yaml").is_file() for above in list(path.parents)[:3])
        kind = "Helm chart file" if helm else "YAML file"
    if not kind:
        return ""
    try:
        if not path.is_file():  # opening a FIFO would wait for ever
            return ""
        with path.open("rb") as file:
            head = file.read(_LOOKED_AT_BYTES)
    except OSError:
        return ""
    if not (_GO if kind == "Go file" else SPEAKS_OF_US).search(head + path.name.encode()) and not _JOB_BYTES.search(
        head
    ):
        return ""
    if kind == "template" and any((above / "metadata.hcl").is_file() for above in path.parents):
        return "Nomad Pack template"
    return "job template" if kind == "template" and _JOB_BYTES.search(head) else kind


def _matches(path: Path, patterns: Sequence[str]) -> bool:
    return any(fnmatch(path.name, pattern) for pattern in patterns)


def by_kind(unread: Sequence[Unread]) -> list[tuple[str, list[str]]]:
    """(`61 Nomad Pack templates`, their paths), the most frequent type first."""
    kinds: dict[str, list[str]] = {}
    for each in sorted(unread):
        kinds.setdefault(each.what, []).append(each.path)
    ordered = sorted(kinds.items(), key=lambda kind: (-len(kind[1]), kind[0]))
    return [(counted(len(paths), what), paths) for what, paths in ordered]


SUFFIXES = (".hcl", ".nomad", ".json", ".service", ".py", ".env")
"""The suffixes of files that the audit reads in a directory. A file that the user names is read in any case."""

_DROPINS = ".service.d"

SKIPPED = frozenset(
    {".git", ".hashidrill", ".hg", ".svn", ".terraform", ".tox", ".venv", "__pycache__", "node_modules", "venv"}
)
"""Directories that the audit does not enter."""

MAX_BYTES = 1024 * 1024
"""The largest file that the audit reads; configuration is far smaller."""


@dataclass(frozen=True)
class Document:
    """A file that was read. Depending on its kind, its content is in `value`, `unit`, `variables` or `module`."""

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
        """The content of an HCL or JSON document; empty if the file is of another kind or holds a list."""
        return self.value if isinstance(self.value, Mapping) else Mapping((), Place(1, 1))


@dataclass(frozen=True)
class Problem:
    """A file that could not be judged: where and why. `line` is 0 if the reason is not a particular line."""

    path: str
    line: int
    column: int
    what: str

    def __str__(self) -> str:
        where = f"{self.path}:{self.line}:{self.column}" if self.line else self.path
        return f"{where}: {self.what}"


@dataclass
class Sources:
    """All results: judged files, problems, and files left out, with reasons for `-v`."""

    documents: list[Document] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    """Files that may hold configuration, in a language that the audit does not read."""
    unknown: list[Document] = field(default_factory=list)
    """HCL and JSON files of unknown kind; each may be a part of an agent's configuration in the same directory."""
    malformed: list[tuple[str, Problem]] = field(default_factory=list)
    """(text, problem) of files in a directory that cannot be parsed. Most have nothing to do with an agent."""


def collect(paths: Sequence[Path], *, kind: str | None = None, exclude: Sequence[str] = ()) -> Sources:
    """Reads everything under `paths`, directories in the order of names. Does not raise if a file cannot be read."""
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
    kinds: dict[Path, set[str]] = {}
    for document in sources.documents:
        if document.kind in {"consul-agent", "nomad-agent", "vault-server"}:
            kinds.setdefault(Path(document.path).parent, set()).add(document.kind)
    for document in sources.unknown:
        near = kinds.get(Path(document.path).parent, set()) - {"vault-server"}
        [kind] = near if len(near) == 1 else [""]
        if document.value is None or not part_of(document.value, kind):
            sources.skipped.append(f"{document.path}: not recognised as a kind that is judged")
            continue
        try:
            sources.documents.append(read_document(document.path, document.text, kind=kind))
        except MalformedError as error:
            sources.problems.append(_problem(document.path, document.text, error))
    for text, problem in sources.malformed:
        path = Path(problem.path)
        if _meant(path, text) or (suffix_of(path) == ".hcl" and path.parent in kinds):
            sources.problems.append(problem)
        elif SPEAKS_OF_US.search(text.encode()):
            sources.unread.append(Unread(problem.path, "unreadable file"))
        else:
            sources.skipped.append(f"{problem}; it does not seem to be for an agent")
    sources.documents = with_dropins(sorted(sources.documents, key=lambda document: document.path))


def _meant(path: Path, text: str) -> bool:
    """Whether an unparsable file is clearly meant for an agent or for a client of an agent."""
    if suffix_of(path) == ".py":
        return _IMPORTS.search(text) is not None
    if suffix_of(path) in {".json", ".hcl", ".nomad"}:
        return names_an_agent(text) or _JOB.search(text) is not None
    return SPEAKS_OF_US.search(text.encode()) is not None


_IMPORTS = re.compile(r"^\s*(?:from|import)\s+(?:consul|hvac|nomad)\b", re.MULTILINE)


def is_dropin(path: Path) -> bool:
    """Whether this is a drop-in, which changes a systemd unit: `consul.service.d/limits.conf`."""
    return path.suffix == ".conf" and path.parent.name.endswith(_DROPINS)


def with_dropins(documents: Sequence[Document]) -> list[Document]:
    """Merges each unit with its drop-ins, which then have no separate findings. A drop-in whose unit is not among the
    files has its own findings.

    A drop-in belongs to the units next to its directory, or else to the only unit of that name.
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
            # drop-ins are ordered by file name, whatever their directory: systemd.unit(5)
            later = sorted(of.get(one.path, []), key=lambda each: Path(each.path).name)
            more = [(each.path, each.unit) for each in later if each.unit is not None]
            found.append(replace(one, unit=one.unit.with_dropins(more)))
    return found


def _walk(root: Path, sources: Sources, exclude: Sequence[str]) -> Iterator[Path]:
    """Files below `root` that the audit reads. Does not follow symlinks to directories, so it cannot loop."""

    def unreadable(error: OSError) -> None:
        sources.problems.append(Problem(str(error.filename), 0, 0, _reason(error)))

    for folder, folders, files in os.walk(root, onerror=unreadable):
        for name in sorted(folders):
            if name in SKIPPED or _excluded(Path(folder, name), exclude):
                sources.skipped.append(f"{Path(folder, name)}/: not entered")
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


def suffix_of(path: Path) -> str:
    """The suffix from the agents' point of view: a file named just `.json` is JSON too."""
    return "." + path.name.rpartition(".")[2]


def _excluded(path: Path, patterns: Sequence[str]) -> bool:
    return any(fnmatch(str(path), pattern) or fnmatch(path.name, pattern) for pattern in patterns)


def _add(path: Path, sources: Sources, seen: set[tuple[int, int]], *, kind: str | None, named: bool) -> None:
    text = ""
    try:
        status = path.stat()
        if (status.st_dev, status.st_ino) in seen:
            return
        seen.add((status.st_dev, status.st_ino))
        data = _data(path, status)
        text = data.decode("latin-1")
        found = read_document(str(path), text := _text(data), kind=kind)
    except OSError as error:
        problem = Problem(str(path), 0, 0, _reason(error))
        if named or isinstance(error, PermissionError) or suffix_of(path) in _FOR_AGENTS_ALONE:
            sources.problems.append(problem)
        else:
            sources.skipped.append(str(problem))
    except MalformedError as error:
        problem = _problem(str(path), text, error)
        # JSON of any program may look like an agent's
        refused = isinstance(error, RefusedError) and suffix_of(path) != ".json"
        if named or kind is not None or refused:
            sources.problems.append(problem)
        else:
            sources.malformed.append((text, problem))
    else:
        if found.kind:
            sources.documents.append(found)
        elif named:
            what = "this does not look like a file that the audit knows; name its kind with --kind"
            sources.problems.append(Problem(str(path), 0, 0, what))
        else:
            sources.unknown.append(found)


_FOR_AGENTS_ALONE = {".hcl", ".nomad"}


def _problem(path: str, text: str, error: MalformedError) -> Problem:
    what = f"{error.what}{_hint(text) if error.place.line else ''}"
    return Problem(path, error.place.line, error.place.column, what)


def _data(path: Path, status: os.stat_result) -> bytes:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(0, "not a regular file")  # reading a FIFO would wait for ever
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)


def _text(data: bytes) -> str:
    """Raises MalformedError, at line 0, for content that is not configuration text."""
    if len(data) > MAX_BYTES:
        what = f"files over {MAX_BYTES // 1024} kB are not read: configuration is far smaller"
        raise MalformedError(Place(0, 0), what)
    if b"\0" in data:
        raise MalformedError(Place(0, 0), "a binary file")
    try:
        return data.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise MalformedError(Place(0, 0), f"not UTF-8 (first in line {line})") from None


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower() if error.errno else str(error.strerror)


def _hint(text: str) -> str:
    """A hint for files that must be rendered (levant, Jinja, nomad-pack, sed) before they are configuration; or ""."""
    return "; this looks like a template: render it, then audit the result" if _TEMPLATE.search(text) else ""


_TEMPLATE = re.compile(r"\[\[|\{%|[=:]\s*[A-Z][A-Z_]+\s*(,|$)", re.MULTILINE)


def read_document(path: str, text: str, *, kind: str | None = None) -> Document:
    """Reads one file's text; the document's kind is "" if it cannot be determined. Raises MalformedError."""
    suffix, plain = suffix_of(Path(path)), text.removeprefix("\ufeff")
    if kind == "python" or (kind is None and suffix == ".py"):
        module, comments = read_python(plain)
        return Document(path, "python", plain, comments, module=module)
    if kind == "systemd-unit" or (kind is None and (suffix == ".service" or is_dropin(Path(path)))):
        unit = read_unit(plain)
        return Document(path, "systemd-unit", plain, unit.comments, unit=unit)
    if kind == "environment" or (kind is None and suffix == ".env"):
        variables, comments = read_environment(plain)
        return Document(path, "environment", plain, comments, variables=variables)
    value, comments, found = read_configuration(path, text, kind=kind)
    return Document(path, found, text, comments, value=value)


class RefusedError(MalformedError):
    """The configuration is of a known kind, but that kind's agent cannot read it."""


def read_configuration(path: str, text: str, *, kind: str | None = None) -> tuple[Value, list[Comment], str]:
    """HCL or JSON, parsed like the agent of that kind parses it; without `kind`, the text determines the kind.

    Only the suffix of `path` matters. Raises MalformedError if the agent refuses the text too, and RefusedError if
    another agent would accept it.
    """
    suffix = suffix_of(Path(path))
    if kind is not None:
        return *_GRAMMARS[_grammar(kind, suffix, text)](text), kind
    refused: list[MalformedError] = []
    for grammar in ("json", "nomad") if suffix == ".json" else ("nomad", "job"):
        try:
            value, comments = _GRAMMARS[grammar](text)
        except MalformedError as error:
            refused.append(error)
            continue
        found = kind_of(value) or ("consul-entry" if entries_of(value) else "")
        if found and (its := _grammar(found, suffix, text)) != grammar:
            try:
                value, comments = _GRAMMARS[its](text)
            except MalformedError as error:
                raise RefusedError(error.place, error.what) from None
        return value, comments, found
    raise refused[_JOB.search(text) is not None]


def _consul_json(text: str) -> tuple[Value, list[Comment]]:
    """Parses `*.json` like Consul: an object or null; an empty file sets nothing."""
    value = read_json(text) if text else Mapping((), Place(1, 1))
    if not (isinstance(value, Mapping) or (isinstance(value, Scalar) and value.value is None)):
        raise MalformedError(value.place, "a configuration must be an object, not a list or a single value")
    return value, []


_GRAMMARS: dict[str, Callable[[str], tuple[Value, list[Comment]]]] = {
    "consul": lambda text: read_hcl1(text, CONSUL),
    "consul-json": _consul_json,
    "job": read_hcl,
    "json": lambda text: (read_json(text), []),
    "nomad": lambda text: read_hcl1(text, NOMAD),
    "vault": lambda text: read_hcl1(text, VAULT),
}
_JOB = re.compile(r'^\s*job\s+("|\[\[)', re.MULTILINE)


def _grammar(kind: str, suffix: str, text: str) -> str:
    """Consul decides by the file's name; Nomad, Vault and consul-template treat a text that begins with `{` as JSON."""
    if kind == "nomad-job":
        return "json" if text.lstrip().startswith("{") else "job"
    if kind == "consul-agent":
        return "consul-json" if suffix == ".json" else "consul"
    if kind == "consul-entry":
        return "json" if suffix == ".json" else "consul"
    return "vault" if kind.startswith("vault-") else "nomad"
