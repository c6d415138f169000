"""Reads the file of an experiment, and the files that it extends, as one document.

`extends: ../bases/three-servers.yaml` names a base, a file of `kind: Base` that holds any of an experiment's sections.
The path is relative to the file that it stands in; what one's own `experiments/` lacks is taken from those that ship.
Mappings are merged key by key and the experiment wins; a list or a
value replaces that of the base; null takes a key of the base away. A base may extend another.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

from hashidrill.core.errors import ExperimentError
from hashidrill.core.experiment.documents import UNPRINTABLE, Document
from hashidrill.core.experiment.library import SUFFIXES, base_at
from hashidrill.core.experiment.problems import line_and_column, wrapped
from hashidrill.core.util.folders import near_files

MAX_BYTES = 256 * 1024
MOST_BASES = 8
KIND, BASE_KIND = "Experiment", "Base"
NOT_FROM_BASES = ("apiVersion", "kind", "metadata", "extends")
"""What an experiment does not get from a base."""
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
    """The document in a file, merged over the bases that it extends.

    Raises ExperimentError as `read_document` does, and for a base that is not there, is none, or extends itself.
    """
    document = read_document(path)
    read, here = [path.resolve()], path
    written = _extended(document)
    while written is not None:
        at = base_at(Path(os.path.normpath(here.parent / written)))
        why = _refused(at, read)
        if why:
            document.problem(("extends",), f"{written}: {why}")
            document.raise_problems()  # what is missing without the base would be noise
        base = read_document(at)
        _check_base(base)
        read.append(at.resolve())
        document = document.over(base, without=NOT_FROM_BASES)
        written, here = _extended(base), at
    return document.without("extends")


def complete(document: Document) -> str:
    """The YAML of an experiment with all that it extends in it; as it was written where it extends nothing."""
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
    """The path that stands under `extends`."""
    written: Any = document.data.get("extends") if isinstance(document.data, dict) else None
    if written is None or isinstance(written, str):
        return written
    document.problem(("extends",), "expected the path of a base, like ../bases/three-servers.yaml")
    document.raise_problems()
    return None


def _refused(at: Path, read: list[Path]) -> str:
    """Why a file cannot be extended, or nothing."""
    try:
        if not at.is_file():
            return f"there is no such file (the path is relative to this one){near_files(at, SUFFIXES)}"
        again = at.resolve() in read
    except (OSError, ValueError) as error:
        return f"cannot be read: {getattr(error, 'strerror', None) or error}"
    if again:
        return "extends itself, by way of what it extends" if len(read) > 1 else "extends itself"
    return f"more than {MOST_BASES} files extend each other" if len(read) > MOST_BASES else ""


def _check_base(base: Document) -> None:
    """Raises ExperimentError for what is no base."""
    data = base.data
    if not isinstance(data, dict) or data.get("kind") != BASE_KIND:
        place = ("kind",) if isinstance(data, dict) else ()
        base.problem(place, f"cannot be extended: a base is a mapping with `kind: {BASE_KIND}` at its top")
    elif "metadata" in data:
        base.problem(("metadata",), "a base has no metadata: each experiment has its own", key=True)
    base.raise_problems()


def read_document(path: Path) -> Document:
    """The document in a file. Raises ExperimentError: no such file, not text, not YAML, over a limit."""
    name = str(path)
    raw = _read(path)
    if len(raw) > MAX_BYTES:
        raise _error(
            f"{name}:1:1: is larger than {MAX_BYTES // 1024} kB, so it cannot be an experiment; check the name"
        )
    return Document(name, _decode(name, raw))


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
        # error.object is what came after a byte order mark, if there was one
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
