"""Where things are in a checkout: tests look here, so that moving a test breaks no path."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
EXPERIMENTS = ROOT / "experiments"
HYPOTHESES = ROOT / "hypotheses"
PLAYBOOKS = ROOT / "playbooks"
CONTRACT = TESTS / "contract"
SUPPORT = TESTS / "support"
MALFORMED = TESTS / "unit" / "core" / "experiment" / "malformed"
"""YAML that nobody can run, one mistake a file."""
GOOD = SUPPORT / "good.yaml"
"""An experiment with nothing wrong in it, for tests that then break one thing."""


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Inside, what is in that folder can be imported. Left there, its entry points would be those of every test."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
