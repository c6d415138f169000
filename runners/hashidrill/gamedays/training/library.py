"""Where scenarios are: a path, one's own playbooks/training, or those that ship. One's own wins."""

from __future__ import annotations

from pathlib import Path

from hashidrill.core.errors import UnknownNameError
from hashidrill.core.experiment.library import SUFFIXES
from hashidrill.core.protocols.registry import near
from hashidrill.core.util.folders import PLAYBOOKS, located, named

FOLDER = f"{PLAYBOOKS}/training"


def list_scenarios() -> list[Path]:
    """Every scenario, one's own and those that ship, in the order of their names."""
    return list(named(FOLDER, SUFFIXES).values())


def find_scenario(name_or_path: str) -> Path:
    """The file of a scenario, by its name or its path. Raises UnknownNameError with near names."""
    asked = Path(name_or_path)
    if (path := located(asked, FOLDER, SUFFIXES)) is not None and path.suffix in SUFFIXES:
        return path
    known = named(FOLDER, SUFFIXES)
    what = f"{asked}: there is no such file" if asked.suffix in SUFFIXES else f"there is no scenario {name_or_path!r}"
    raise UnknownNameError(f"{what}: {near(asked.stem, known)}; `hashidrill train --list` shows all")
