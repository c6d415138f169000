"""Finds experiments by name, and reads an experiment's file and the files it extends as one document.

A name is a path, an experiment of the user's `experiments/`, or a shipped one. The user's own wins.

`extends: ../bases/three-servers.yaml` names a base, a file of `kind: Base` that holds any of an experiment's
sections. The path is relative to the file with `extends`; a base missing in the user's `experiments/` is taken from
the shipped ones. Mappings are merged key by key and the experiment wins; a list or a value replaces the base's; null
removes a key of the base. A base may extend another.
"""

import contextlib
import difflib
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hashidrill.core.errors import ExperimentError, UnknownNameError
from hashidrill.core.experiment.documents import UNPRINTABLE, Document, line_and_column, wrapped
from hashidrill.core.experiment.openslo import with_slos
from hashidrill.core.util.folders import both, located, named, near_files, nearest, shipped

FOLDER = "experiments"
SUFFIXES = (".yaml", ".yml")
_BASE = re.compile(rb"^kind:[ \t]*[\"']?Base\b", re.MULTILINE)
_OURS = re.compile(rb"^(?:apiVersion:[ \t]*[\"']?hashidrill/|kind:[ \t]*[\"']?Experiment\b)", re.MULTILINE)
_OTHERS = re.compile(rb"^kind:[ \t]*[\"']?(?:Base|Attach|GameDay|Scenario|Campaign)\b", re.MULTILINE)
_METADATA = re.compile(r"^metadata:[ \t]*(?:#.*)?\n((?:[ \t#].*\n|[ \t\r]*\n)*)", re.MULTILINE)
"""The key and the lines indented below it."""
_INDENT = re.compile(r"^( +)[^ #\r\n]", re.MULTILINE)


def experiments(folder: Path | None = None) -> dict[str, Path]:
    """Every experiment by its name with its folder: those of `folder`, or the user's own and the shipped ones.

    Bases and files of other kinds are left out.
    """
    found = named(FOLDER, SUFFIXES, within=folder).items()
    return {name: path for name, path in found if _OURS.search(text := _text(path)) and not _OTHERS.search(text)}


def list_experiments(folder: Path | None = None) -> list[Path]:
    """The files of `experiments`, in order of their names."""
    return list(experiments(folder).values())


def own_experiments() -> list[Path]:
    """The files of the user's own `experiments/`, in order of their names; empty without such a folder.

    Also empty in hashidrill's checkout, where that folder holds the shipped experiments.
    """
    own = nearest(FOLDER)
    return [] if own is None or own == shipped(FOLDER).resolve() else list_experiments(own)


def metadata_of(path: Path) -> Mapping[str, Any]:
    """What a file of any kind says under `metadata`, mostly without its `why`. The rest of the file may still contain
    errors.

    Reads only these lines, because parsing the YAML of the whole library takes seconds. Raises ExperimentError.
    """
    text = _text(path).decode("utf-8", "replace")
    found = _METADATA.search(f"{text}\n")
    for part in (*([_without_why(found[1])] if found else []), text):
        with contextlib.suppress(ExperimentError):
            document = Document(str(path), part)
            document.raise_problems()
            data = document.data
            said = data if part is not text or not isinstance(data, dict) else data.get("metadata")
            if isinstance(said, dict) and isinstance(said.get("title"), str):
                return said
    raise ExperimentError(f"{path}: has no metadata with a title")


def _without_why(block: str) -> str:
    """Drops `why`, the longest text of most files."""
    indent = found[1] if (found := _INDENT.search(block)) else " "
    return re.sub(rf"^{indent}why:.*\n(?:(?:{indent} .*)?\n)*", "", block, flags=re.MULTILINE)


def list_bases(folder: Path | None = None) -> list[Path]:
    """Every base, in order of their names."""
    return [path for path in named(FOLDER, SUFFIXES, within=folder).values() if _BASE.search(_text(path))]


