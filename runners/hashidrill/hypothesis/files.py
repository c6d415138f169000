"""Finds and imports the files that hold hypotheses: the shipped folder, and a user's own `hypotheses/` nearby.

A folder that lies in a recording is never one of them, however it was reached: a recording is data.
"""

from __future__ import annotations

import hashlib
import linecache
import os
import re
import sys
import types
from collections.abc import Callable
from functools import cache, cached_property, lru_cache
from pathlib import Path

from hashidrill.errors import HashidrillError, UnknownNameError, UsageError
from hashidrill.hypothesis.marked import Hypothesis, marked_in
from hashidrill.registry import near
from hashidrill.util.folders import in_recording, nearest, say_own_wins
from hashidrill.util.folders import shipped as ships

FOLDER = "hypotheses"
_SOURCE = "__hashidrill_source__"
_DEFINITION = re.compile(rb"^@(?:hypothesis|comparison)\b.*?^def (\w+)", re.MULTILINE | re.DOTALL)
VARIABLE = "HASHIDRILL_HYPOTHESES"
"""Names the folder of shipped hypotheses, in place of the checkout's or the package's."""

Versions = Callable[[Path], list[tuple[Path, int, int]]]
"""The files of a folder: each with the time at which it was changed (ns), and its size in bytes."""


class Finder:
    """Finds hypotheses by name for one experiment: what folders there are, and what is in them, is looked at once."""

    def __init__(self, near_to: Path | None = None) -> None:
        self._near_to = near_to
        self._versions = cache(_versions)

    @cached_property
    def _folders(self) -> list[Path]:
        return _folders(self._near_to)

    def find(self, name: str) -> Hypothesis:
        """Raises UnknownNameError with near names, or UsageError when a file does not load."""
        if (found := _find_early(name, self._folders, self._versions)) is not None:
            return found
        known = collect(self._near_to)
        if name not in known:
            raise UnknownNameError(f"there is no hypothesis {name!r}: {near(name, known)}")
        return known[name]


def collect(near_to: Path | None = None) -> dict[str, Hypothesis]:
    """Every hypothesis by its name. The nearest folder wins; two of one name in one folder are an error."""
    found: dict[str, Hypothesis] = {}
    for folder in reversed(_folders(near_to)):
        for name, each in _in_folder(folder).items():
            if name in found:
                say_own_wins(f"{each.path}: {name}", Path(each.path), Path(found[name].path))
            found[name] = each
    return dict(sorted(found.items()))


def _find_early(name: str, folders: list[Path], versions: Versions | None = None) -> Hypothesis | None:
    """The hypothesis of that name, importing only the one shipped file that has it, and all files of a user's folders.

    None if only importing everything can tell: no file seems to have it, or two files of one folder do.
    """
    shipped = None if VARIABLE in os.environ else _shipped().resolve()
    own = {folder: _in_folder(folder, versions) for folder in folders if folder != shipped}
    for folder in folders:
        if folder == shipped:
            files = [file for file in (versions or _versions)(folder) if name in _names_in(*file)]
            if files:
                found = {each.name: each for each in _in_file(*files[0])}
                return found.get(name) if len(files) == 1 else None
        elif name in own[folder]:
            for file in (versions or _versions)(shipped) if shipped is not None else ():
                if name in _names_in(*file):
                    say_own_wins(f"{own[folder][name].path}: {name}", Path(own[folder][name].path), file[0])
            return own[folder][name]
    return None


def _folders(near_to: Path | None) -> list[Path]:
    """Nearest first: next to or above the experiment, next to or above the working directory, the shipped ones."""
    near_by = [] if near_to is None else [nearest(FOLDER, near_to)]
    candidates = [*near_by, nearest(FOLDER), _shipped()]
    folders = dict.fromkeys(folder.resolve() for folder in candidates if folder is not None and folder.is_dir())
    return [folder for folder in folders if not in_recording(folder)]


def check_folder(named: Path) -> None:
    """Raises UsageError for a folder that cannot hold a user's hypotheses."""
    if in_recording(named):
        raise UsageError(
            f"{named}: is in a recording, and hashidrill runs no code from recordings; name a folder elsewhere"
        )
    if not named.is_dir() or (named.resolve().name != FOLDER and not (named / FOLDER).is_dir()):
        raise UsageError(f"{named}: is no folder called {FOLDER!r} and holds none; name the one with your hypotheses")


