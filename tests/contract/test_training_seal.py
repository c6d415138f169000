"""What a game's keeper does before anything else."""

from __future__ import annotations

import subprocess
import sys


def test_nothing_that_starts_threads_is_imported_before_the_seal():
    """An ordinary user gets no namespace in a process of several threads, and numpy starts one for each core."""
    code = "import sys, hashidrill.training.sealed; print(sorted({'numpy', 'anyio', 'pydantic'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