def _text(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b"kind: Experiment"  # the loader reports the problem


def experiment_name(path: Path) -> str:
    """The name that `find_experiment` accepts: `raft/slow-leader-disk`, or the path of a file outside the library."""
    return library_name(path) or str(path)


def library_name(path: Path) -> str | None:
    """The experiment's unique name, with its folder; None outside the library, or if another file hides it."""
    whole = path.resolve()
    for root in map(Path.resolve, both(FOLDER)):
        if whole.is_relative_to(root):
            name = whole.relative_to(root).with_suffix("").as_posix()
            found = located(Path(name), FOLDER, SUFFIXES)
            return name if found is not None and found.resolve() == whole else None
    return None


def find_experiment(name_or_path: Path | str) -> Path:
    """The file of an experiment, given its path, or its name with or without folder and suffix.

    Raises UnknownNameError with similar names.
    """
    asked = Path(name_or_path)
    if (path := located(asked, FOLDER, SUFFIXES)) is not None:
        return path
    if asked.exists() and not asked.is_dir():
        return asked  # a pipe or a device: the loader reports the problem
    found = experiments()
    wanted = asked.with_suffix("").as_posix() if asked.suffix in SUFFIXES else asked.as_posix()
    of_that_name = [name for name in found if name.rpartition("/")[2] == wanted]
    if len(of_that_name) == 1:
        return found[of_that_name[0]]
    near = _near(wanted, of_that_name, list(found))
    if asked.suffix or asked.is_absolute():
        near = f"; {near}" if near.startswith("did") else near_files(asked, SUFFIXES) or f"; {near}"
        raise UnknownNameError(f"{name_or_path}: there is no such file{near}")
    raise UnknownNameError(f"there is no experiment {str(name_or_path)!r}: {near}")


def base_at(path: Path) -> Path:
    """The file that an experiment extends: the user's own, otherwise the shipped one at the same place."""
    if path.is_file() or (own := nearest(FOLDER, path.parent)) is None:
        return path
    inside = os.path.relpath(os.path.realpath(path), own)
    ships = shipped(FOLDER) / inside
    return ships if not inside.startswith("..") and ships.is_file() else path


def _near(wanted: str, same: list[str], names: list[str]) -> str:
    short = {name.rpartition("/")[2]: name for name in names}
    close = same or difflib.get_close_matches(wanted, names, n=3)
    close = close or [short[name] for name in difflib.get_close_matches(wanted, short, n=3)]
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"`hashidrill list` shows all {len(names)}"


MAX_BYTES = 256 * 1024
MOST_BASES = 8
KIND, BASE_KIND = "Experiment", "Base"
NOT_FROM_BASES = ("apiVersion", "kind", "metadata", "extends")
"""Sections that an experiment does not take from a base."""
_ORDER = (
    "apiVersion",
    "kind",
    "metadata",
    "datacenter",
    "load",
    "clients",
    "steady_state",
    "method",
    "guardrails",
    "recovery",
    "expect",
)


def read_experiment(path: Path) -> Document:
    """The document in a file, merged over its bases, with the SLOs and recorded loads from the files that it names.

    Raises ExperimentError as `read_document` does, and for a base that is missing, is not a base, or extends itself.
    """
    document = read_document(path)
    read, here = [path.resolve()], path
    written = _extended(document)
    while written is not None:
        at = base_at(Path(os.path.normpath(here.parent / written)))
        why = _refused(at, read, here)
        if why:
            document.problem(("extends",), f"{written}: {why}")
            document.raise_problems()  # keys that the missing base would provide would be reported too
        base = read_document(at)
        _check_base(base)
        read.append(at.resolve())
        document = document.over(base, without=NOT_FROM_BASES)
        written, here = _extended(base), at
    from hashidrill.core.experiment.load_levels import with_recorded  # noqa: PLC0415 - a list reads no experiment

    return with_recorded(with_slos(document.without("extends"), read_text), read_text)


def complete(document: Document) -> str:
    """The YAML of an experiment with its bases merged in; unchanged if it extends nothing."""
    if len(document.files) == 1 and not document.variant:
        return document.text
    import io  # noqa: PLC0415 - few commands write YAML

    from ruamel.yaml import YAML  # noqa: PLC0415 - a tenth of a second that not every command needs

    yaml = YAML(typ="rt")
    yaml.width = 120
    out = io.StringIO()
    keys = [*(key for key in _ORDER if key in document.data), *(key for key in document.data if key not in _ORDER)]
    yaml.dump({key: document.data[key] for key in keys}, out)
    of = f", variant {document.variant}" if document.variant else ""
    names = ", ".join(file.name for file in document.files[1:])
    extends = f": it extends {names}" if names else ""
    return f"# {document.name}{of}, complete{extends}\n{out.getvalue()}"


def _extended(document: Document) -> str | None:
    written: Any = document.data.get("extends") if isinstance(document.data, dict) else None
    if written is None or isinstance(written, str):
        return written
    document.problem(("extends",), "expected the path of a base, like ../bases/three-servers.yaml")
    document.raise_problems()
    return None


def _bases_from(here: Path) -> str:
    """The bases, as a file at that path must write them."""
    own, roots = nearest(FOLDER, here.parent), [root.resolve() for root in both(FOLDER)]
    inside = {base.resolve().relative_to(root) for base in list_bases() for root in roots if base.is_relative_to(root)}
    folder = Path(os.path.relpath(own, here.parent.resolve())) if own else shipped(FOLDER)
    return f"; bases are {', '.join(str(folder / each) for each in sorted(inside))}" if inside else ""


def _refused(at: Path, read: list[Path], here: Path) -> str:
    try:
        if not at.is_file():
            near = near_files(at, SUFFIXES)
            near = near if "did you mean" in near else _bases_from(here) or near
            return f"there is no such file (the path is relative to this one){near}"
        again = at.resolve() in read
    except (OSError, ValueError) as error:
        return f"cannot be read: {getattr(error, 'strerror', None) or error}"
    if again:
        return "extends itself, through the files that it extends" if len(read) > 1 else "extends itself"
    return f"more than {MOST_BASES} files extend each other" if len(read) > MOST_BASES else ""


def _check_base(base: Document) -> None:
    data = base.data
    if not isinstance(data, dict) or data.get("kind") != BASE_KIND:
        place = ("kind",) if isinstance(data, dict) else ()
        base.problem(place, f"cannot be extended: a base is a mapping with `kind: {BASE_KIND}` at its top")
    elif "metadata" in data:
        base.problem(("metadata",), "a base has no metadata: each experiment has its own", key=True)
    base.raise_problems()


def read_document(path: Path) -> Document:
    """The document in a file. Raises ExperimentError: no such file, not text, not YAML, over a limit."""
    return Document(str(path), read_text(path))


def read_text(path: Path) -> str:
    """The text of a YAML file. Raises ExperimentError: no such file, not text, over a limit."""
    name, raw = str(path), _read(path)
    if len(raw) > MAX_BYTES:
        raise _error(
            f"{name}:1:1: is larger than {MAX_BYTES // 1024} kB, so it cannot be an experiment; check the name"
        )
    return _decode(name, raw)


def _read(path: Path) -> bytes:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise _error(f"{path}: is a directory; name one YAML file in it")
        if not stat.S_ISREG(mode):  # reading a pipe or a device may never end
            raise _error(f"{path}: is not a regular file; name a YAML file")
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise _error(f"{path}: there is no such file{near_files(path, SUFFIXES)}") from None
    except PermissionError:
        raise _error(f"{path}: this user may not read it; run `chmod a+r {path}`") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise _error(f"{str(path)!r}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _decode(name: str, raw: bytes) -> str:
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise _error(f"{name}:1:1: is UTF-16; save it as UTF-8")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # error.object is the text after a byte order mark, if there was one
        before = error.object[: error.start].decode("utf-8", "replace")
        line, column = line_and_column(before, len(before))
        byte = f"byte 0x{error.object[error.start]:02x}"
        raise _error(f"{name}:{line}:{column}: {byte} is not UTF-8; if this is a text file, save it as UTF-8") from None
    if odd := UNPRINTABLE.search(text):
        line, column = line_and_column(text, odd.start())
        raise _error(f"{name}:{line}:{column}: the character U+{ord(odd[0]):04X} is not text; is this a binary file?")
    return text


def _error(text: str) -> ExperimentError:
    return ExperimentError(wrapped(text))
