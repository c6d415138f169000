"""Finds experiments and hypotheses: by an explicit path, in a checkout, or in the packaged copy."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from hashidrill.errors import UnknownNameError, UsageError

SUFFIXES = (".yaml", ".yml")
_BASE = re.compile(rb"^kind:[ \t]*[\"']?Base\b", re.MULTILINE)
_PACKAGE = Path(__file__).resolve().parents[1]


def experiments_dir(explicit: Path | str | None = None) -> Path:
    """The folder of experiments. Raises UsageError when `explicit` is no folder, or there is none anywhere."""
    return _folder("experiments", explicit)


def hypotheses_dir(explicit: Path | str | None = None) -> Path:
    """The folder of hypotheses. Raises UsageError when `explicit` is no folder, or there is none anywhere."""
    return _folder("hypotheses", explicit)


def list_experiments(explicit: Path | str | None = None) -> list[Path]:
    """Every experiment file of the library, in order of their names. What they extend is not among them."""
    return [path for path in _files(explicit) if not _is_base(path)]


def list_bases(explicit: Path | str | None = None) -> list[Path]:
    """Every file of the library that experiments extend, in order of their names."""
    return [path for path in _files(explicit) if _is_base(path)]


def _files(explicit: Path | str | None) -> list[Path]:
    root = experiments_dir(explicit)
    return sorted(path for path in root.rglob("*") if path.suffix in SUFFIXES and path.is_file())


def _is_base(path: Path) -> bool:
    try:
        return _BASE.search(path.read_bytes()) is not None
    except OSError:
        return False  # the loader says what is wrong with it


def experiment_name(path: Path, explicit: Path | str | None = None) -> str:
    """The name that `find_experiment` accepts: `raft/slow-leader-disk`, or the path of a file outside the library."""
    return library_name(path, explicit) or str(path)


def library_name(path: Path, explicit: Path | str | None = None) -> str | None:
    """Its name with its folder, which no other experiment of the library has; None for a file outside of it."""
    try:
        return _name_in(experiments_dir(explicit).resolve(), path)
    except (ValueError, UsageError):
        return None


def _name_in(root: Path, path: Path) -> str:
    """Raises ValueError for a file outside of `root`, which is resolved."""
    return path.resolve().relative_to(root).with_suffix("").as_posix()


def find_experiment(name_or_path: Path | str, explicit: Path | str | None = None) -> Path:
    """The file of an experiment, given its path, or its name with or without folder and suffix.

    Raises UnknownNameError with near names.
    """
    asked = Path(name_or_path)
    for path in _with_suffixes(asked):
        if path.is_file():
            return path
    if asked.exists() and not asked.is_dir():
        return asked  # a pipe or a device: the loader says what is wrong with it
    found = _by_name(explicit)
    wanted = asked.with_suffix("").as_posix() if asked.suffix in SUFFIXES else asked.as_posix()
    if wanted in found:
        return found[wanted]
    of_that_name = [name for name in found if name.rpartition("/")[2] == wanted]
    if len(of_that_name) == 1:
        return found[of_that_name[0]]
    raise UnknownNameError(f"there is no experiment {str(name_or_path)!r}: {_near(wanted, of_that_name, list(found))}")


def _by_name(explicit: Path | str | None) -> dict[str, Path]:
    """Every experiment of the library. Where that is, is looked up once: for each file it took longer than all else."""
    root = experiments_dir(explicit).resolve()
    found = {}
    for path in list_experiments(explicit):
        try:
            found[_name_in(root, path)] = path
        except ValueError:  # a link that leads out of it
            found[str(path)] = path
    return found


def _near(wanted: str, same: list[str], names: list[str]) -> str:
    short = {name.rpartition("/")[2]: name for name in names}
    close = same or difflib.get_close_matches(wanted, names, n=3)
    close = close or [short[name] for name in difflib.get_close_matches(wanted, short, n=3)]
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"`hashidrill list` shows all {len(names)}"


def _with_suffixes(path: Path) -> list[Path]:
    return [path] if path.suffix in SUFFIXES else [path, *(Path(f"{path}{suffix}") for suffix in SUFFIXES)]


def _folder(name: str, explicit: Path | str | None) -> Path:
    if explicit is not None:
        if not Path(explicit).is_dir():
            raise UsageError(f"{explicit}: there is no such folder; name the one that holds the {name}")
        return Path(explicit)
    places = [*_checkouts(), _PACKAGE / "_library"]
    for place in places:
        if (place / name).is_dir():
            return place / name
    raise UsageError(f"no {name} folder in a checkout at or above {Path.cwd()}, nor in the package; name one")


def _checkouts() -> list[Path]:
    """The nearest folder at or above the working directory that has both folders, then the one this file is in."""
    here = Path.cwd()
    above = [place for place in (here, *here.parents) if _is_checkout(place)]
    source = _PACKAGE.parent.parent  # runners/hashidrill in a checkout; in an installed wheel, some lib folder
    return [*above[:1], *([source] if _is_checkout(source) else [])]


def _is_checkout(place: Path) -> bool:
    return (place / "experiments").is_dir() and (place / "hypotheses").is_dir()
