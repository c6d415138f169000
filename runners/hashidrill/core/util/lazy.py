"""Modules that are imported on first use, because most commands do not use them."""

import importlib
import sys
from types import ModuleType
from typing import Any


class _Later(ModuleType):
    """Stands for a module in `sys.modules`, and in modules that import it before its first use."""

    __spec__ = None  # `import` reads only this attribute
    __file__ = None

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def later(*names: str) -> None:
    """Delays the cost of `import NAME` until something in that module is used. Modules already imported stay."""
    for name in names:
        if name not in sys.modules:
            sys.modules[name] = _Later(name)
