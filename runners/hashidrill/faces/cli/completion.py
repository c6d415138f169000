"""Shell completion for the names of commands, experiments, faults, runs and hosts. Completion does not import the
commands.

`hashidrill --install-completion` installs it; the shell then asks hashidrill each time the user presses Tab.
"""

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from typer.core import TyperCommand

from hashidrill.core.protocols import registry
from hashidrill.core.util.folders import RUNS_DIR, both, state_folder
from hashidrill.core.util.safe_json import parse
from hashidrill.faces.cli import interchange, listing
from hashidrill.faces.cli.common import recordings

_HYPOTHESIS = re.compile(r"^@(?:hypothesis|comparison)\b.*?^def (\w+)", re.MULTILINE | re.DOTALL)
_FILES = {"--attach", "--runs", "--hypotheses", "--db", "--key", "--new-key", "--output", "-o", "--log"}
"""Options whose value is a file: the shell itself completes these values."""
_OPTIONS = {"--experiment": "experiments", "--like": "experiments"}
_ARGUMENTS = {
    "run": "experiments",
    "capacity": "experiments",
    "schedule": "experiments gamedays",
    "validate": "experiments gamedays runbooks scenarios",
    "show": "experiments faults loads probes hypotheses runs",
    "list": "kinds",
    "schema": "schemas",
    "check": "runs",
    "heal": "runs",
    "rehearse": "runbooks",
    "train": "scenarios",
    "gameday.run": "gamedays",
    "history.list": "experiments",
    "history.trend": "experiments",
    "history.changed": "experiments",
    "history.state": "experiments",
    "staging.arm": "experiments gamedays",
    "staging.acl": "products experiments",
    "convert.export": "formats experiments",
    "lab.shell": "hosts",
}
"""For each command, the kind of thing that its arguments name."""


class Completed(TyperCommand):
    """Replaces a command during shell completion: the command itself is only imported to complete its options."""

    def __init__(self, name: str, path: str, summary: str, real: Callable[[], Any]) -> None:
        super().__init__(name, help=summary, rich_markup_mode=None)
        self._path, self._real = path, real

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.args = args
        return args

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """The matching options or names; empty if the shell completes better itself."""
        from typer._click.shell_completion import CompletionItem  # noqa: PLC0415 - typer does not export it

        if incomplete.startswith("-"):
            return self._real().shell_complete(ctx, incomplete)
        before = ctx.args[-1] if ctx.args else ""
        kinds = _OPTIONS.get(before) or ("" if before in _FILES else _ARGUMENTS.get(self._path, ""))
        found = sorted({name for kind in kinds.split() for name in names(kind) if name.startswith(incomplete)})
        return [CompletionItem(name) for name in found]


def names(kind: str) -> Iterable[str]:
    """All names of that kind that commands accept; empty if a file cannot be read."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return _SOURCES.get(kind, partial(listing.files_of, kind))()
    return []


def _hypotheses() -> list[str]:
    files = [path for folder in both("hypotheses") for path in folder.glob("*.py")]
    return [name for path in files for name in _HYPOTHESIS.findall(path.read_text("utf-8", "replace"))]


def _hosts() -> list[str]:
    up = [parse(path.read_text()) for path in (state_folder() / "up").glob("*.json")]
    return [host["name"] for datacenter in up for host in datacenter["hosts"]]


_SOURCES: Mapping[str, Callable[[], Iterable[str]]] = {
    "kinds": lambda: listing.KINDS,
    "schemas": lambda: ["experiment", *map(str.lower, {*registry.entries(registry.DOCUMENTS)} - {"Base"})],
    "products": lambda: [*registry.entries(registry.ATTACH), *registry.entries("hashidrill.attached")],
    "formats": lambda: interchange.FORMATS,
    "faults": registry.fault_kinds,
    "loads": registry.load_kinds,
    "probes": registry.probe_kinds,
    "hypotheses": _hypotheses,
    "hosts": _hosts,
    "runs": lambda: ["last", *(path.name for path in recordings(RUNS_DIR))],
}
"""Completions for kinds that are not files of the library."""
