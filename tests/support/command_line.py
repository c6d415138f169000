"""The command line in this process: arguments in, text and exit code out."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import typer

from hashidrill.core.util import folders
from hashidrill.faces import cli
from hashidrill.faces.cli.app import app
from places import ROOT


class Said(NamedTuple):
    """What a command wrote, and its exit code."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


def command_line(monkeypatch: Any, capsys: Any, folder: Path, *, columns: int = 120) -> Callable[..., Said]:
    """Calls `hashidrill` in a folder of its own, and has its exit code and its text; no traceback is in it."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    monkeypatch.delenv("HASHIDRILL_RUNS", raising=False)

    def go(*words: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["hashidrill", *map(str, words)])
        code: Any = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
        out = capsys.readouterr()
        assert "Traceback" not in out.out + out.err
        return Said(code, out.out, out.err)

    return go


def leaves(command: Any = None, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every command by its whole name, without the groups."""
    command = command or typer.main.get_command(app)
    for word, each in getattr(command, "commands", {}).items():
        yield from leaves(each, f"{name} {word}".strip())
    if not hasattr(command, "commands"):
        yield name, command


def as_installed(monkeypatch: Any, folder: Path) -> None:
    """The package is elsewhere, as a wheel would have put it: what ships is found there, and not in the checkout."""
    package = folder / "site-packages/hashidrill"
    (package / "_library").mkdir(parents=True)
    for name in ("experiments", "hypotheses", "playbooks"):
        (package / "_library" / name).symlink_to(ROOT / name)
    monkeypatch.setattr(folders, "_PACKAGE", package)
