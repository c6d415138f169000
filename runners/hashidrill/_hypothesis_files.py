"""Finds and imports the files that hold hypotheses: the shipped folder, and a user's own `hypotheses/` nearby."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from functools import lru_cache
from pathlib import Path

from hashidrill.errors import HashidrillError, UnknownNameError, UsageError
from hashidrill.hypothesis import Hypothesis, marked_in
from hashidrill.registry import near

FOLDER = "hypotheses"
_PACKAGE = Path(__file__).resolve().parent
VARIABLE = "HASHIDRILL_HYPOTHESES"
"""Names the folder of shipped hypotheses, in place of the checkout's or the package's."""


def find(name: str, near_to: Path | None = None) -> Hypothesis:
    """Raises UnknownNameError with near names, or UsageError when a file does not load."""
    known = collect(near_to)
    if name not in known:
        raise UnknownNameError(f"there is no hypothesis {name!r}: {near(name, known)}")
    return known[name]


def collect(near_to: Path | None = None) -> dict[str, Hypothesis]:
    """Every hypothesis by its name. The nearest folder wins; two of one name in one folder are an error."""
    found: dict[str, Hypothesis] = {}
    for folder in reversed(_folders(near_to)):
        found.update(_in_folder(folder))
    return dict(sorted(found.items()))


def _folders(near_to: Path | None) -> list[Path]:
    """Nearest first: beside or above the experiment, beside or above the working directory, the shipped ones."""
    candidates = [*_above(near_to), *_above(Path.cwd()), _shipped()]
    return list(dict.fromkeys(folder.resolve() for folder in candidates if folder.is_dir()))


def _shipped() -> Path:
    """The shipped folder: the one named in the environment, this package's checkout, or the copy inside the package.

    Not the checkout around the working directory: a user's project may have folders of the same names, and would then
    be without the shipped hypotheses.
    """
    if (named := os.environ.get(VARIABLE)) is not None:
        if not Path(named).is_dir():
            raise UsageError(f"{VARIABLE}={named}: no such folder; name the one that holds the hypotheses")
        return Path(named)
    checkout = _PACKAGE.parent.parent / FOLDER  # runners/hashidrill in a checkout
    in_checkout = _PACKAGE.parent.name == "runners" and checkout.is_dir()
    return checkout if in_checkout else _PACKAGE / "_library" / FOLDER


def _above(start: Path | None) -> list[Path]:
    """The nearest `hypotheses/` at or above `start`, not above the repository that it is in."""
    if start is None:
        return []
    for directory in (start.resolve(), *start.resolve().parents):
        if (directory / FOLDER).is_dir():
            return [directory / FOLDER]
        if (directory / ".git").exists():
            break
    return []


def _in_folder(folder: Path) -> dict[str, Hypothesis]:
    found: dict[str, Hypothesis] = {}
    for path in sorted(folder.glob("*.py")):
        if path.name.startswith(("_", "test_", "conftest")):
            continue
        status = path.stat()
        for hypothesis in _in_file(path, status.st_mtime_ns, status.st_size):
            if (other := found.get(hypothesis.name)) is not None:
                raise UsageError(
                    f"{path}:{hypothesis.line}: hypothesis {hypothesis.name!r} is already in {other.path}:{other.line};"
                    " give one of them another name"
                )
            found[hypothesis.name] = hypothesis
    return found


@lru_cache
def _in_file(path: Path, _mtime_ns: int, _size: int) -> tuple[Hypothesis, ...]:
    """The hypotheses of one file, imported once for each version of it."""
    if b"hashidrill" not in path.read_bytes():
        return ()  # a folder of this name may hold somebody's science: what is not ours is not run
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:12]
    name = f"_hashidrill_hypotheses_{digest}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except HashidrillError:
        del sys.modules[name]
        raise
    except SyntaxError as error:
        del sys.modules[name]
        raise UsageError(f"{error.filename or path}:{error.lineno}: not Python: {error.msg}") from None
    except Exception as error:
        del sys.modules[name]
        raise UsageError(f"{_where(error, path)}: cannot be imported: {type(error).__name__}: {error}") from error
    return tuple(marked_in(vars(module)))


def _where(error: BaseException, path: Path) -> str:
    """file:line of the deepest frame in the file itself: where the user has to look."""
    line, frame = 0, error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == str(path):
            line = frame.tb_lineno
        frame = frame.tb_next
    return f"{path}:{line}" if line else str(path)
