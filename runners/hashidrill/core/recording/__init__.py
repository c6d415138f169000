"""What a run left: its format, what writes it, what reads it. What it means is in `core/judging/`.

`from hashidrill.core.recording import Recording` is the way in for hypotheses; what is meant for them is in `__all__`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hashidrill.core.recording.reader import Bools, FaultWindow, Floats, Int64s, Operations, Recording, Series

__all__ = ["Bools", "FaultWindow", "Floats", "Int64s", "Operations", "Recording", "Series"]


def __getattr__(name: str) -> Any:
    """The reader is imported when something of it is asked for: whatever writes a journal can do without numpy."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("hashidrill.core.recording.reader"), name)
