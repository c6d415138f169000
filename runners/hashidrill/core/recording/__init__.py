"""The recording of a run: its format, its writer, its reader. Hypotheses import `Recording` from here (`__all__`)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hashidrill.core.recording.reader import Bools, FaultWindow, Floats, Int64s, Operations, Recording, Series

__all__ = ["Bools", "FaultWindow", "Floats", "Int64s", "Operations", "Recording", "Series"]


def __getattr__(name: str) -> Any:
    """Imports the reader on first use, because writing a journal needs no numpy."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("hashidrill.core.recording.reader"), name)
