"""Finds experiments by their names: a path, one's own in `experiments/`, or one that ships. One's own wins."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

from hashidrill.core.errors import UnknownNameError
from hashidrill.core.util.folders import both, located, named, near_files, nearest, shipped

FOLDER = "experiments"
SUFFIXES = (".yaml", ".yml")
_BASE = re.compile(rb"^kind:[ \t]*[\"']?Base\b", re.MULTILINE)
_OURS = re.compile(rb"^(?:apiVersion:[ \t]*[\"']?hashidrill/|kind:[ \t]*[\"']?Experiment\b)", re.MULTILINE)
_OTHERS = re.compile(rb"^kind:[ \t]*[\"']?(?:Base|Attach|GameDay|Scenario|Campaign)\b", re.MULTILINE)


def experiments(folder: Path | None = None) -> dict[str, Path]:
    """Every experiment by its name with its folder: those of `folder`, or one's own and those that ship.

    A file that experiments extend, or that is about something else, is not among them.
    """
    found = named(FOLDER, SUFFIXES, within=folder).items()
    return {name: path for name, path in found if _OURS.search(text := _text(path)) and not _OTHERS.search(text)}


def list_experiments(folder: Path | None = None) -> list[Path]:
    """The files of `experiments`, in order of their names."""
    return list(experiments(folder).values())


def list_bases(folder: Path | None = None) -> list[Path]:
    """Every file that experiments extend, in order of their names."""
    return [path for path in named(FOLDER, SUFFIXES, within=folder).values() if _BASE.search(_text(path))]


def _text(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b"kind: Experiment"  # the loader says what is wrong with it


def experiment_name(path: Path) -> str:
    """The name that `find_experiment` accepts: `raft/slow-leader-disk`, or the path of a file outside the library."""
    return library_name(path) or str(path)


def library_name(path: Path) -> str | None:
    """Its name with its folder, which no other experiment has; None for a file outside the library, or hidden in it."""
    whole = path.resolve()
    for root in map(Path.resolve, both(FOLDER)):
        if whole.is_relative_to(root):
            name = whole.relative_to(root).with_suffix("").as_posix()
            found = located(Path(name), FOLDER, SUFFIXES)
            return name if found is not None and found.resolve() == whole else None
    return None


def find_experiment(name_or_path: Path | str) -> Path:
    """The file of an experiment, given its path, or its name with or without folder and suffix.

    Raises UnknownNameError with near names.
    """
    asked = Path(name_or_path)
    if (path := located(asked, FOLDER, SUFFIXES)) is not None:
        return path
    if asked.exists() and not asked.is_dir():
        return asked  # a pipe or a device: the loader says what is wrong with it
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
    """The file that an experiment extends: one's own, else the one with that place in the folder that ships."""
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
