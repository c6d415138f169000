"""The commands, which are entry points. A command's module is imported when the command is used.

`hashidrill --help` imports no command: it reads the summary of each command from the source of its module.
"""

import re
from collections.abc import Iterator, Mapping
from contextvars import copy_context
from functools import partial
from importlib.util import find_spec
from itertools import dropwhile
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from hashidrill.core.errors import OutputError, UsageError
from hashidrill.core.protocols import registry
from hashidrill.core.util.lazy import later
from hashidrill.faces.cli.output import lost

COMMANDS = "hashidrill.commands"
"""The group of the entry points of commands: NAME = a function `register(app)` that adds it to a `typer.Typer`.

`GROUP.NAME` is a command of a group of `GROUPS`."""
PANELS = {
    "Start": "demo init doctor new list show validate",
    "Run": "run check capacity heal",
    "Game day": "gameday rehearse train say history schedule",
    "Change": "gate bisect explore audit retry",
    "Datacenters": "lab staging",
    "Files": "convert schema",
}
"""The groups of commands in `hashidrill --help`. The commands of other packages follow."""
_OTHERS = "Other packages"
GROUPS = {
    "gameday": (
        "Run a game day: checks, predictions, experiments, a report. playbooks/first-game-day.yaml is one to copy",
        "run resume report",
        "run playbooks/first-game-day.yaml",
    ),
    "history": (
        "Look at past runs: trends, what changed, whether a test is flaky or broken",
        "list show trend changed state add",
        "changed raft/slow-leader-disk",
    ),
    "lab": ("Keep a datacenter running on this machine", "up down status shell", "up --stack --expose 8500"),
    "staging": (
        "Allow, stop and prepare runs in an existing datacenter",
        "arm disarm stop acl proxies",
        "arm raft/slow-leader-disk --attach staging.yaml --for 2h",
    ),
    "convert": (
        "Exchange experiments with Chaos Mesh, Litmus and Chaos Toolkit",
        "import export",
        "export chaos-mesh network/split-from-clients",
    ),
}
"""Commands that have subcommands: what the command does, the order of its subcommands, an example."""
MOVED = {
    "up": "lab up",
    "down": "lab down",
    "status": "lab status",
    "shell": "lab shell",
    "arm": "staging arm",
    "disarm": "staging disarm",
    "stop": "staging stop",
    "acl": "staging acl",
    "toxiproxy": "staging proxies",
    "import": "convert import",
    "export": "convert export",
}
"""The earlier name of each renamed command, and its current name."""
LATER = {
    "validate": ("anyio", "asyncio", "msgpack", "numpy", "psutil", "sqlite3", "ssl", "statistics"),
    "history": ("numpy",),
}
"""For each command or group, the modules that it usually does not need: checking parameters or listing runs works
without these modules.
"""


class Commands(Mapping[str, Any]):
    """The commands of a group by name; looking a command up imports its module. The group "" holds the other groups."""

    def __init__(self, group: str) -> None:
        self._group, self._prefix = group, f"{group}." if group else ""

    def __getitem__(self, name: str) -> Any:
        if not self._group and name in GROUPS:
            about, _, example = GROUPS[name]
            epilog = f"Example: hashidrill {name} {example}"
            return LazyGroup(name=name, help=f"{about}.", epilog=epilog, no_args_is_help=True)
        # with a callback, typer treats an app with one command as a group
        app = typer.Typer(rich_markup_mode=None, callback=lambda: None)
        later(*LATER.get(self._group or name, ()))
        registry.plugin(COMMANDS, self._prefix + name)(app)
        return typer.main.get_group(app).commands[name]

    def __iter__(self) -> Iterator[str]:
        order = (GROUPS[self._group][1] if self._group else " ".join(PANELS.values())).split()
        return iter(sorted(self._known(), key=lambda name: order.index(name) if name in order else len(order)))

    def __contains__(self, name: object) -> bool:
        return name in self._known()

    def __len__(self) -> int:
        return len(self._known())

    def _known(self) -> dict[str, None]:
        """In the order of the entry points."""
        names = registry.entries(COMMANDS)
        if self._group:
            return {name.removeprefix(self._prefix): None for name in names if name.startswith(self._prefix)}
        return {group if (group := name.partition(".")[0]) in GROUPS else name: None for name in names}

    def summary(self, name: str) -> str:
        """The first sentence of the command's docstring, read from its module's source; "" without a docstring."""
        if not self._group and name in GROUPS:
            return GROUPS[name][0].partition(". ")[0]
        spec = find_spec(registry.entries(COMMANDS)[self._prefix + name].value.partition(":")[0])
        if spec is None or spec.origin is None:
            return ""
        docstring = rf'^def {name}_?\((?:(?!^def ).)*?\n    """(.*?)"""'
        found = re.search(docstring, Path(spec.origin).read_text("utf-8"), re.DOTALL | re.MULTILINE)
        return " ".join(found[1].split()).partition(". ")[0].rstrip(".") if found else ""


class LazyGroup(TyperGroup):
    """A group of `Commands`; its help needs no command's module."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes | {"commands": {}, "rich_markup_mode": None})
        self.lazy = Commands("" if self.name == "hashidrill" else self.name or "")
        self.commands: Mapping[str, Any] = self.lazy  # type: ignore[assignment]  # it is never changed

    def main(self, *args: Any, **options: Any) -> Any:
        """When the command ends, even if its command line is refused, resets the context variables that options
        set.
        """
        return copy_context().run(super().main, *args, **options)

    def list_commands(self, ctx: Any) -> list[str]:
        del ctx
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands:
            return None
        real = partial(super().get_command, ctx, cmd_name)
        if not ctx.resilient_parsing or (ctx.parent is None and cmd_name in GROUPS):
            return real()
        from hashidrill.faces.cli.completion import Completed  # noqa: PLC0415 - only shells ask

        path = cmd_name if ctx.parent is None else f"{self.name}.{cmd_name}"
        return Completed(cmd_name, path, self.lazy.summary(cmd_name), real)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """While a shell completes a word, options are skipped: to read an option, typer imports pydantic."""
        if not ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        rest = [*dropwhile(lambda word: word.startswith("-"), args)]
        ctx._protected_args, ctx.args = rest[:1], rest[1:]  # noqa: SLF001 - as TyperGroup does
        return ctx.args  # type: ignore[no-any-return]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Raises UsageError for a command that has another name now."""
        if not ctx.resilient_parsing and ctx.parent is None and args[0] in MOVED and args[0] not in self.commands:
            raise UsageError(f"`hashidrill {args[0]}` is now `hashidrill {MOVED[args[0]]}`")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Raises OutputError if nothing else failed; typer's own exit code 1 would look like FAIL."""
        try:
            result = super().invoke(ctx)
        except EOFError:
            raise UsageError("standard input ended before the question was answered") from None
        except BrokenPipeError as error:  # from a socket: standard output never raises it
            raise RuntimeError(str(error)) from error
        if lacks := lost():
            raise OutputError(f"cannot write to {lacks}")
        return result

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes one line for each command, below the title of its panel."""
        names, panels = list(self.commands), PANELS if ctx.parent is None else {"Commands": " ".join(self.commands)}
        listed = {title: [name for name in names if name in of.split()] for title, of in panels.items()}
        listed[_OTHERS] = [name for name in names if name not in " ".join(panels.values()).split()]
        widest = max(map(len, names), default=0)
        for title, members in listed.items():
            if members:
                with formatter.section(title):
                    formatter.write_dl([(f"{name:<{widest}}", self.lazy.summary(name)) for name in members])
