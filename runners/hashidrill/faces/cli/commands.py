"""The commands, which are entry points. A command's module is imported when the command is used.

`hashidrill --help` imports none of them: it reads the first paragraph of each command's docstring from the source.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from hashidrill.core.errors import OutputError, UsageError
from hashidrill.core.protocols import registry
from hashidrill.core.util.lazy import later
from hashidrill.faces.cli.output import lost

COMMANDS = "hashidrill.commands"
"""The group of the entry points of commands: NAME = a function `register(app)` that adds it to a `typer.Typer`."""
ORDER = (
    "demo init run check heal gameday rehearse history schedule capacity gate bisect validate list show new schema up"
    " status shell down train say doctor audit retry toxiproxy acl arm disarm stop export import"
)
"""As `hashidrill --help` lists them; those of other packages follow."""

LATER = {"validate": ("anyio", "asyncio", "msgpack", "numpy", "psutil", "sqlite3", "statistics")}
"""Command to what it mostly does without: faults and hypotheses import these; to check parameters takes none."""


class Commands(Mapping[str, Any]):
    """The commands by their names; to look one up imports its module."""

    def __getitem__(self, name: str) -> Any:
        app = typer.Typer(rich_markup_mode="rich", callback=lambda: None)  # with a callback, one command is a group too
        later(*LATER.get(name, ()))
        registry.plugin(COMMANDS, name)(app)
        return typer.main.get_group(app).commands[name]

    def __iter__(self) -> Iterator[str]:
        known, order = registry.entries(COMMANDS), ORDER.split()
        return iter([*(name for name in order if name in known), *(name for name in known if name not in order)])

    def __contains__(self, name: object) -> bool:
        return name in registry.entries(COMMANDS)

    def __len__(self) -> int:
        return len(registry.entries(COMMANDS))


def _import_help() -> None:
    """Imports typer's help without what it takes for Markdown and tracebacks, which this help has none of."""
    stand_ins = {"rich.markdown": "Markdown", "rich.traceback": "Traceback"}
    put = {name: ModuleType(name) for name in stand_ins if name not in sys.modules}
    for name, module in put.items():
        setattr(module, stand_ins[name], type(stand_ins[name], (), {}))
    sys.modules.update(put)
    import_module("typer.rich_utils")
    for name in put:
        del sys.modules[name]


class LazyGroup(TyperGroup):
    """A group of `Commands`; its help needs no command's module."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes | {"commands": {}})
        self.commands: Mapping[str, Any] = Commands()  # type: ignore[assignment]  # nobody adds to it
        self._only_listed = False

    def list_commands(self, ctx: Any) -> list[str]:
        del ctx
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands:
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
        _import_help()
        self._only_listed = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._only_listed = False

    def _listed(self, name: str) -> TyperCommand:
        """A command that has a name and a help text, and can do nothing."""
        return TyperCommand(name, help=_docstring(name), rich_markup_mode=self.rich_markup_mode)


def _docstring(command: str) -> str:
    """Of the function that is called as the command is, in the module that registers it; "" without one."""
    spec = find_spec(registry.entries(COMMANDS)[command].value.partition(":")[0])
    if spec is None or spec.origin is None:
        return ""
    functions = [node for node in ast.parse(Path(spec.origin).read_bytes()).body if isinstance(node, ast.FunctionDef)]
    mine = next((node for node in functions if node.name.rstrip("_") == command), None)
    return inspect.cleandoc(ast.get_docstring(mine) or "") if mine else ""
