"""Finds and imports the files that hold hypotheses: the shipped folder, and a user's own `hypotheses/`.

A user's own files are imported near an experiment that is run, and in a folder that the user names. Otherwise only
their text is read (`unrun`): listing, showing or judging must not run Python that happens to lie in the working
directory. A folder inside a recording is never imported: a recording is data.
"""

import ast
import contextlib
import hashlib
import linecache
import os
import re
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, create_model

from hashidrill.core.errors import HashidrillError, UnknownNameError, UsageError
from hashidrill.core.hypothesis.marked import Hypothesis, marked_in
from hashidrill.core.protocols.registry import near as nearest_names
from hashidrill.core.util.folders import in_recording, nearest, say_own_wins
from hashidrill.core.util.folders import shipped as ships

FOLDER = "hypotheses"
_SOURCE = "__hashidrill_source__"
_DEFINITION = re.compile(rb"^@(?:hypothesis|comparison)\b.*?^def (\w+)", re.MULTILINE | re.DOTALL)
VARIABLE = "HASHIDRILL_HYPOTHESES"
"""Environment variable with the folder of shipped hypotheses, instead of the checkout's or the package's."""

Versions = Callable[[Path], list[tuple[Path, int, int]]]
"""The files of a folder, each with its change time (ns) and its size in bytes."""


class Finder:
    """Finds hypotheses by name for one experiment; it lists the folders and their files once."""

    def __init__(self, near_to: Path | None = None) -> None:
        self._near_to = near_to
        self._versions = cache(_versions)

    @cached_property
    def _folders(self) -> list[Path]:
        return folders_of(self._near_to)

    def find(self, name: str) -> Hypothesis:
        """The hypothesis of that name. Raises UnknownNameError with similar names, UsageError when a file does not
        load.
        """
        if (found := _find_early(name, self._folders, self._versions)) is not None:
            return found
        known = collect(self._folders)
        if name not in known:
            raise UnknownNameError(f"there is no hypothesis {name!r}: {nearest_names(name, known)}")
        return known[name]


def collect(folders: Sequence[Path]) -> dict[str, Hypothesis]:
    """Every hypothesis by its name. The first folder wins; one name twice in one folder is an error."""
    found: dict[str, Hypothesis] = {}
    for folder in reversed(folders):
        for name, each in _in_folder(folder).items():
            if name in found:
                say_own_wins(f"{each.path}: {name}", Path(each.path), Path(found[name].path))
            found[name] = each
    return dict(sorted(found.items()))


def _find_early(name: str, folders: list[Path], versions: Versions | None = None) -> Hypothesis | None:
    """Finds the hypothesis while importing only the shipped file that has it, and all files of the user's folders.

    None if only importing everything can decide, because no file, or more than one file of a folder, seems to have it.
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


def folders_of(near_to: Path | None = None, *, named: Path | None = None) -> list[Path]:
    """The folders, nearest first: next to or above the experiment or the working directory, then the shipped folder.

    Without an experiment, searches the folder that the user named and the shipped hypotheses.
    """
    candidates = [] if near_to is None else [nearest(FOLDER, near_to), nearest(FOLDER)]
    candidates += [] if named is None else [folder_in(named)]
    folders = dict.fromkeys(
        folder.resolve() for folder in (*candidates, _shipped()) if folder is not None and folder.is_dir()
    )
    return [folder for folder in folders if not in_recording(folder)]


def folder_in(named: Path) -> Path:
    """The named folder, or the `hypotheses` folder in it. Raises UsageError if neither holds hypotheses."""
    if in_recording(named):
        raise UsageError(
            f"{named}: is in a recording, and hashidrill runs no code from recordings; name a folder elsewhere"
        )
    if not named.is_dir() or (named.resolve().name != FOLDER and not (named / FOLDER).is_dir()):
        raise UsageError(f"{named}: is not a folder called {FOLDER!r} and has none; name the one with your hypotheses")
    return named if named.resolve().name == FOLDER else named / FOLDER


def is_shipped(path: Path) -> bool:
    """Whether the file is one of the shipped hypotheses."""
    return path.resolve().is_relative_to(_shipped().resolve())


def with_digest(digest: str, name: str, named: Path) -> Hypothesis | None:
    """The hypothesis of that name in the one file of the named folder with that SHA-256; no other file is run."""
    for path in _files(folder_in(named)):
        source = path.read_bytes()
        if hashlib.sha256(source).hexdigest() == digest:
            return next((one for one in from_source(str(path), source) if one.name == name), None)
    return None


def unrun(near_to: Path | None = None) -> Callable[[str], Hypothesis]:
    """Finds shipped hypotheses, and outlines of the user's own near that path; reading experiments runs no code."""
    own, ships = outlines(near_to), Finder()

    def find(name: str) -> Hypothesis:
        return own[name] if name in own else ships.find(name)

    return find


