"""Where scenarios are: an explicit path, a checkout's playbooks/training, or the packaged copy."""

from __future__ import annotations

from pathlib import Path

from hashidrill.errors import UnknownNameError
from hashidrill.experiment.library import SUFFIXES, experiments_dir
from hashidrill.registry import near

FOLDER = Path("playbooks/training")


def scenarios_dir() -> Path:
    """The folder of scenarios, next to the folder of experiments. Raises UsageError where there is no library."""
    return experiments_dir().parent / FOLDER


def list_scenarios() -> list[Path]:
    """Every scenario of the library, in the order of their names."""
    folder = scenarios_dir()
    return sorted(path for path in folder.glob("*") if path.suffix in SUFFIXES and path.is_file())


def find_scenario(name_or_path: str) -> Path:
    """The file of a scenario, by its name or its path. Raises UnknownNameError with near names."""
    path = Path(name_or_path)
    if path.suffix in SUFFIXES and path.is_file():
        return path
    found = {each.stem: each for each in list_scenarios()}
    if name_or_path not in found:
        raise UnknownNameError(
            f"there is no scenario {name_or_path!r}: {near(name_or_path, found)}; `hashidrill train --list` shows all"
        )
    return found[name_or_path]
