"""For authors of faults, loads, hypotheses and products: contract checks, fakes, and hand-made recordings.

from hashidrill.testing import FakeDatacenter, RecordingBuilder, check_fault, find_hypothesis
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hashidrill.core.hypothesis import get as find_hypothesis
    from hashidrill.testing.fakes import FakeDatacenter
    from hashidrill.testing.faults import check_fault
    from hashidrill.testing.recordings import RecordingBuilder

__all__ = ["FakeDatacenter", "RecordingBuilder", "check_fault", "find_hypothesis"]
_PLACES = {
    "FakeDatacenter": ("hashidrill.testing.fakes", "FakeDatacenter"),
    "RecordingBuilder": ("hashidrill.testing.recordings", "RecordingBuilder"),
    "check_fault": ("hashidrill.testing.faults", "check_fault"),
    "find_hypothesis": ("hashidrill.core.hypothesis", "get"),
}


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        module, inside = _PLACES[name]
        return getattr(importlib.import_module(module), inside)
    raise AttributeError(f"hashidrill.testing has no {name}; public are: {', '.join(__all__)}")
