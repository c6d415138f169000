"""The data files of the gate, as they ship with the package."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from ruamel.yaml import YAML


@cache
def shipped(name: str) -> Any:
    """`left_out.yaml`, `keys.yaml`: plain data."""
    return YAML(typ="safe").load(files("hashidrill.rollouts.gate").joinpath(name).read_text(encoding="utf-8"))
