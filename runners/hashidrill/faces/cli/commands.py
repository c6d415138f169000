"""Which module has which command, in the order of `hashidrill --help`. A command's module is imported when it is used.

`hashidrill --help` imports none of them: it reads the first paragraph of each command's docstring from the source.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from hashidrill.core.errors import OutputError, UsageError
from hashidrill.core.util.lazy import later
from hashidrill.faces.cli.output import lost

MODULES = {
    "demo": "runs",
    "run": "runs",
    "check": "runs",
    "heal": "heal",
    "gameday": "gameday",
    "rehearse": "rehearse",
    "history": "history",
    "schedule": "schedule",
    "capacity": "capacity",
    "gate": "gate",
    "bisect": "bisect",
    "validate": "validate",
    "list": "listing",
    "show": "library",
    "new": "library",
    "schema": "library",
    "up": "datacenter",
    "status": "datacenter",
    "shell": "datacenter",
    "down": "datacenter",
    "train": "train",
    "say": "train",
    "doctor": "machine",
    "audit": "audit",
    "retry": "retry",
    "toxiproxy": "toxiproxy",
    "acl": "acl",
    "arm": "interlocks",
    "disarm": "interlocks",
    "stop": "interlocks",
    "export": "interchange",
    "import": "interchange",
}
"""Command to module of `hashidrill.faces.cli`. Each module has `register(app)`, which adds its commands."""

LATER = {"validate": ("anyio", "asyncio", "msgpack", "numpy", "psutil", "sqlite3", "statistics")}
"""Module to what it mostly does without: faults and hypotheses import these; to check parameters takes none."""


class Commands(Mapping[str, Any]):
    """The commands by their names; to look one up imports its module."""

    def __getitem__(self, name: str) -> Any:
        app = typer.Typer(rich_markup_mode="rich", callback=lambda: None)  # with a callback, one command is a group too
        later(*LATER.get(MODULES[name], ()))
        import_module(f"{__package__}.{MODULES[name]}").register(app)
        return typer.main.get_group(app).commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(MODULES)

    def __len__(self) -> int:
        return len(MODULES)


class LazyGroup(TyperGroup):
    """A group of `Commands`; its help needs no command's module."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes | {"commands": {}})
        self.commands: Mapping[str, Any] = Commands()  # type: ignore[assignment]  # nobody adds to it
        self._only_listed = False

    def list_commands(self, ctx: Any) -> list[str]:
        del ctx
        return list(MODULES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in MODULES:
            return None
        return self._listed(cmd_name) if self._only_listed else super().get_command(ctx, cmd_name)

    def invoke(self, ctx: Any) -> Any:
        """Raises OutputError where nothing else failed; what typer itself would end with 1 must not read as FAIL."""
        try:
            result = super().invoke(ctx)
        except EOFError:
            raise UsageError("standard input ended before the question was answered") from None
        except BrokenPipeError as error:  # of a socket: standard output raises none
            raise RuntimeError(str(error)) from error
        if lacks := lost():
            raise OutputError(f"cannot write to {lacks}")
        return result

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self._only_listed = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._only_listed = False

    def _listed(self, name: str) -> TyperCommand:
        """A command that has a name and a help text, and can do nothing."""
        return TyperCommand(name, help=docstrings(MODULES[name])[name], rich_markup_mode=self.rich_markup_mode)


def docstrings(module: str) -> dict[str, str]:
    """The docstring of each function of `hashidrill.faces.cli.MODULE`, by the name that a command of it has."""
    spec = find_spec(f"{__package__}.{module}")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{__package__}.{module}")
    functions = [node for node in ast.parse(Path(spec.origin).read_bytes()).body if isinstance(node, ast.FunctionDef)]
    return {node.name.rstrip("_"): inspect.cleandoc(ast.get_docstring(node) or "") for node in functions}