def outlines(near_to: Path | None = None) -> dict[str, Hypothesis]:
    """The user's own hypotheses by name, from the text of their files: no code runs, and parameters accept anything."""
    shipped = _shipped().resolve()
    own = [folder for folder in folders_of(near_to or Path.cwd()) if folder != shipped]
    files = [file for folder in reversed(own) for file in _versions(folder)]
    return {each.name: each for file in files for each in _outlined(*file)}


@lru_cache
def _outlined(path: Path, _mtime_ns: int, _size: int) -> tuple[Hypothesis, ...]:
    source = path.read_bytes()
    try:
        tree = ast.parse(source) if b"hashidrill" in source else ast.Module([], [])
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()  # running it would report the problem
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return tuple(_outline(path, node, kind) for node in functions for kind in _marks(node))


def _marks(node: ast.FunctionDef) -> list[str]:
    called = [each.func if isinstance(each, ast.Call) else each for each in node.decorator_list]
    names = [each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "") for each in called]
    return [name for name in names if name in {"hypothesis", "comparison"}][:1]


def _outline(path: Path, node: ast.FunctionDef, kind: str) -> Hypothesis:
    sides = tuple(each.arg for each in node.args.args) if kind == "comparison" else ()
    fields: dict[str, Any] = dict.fromkeys(sides, (str, ...))
    model: type[BaseModel] = create_model(f"{node.name}_params", __config__=ConfigDict(extra="allow"), **fields)

    def not_run(*_: object, **__: object) -> None:
        raise UsageError(f"{path}: {node.name} was only read, and not run")

    return Hypothesis(node.name, not_run, model, ast.get_docstring(node) or "", path, node.lineno, sides=sides)


def _shipped() -> Path:
    """The shipped folder: the one named in the environment, this package's checkout, or the copy inside the package.

    The checkout around the working directory does not count: a user's project may have folders of the same names,
    and would then lack the shipped hypotheses.
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
    return frozenset(match.decode() for match in _DEFINITION.findall(path.read_bytes()))


@lru_cache
def _in_file(path: Path, _mtime_ns: int, _size: int) -> tuple[Hypothesis, ...]:
    """The hypotheses of one file, imported once for each version of it."""
    source = path.read_bytes()
    if b"hashidrill" not in source:
        return ()  # a folder called `hypotheses` may be anything, like research: run only files that import hashidrill
    return tuple(from_source(str(path), source))


def from_source(file: str, source: bytes) -> list[Hypothesis]:
    """The hypotheses that this Python source defines; messages name it as `file`. Raises UsageError.

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
        exec(compile(source, file, "exec", dont_inherit=True), vars(module))  # noqa: S102 - runs the user's code
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
    """The source of the file that defines the hypothesis; empty if no file defines it."""
    source = hypothesis.function.__globals__.get(_SOURCE, b"")
    return source if isinstance(source, bytes) else b""


def _where(error: BaseException, path: str) -> str:
    line, frame = 0, error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == path:
            line = frame.tb_lineno
        frame = frame.tb_next
    return f"{path}:{line}" if line else path


def get(name: str, *, near_to: Path | None = None) -> Hypothesis:
    """The hypothesis of that name. Raises UnknownNameError with similar names, UsageError for a file that does not
    load.

    `near_to` is an experiment file (or its folder) that the user runs: the `hypotheses/` folders next to it or
    above, and next to or above the working directory, are searched too. Inside `looking_up`, only that lookup
    counts.
    """
    return getter(near_to)(name)


def getter(near_to: Path | None = None) -> Callable[[str], Hypothesis]:
    """`get` for all hypotheses of one experiment: the folders near it are listed once, at the first call."""
    finder = Finder(near_to or _near.get())

    def of(name: str) -> Hypothesis:
        lookup = _lookup.get()
        return finder.find(name) if lookup is None else lookup(name)

    return of


_near: ContextVar[Path | None] = ContextVar("near", default=None)


@contextlib.contextmanager
def near(path: Path) -> Iterator[None]:
    """Within this block, calls without a path search near that path."""
    token = _near.set(path)
    try:
        yield
    finally:
        _near.reset(token)


_lookup: ContextVar[Callable[[str], Hypothesis] | None] = ContextVar("lookup", default=None)


@contextlib.contextmanager
def looking_up(lookup: Callable[[str], Hypothesis]) -> Iterator[None]:
    """Within this block, `get` returns the hypothesis that `lookup` finds, also when one hypothesis calls another."""

    def alone(name: str) -> Hypothesis:
        token = _lookup.set(None)  # the lookup may itself call `get`
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
    """Every hypothesis by its name: the shipped ones, and the user's own, which win over shipped ones of that name.

    The user's own are those near an experiment that is run, or in the folder that the user named.
    """
    return {name: each for name, each in collect(folders_of(near_to, named=named)).items() if not each.sides}


def all_comparisons(*, named: Path | None = None) -> dict[str, Hypothesis]:
    """Every comparison hypothesis by its name, as `all_hypotheses`."""
    return {name: each for name, each in collect(folders_of(named=named)).items() if each.sides}
