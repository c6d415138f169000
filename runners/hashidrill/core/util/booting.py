"""Starts modules of hashidrill in other processes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hashidrill


def boot_command(module: str, spec: Mapping[str, Any]) -> list[str]:
    """The command line that runs one of our modules without site-packages: it starts in some 30 ms."""
    source = str(Path(hashidrill.__file__).parents[1])
    boot = (
        f"import sys; sys.path.insert(0, {source!r}); import runpy; runpy.run_module({module!r}, run_name='__main__')"
    )
    return [sys.executable, "-I", "-S", "-c", boot, json.dumps(spec)]


def python_path() -> str:
    """PYTHONPATH for our own modules in another process: this copy of them first, then what the user named."""
    there = os.environ.get("PYTHONPATH")
    return os.pathsep.join([str(Path(hashidrill.__file__).parents[1]), *([there] if there else [])])