def _shipped() -> Path:
    """The shipped folder: the one named in the environment, this package's checkout, or the copy inside the package.

    Not the checkout around the working directory: a user's project may have folders of the same names, and would then
    be without the shipped hypotheses.
    """
    if (named := os.environ.get(VARIABLE)) is not None:
        if not Path(named).is_dir():
            raise UsageError(f"{VARIABLE}={named}: no such folder; name the one that holds the hypotheses")
        if in_recording(Path(named)):
            raise UsageError(
                f"{VARIABLE}={named}: is in a recording, and hashidrill runs no code from recordings; name a folder"
                " elsewhere"
            )
        return Path(named)
    return ships(FOLDER)


def _in_folder(folder: Path, versions: Versions | None = None) -> dict[str, Hypothesis]:
    found: dict[str, Hypothesis] = {}
    for path, *version in (versions or _versions)(folder):
        for hypothesis in _in_file(path, *version):
            if (other := found.get(hypothesis.name)) is not None:
                raise UsageError(
                    f"{path}:{hypothesis.line}: hypothesis {hypothesis.name!r} is already in {other.path}:{other.line};"
                    " give one of them another name"
                )
            found[hypothesis.name] = hypothesis
    return found


def _files(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.name.endswith(".py"))
    except PermissionError:
        return []
    return [folder / name for name in names if not name.startswith(("_", "test_", "conftest"))]


def _version(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size


def _versions(folder: Path) -> list[tuple[Path, int, int]]:
    return [(path, *_version(path)) for path in _files(folder)]


@lru_cache
def _names_in(path: Path, _mtime_ns: int, _size: int) -> frozenset[str]:
    """What a shipped file defines, as its text has it, without running it."""
    return frozenset(match.decode() for match in _DEFINITION.findall(path.read_bytes()))


@lru_cache
def _in_file(path: Path, _mtime_ns: int, _size: int) -> tuple[Hypothesis, ...]:
    """The hypotheses of one file, imported once for each version of it."""
    source = path.read_bytes()
    if b"hashidrill" not in source:
        return ()  # a folder called `hypotheses` may be somebody's research: run only files that are ours
    return tuple(from_source(str(path), source))


def from_source(file: str, source: bytes) -> list[Hypothesis]:
    """The hypotheses that this Python defines; `file` stands for it in messages. Raises UsageError.

    Compiles exactly these bytes and bypasses Python's cache of compiled files, so `source_of` returns what ran.
    """
    digest = hashlib.sha256(file.encode()).hexdigest()[:12]
    name = f"_hashidrill_hypotheses_{digest}_{Path(file).stem}"
    module = types.ModuleType(name)
    module.__file__ = file
    setattr(module, _SOURCE, source)
    sys.modules[name] = module  # dataclasses look their module up
    lines = source.decode(errors="replace").splitlines(keepends=True)
    linecache.cache[file] = (len(source), None, lines, file)  # for the text of an assertion that broke
    try:
        exec(compile(source, file, "exec", dont_inherit=True), vars(module))  # noqa: S102 - this is what it is for
    except HashidrillError:
        del sys.modules[name]
        raise
    except SyntaxError as error:
        del sys.modules[name]
        raise UsageError(f"{error.filename or file}:{error.lineno}: not Python: {error.msg}") from None
    except Exception as error:
        del sys.modules[name]
        raise UsageError(f"{_where(error, file)}: cannot be imported: {type(error).__name__}: {error}") from error
    return marked_in(vars(module))


def source_of(hypothesis: Hypothesis) -> bytes:
    """The whole file that it was compiled from; nothing for one that was made by other means."""
    source = hypothesis.function.__globals__.get(_SOURCE, b"")
    return source if isinstance(source, bytes) else b""


def _where(error: BaseException, path: str) -> str:
    """file:line of the deepest frame in the file itself: where the user has to look."""
    line, frame = 0, error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == path:
            line = frame.tb_lineno
        frame = frame.tb_next
    return f"{path}:{line}" if line else path
