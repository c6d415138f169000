"""Modules that are imported when something of them is first asked for, in commands that mostly ask for nothing."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class _Later(ModuleType):
    """Stands for a module in `sys.modules`, and in whatever imports it meanwhile."""

    __spec__ = None  # `import` asks for it, and for nothing else
    __file__ = None

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def later(*names: str) -> None:
    """Let `import NAME` take no time until something of that module is used. One that is there already stays."""
    for name in names:
        if name not in sys.modules:
            sys.modules[name] = _Later(name)
