"""The library's folders: the user's own, near the working directory, and the shipped one.

A name is looked up as a path, then in the user's own folder, then in the shipped folder. A folder in a recording never
counts as the user's own: a recording is data.
"""

import contextlib
import difflib
import os
from collections.abc import Iterable
from functools import cache, lru_cache
from pathlib import Path

from hashidrill.core.errors import UsageError
from hashidrill.core.util.files import COMPARISON_NAME, JOURNAL_NAME

PLAYBOOKS = "playbooks"
RUNS_DIR = Path(".hashidrill/runs")
DAYS = "days"
"""The folder of game days. It is next to the folder of runs."""
_PACKAGE = Path(__file__).resolve().parents[2]


def shipped(folder: str) -> Path:
    """That folder in this package's checkout, or its copy inside an installed package. It may be missing."""
    checkout = _PACKAGE.parent.parent / folder  # runners/hashidrill in a checkout
    in_checkout = _PACKAGE.parent.name == "runners" and checkout.is_dir()
    return checkout if in_checkout else _PACKAGE / "_library" / folder


def state_folder() -> Path:
    """`$XDG_STATE_HOME/hashidrill`, by default below ~/.local/state: for data that outlives a command, no cache."""
    base = Path(os.environ.get("XDG_STATE_HOME") or "")
    if not base.is_absolute():  # the XDG base directory specification: ignore a relative path
        base = Path(os.path.expanduser("~/.local/state"))  # noqa: PTH111 - Path.home raises if HOME is unset
    return base / "hashidrill"


def nearest(folder: str, start: Path | None = None) -> Path | None:
    """The nearest folder of that name at or above `start` (default: the working directory), in the same repository.

    None if `start` is in a recording: the folders above it may be part of a copy.
    """
    real = os.path.realpath(start or Path.cwd())
    if in_recording(real):
        return None
    for place in _upwards(real):
        if _is_there(place, folder) and (found := Path(place, folder)).is_dir():
            return found
        if _is_there(place, ".git"):
            break
    return None


def project() -> Path:
    """The user's project: the nearest folder, from the working directory upwards, with `experiments/` or `.git`.

    The working directory itself if no folder has either.
    """
    here = os.path.realpath(Path.cwd())
    marked = (place for place in _upwards(here) if any(_is_there(place, name) for name in ("experiments", ".git")))
    return Path(next(marked, here))


def both(folder: str) -> list[Path]:
    """The user's own folder, if there is one, then the shipped folder."""
    own, ships = nearest(folder), shipped(folder)
    found = [] if own is None or own == ships.resolve() else [own]
    return [*found, ships] if ships.is_dir() else found


def located(asked: Path, folder: str, suffixes: Iterable[str]) -> Path | None:
    """The file at that path, with or without suffix; otherwise the file of that name in the user's or shipped folder.

    Prints a note if the user's own file replaces a shipped one. The name may begin with the folder, as in documents.
    """
    for path in _with_suffixes(asked, suffixes):
        if path.is_file():
            return path
    if asked.is_absolute() or ".." in asked.parts:
        return None
    inside = asked.relative_to(folder) if asked.is_relative_to(folder) else asked
    names = _with_suffixes(inside, suffixes)
    found = [path for root in both(folder) for name in names if (path := root / name).is_file()]
    if found[1:] and found[0].parent != found[1].parent:
        say_own_wins(str(found[0]), found[0], found[1])
    return found[0] if found else None


def named(folder: str, suffixes: Iterable[str], *, within: Path | None = None) -> dict[str, Path]:
    """Every file below `within`, or below the user's own and the shipped folder, by its name without suffix."""
    found: dict[str, Path] = {}
    for root in [within] if within is not None else reversed(both(folder)):
        for path in sorted(each for each in root.rglob("*") if each.suffix in suffixes and each.is_file()):
            name = path.relative_to(root).with_suffix("").as_posix()
            if within is None and name in found and not found[name].is_relative_to(root):
                say_own_wins(str(path), path, found[name])
            found[name] = path
    return dict(sorted(found.items()))


def find_playbook(name: Path | str, suffixes: Iterable[str]) -> Path:
    """A game day, a runbook or a campaign, as `located` finds it. Raises UsageError with similar names."""
    asked = Path(name)
    if (path := located(asked, PLAYBOOKS, suffixes)) is not None:
        return path
    if asked.exists():
        return asked  # a folder or a pipe: the reader reports the problem
    close = difflib.get_close_matches(asked.stem, list(named(PLAYBOOKS, suffixes)), n=3)
    near = f"; did you mean {' or '.join(close)}?" if close else near_files(asked, suffixes)
    raise UsageError(f"{asked}: there is no such file{near}")


def near_files(path: Path, suffixes: Iterable[str]) -> str:
    """A hint for a missing file: files with similar names, or that its folder is missing too."""
    try:
        names = {entry.stem: entry.name for entry in path.parent.iterdir() if entry.suffix in suffixes}
    except (OSError, ValueError):
        return f"; there is no directory {path.parent} either"
    close = difflib.get_close_matches(path.stem, names, n=3)
    return f"; did you mean {' or '.join(str(path.parent / names[stem]) for stem in close)}?" if close else ""


def in_recording(path: Path | str) -> bool:
    """Whether the path is, or lies in, a recording or a comparison."""
    upwards = _upwards(os.path.realpath(path))
    return any(_is_there(place, name) for place in upwards for name in (JOURNAL_NAME, COMPARISON_NAME))


@cache
def say_own_wins(what: str, own: Path, ships: Path) -> None:
    """Notes once, on standard error, that the user's own file replaces a shipped one."""
    import logging  # noqa: PLC0415 - most commands print no such note

    with contextlib.suppress(OSError):  # the code that opens the file reports the problem
        if own.read_bytes() != ships.read_bytes():
            logging.getLogger("hashidrill").warning("hashidrill: note: %s takes the place of the shipped one", what)


def _with_suffixes(path: Path, suffixes: Iterable[str]) -> list[Path]:
    return [path] if path.suffix in suffixes else [path, *(Path(f"{path}{suffix}") for suffix in suffixes)]


@lru_cache
def _upwards(real: str) -> tuple[str, ...]:
    return (real, *map(str, Path(real).parents))


def _is_there(folder: str, name: str) -> bool:
    """Uses text, because a Path is slow to make, and this runs for every folder above each hypothesis."""
    return os.access(f"{folder}/{name}", os.F_OK)
