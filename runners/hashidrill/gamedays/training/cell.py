"""How a trainee's shell on a host is opened (hashidrill.gamedays.training.inside.cell has what it can see)."""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import hashidrill
from hashidrill.core.errors import UsageError
from hashidrill.core.protocols.registry import near
from hashidrill.core.util.enter import entering
from hashidrill.core.util.files import write_whole
from hashidrill.core.util.folders import both
from hashidrill.core.util.foreign import parse
from hashidrill.gamedays.training.games import Game
from hashidrill.gamedays.training.in_sandbox import HOSTS_NAME
from hashidrill.gamedays.training.library import FOLDER

CELLS = "cells"
_FOLDER_MODE = 0o711


def shell_command(game: Game, host: str | None, command: Sequence[str]) -> list[str]:
    """The command line that opens it. `host` None: the first one. Raises UsageError."""
    root = Path(game.root)
    try:
        told: Mapping[str, Any] = parse((root / HOSTS_NAME).read_bytes())
        first = (root / "pid").read_text().strip()
    except OSError:
        raise UsageError("the datacenter of this game is not ready yet, or is gone") from None
    hosts = told["hosts"]
    wanted = host or _first(hosts)
    if wanted not in hosts:
        raise UsageError(f"there is no host {wanted!r}: {near(wanted, hosts)}")
    source = str(Path(hashidrill.__file__).parents[1])
    program = os.path.realpath(sys.executable)
    boot = [
        program,
        "-I",
        "-S",
        "-c",
        (
            f"import sys; sys.path.insert(0, {source!r}); from hashidrill.gamedays.training.inside.cell import main;"
            " sys.exit(main(sys.argv[1]))"
        ),
    ]
    number = secrets.token_hex(4)
    spec = {
        "root": game.root,
        "id": number,
        "host": wanted,
        "hosts": hosts,
        "user": told["user"],
        "binaries": told["binaries"],
        "python": {"program": program, "prefix": sys.base_prefix},
        "source": source,
        "hidden": _hidden(),
        "boot": boot,
        "client": str(Path(__file__).parent / "inside" / "client.py"),
        "command": list(command),
        "term": os.environ.get("TERM", ""),
    }
    cells = root / CELLS
    cells.mkdir(mode=_FOLDER_MODE, exist_ok=True)
    file = cells / f"{number}.json"
    write_whole(file, json.dumps(spec))
    return [*entering(process=first), *boot, str(file)]


def _first(hosts: Mapping[str, Any]) -> str:
    """A client agent, as a person has one near; else the first host."""
    clients = [name for name, host in hosts.items() if next(iter(host["agents"].values()), "") == "client"]
    return [*clients, *hosts][0]


def _hidden() -> list[str]:
    """Where our own files are: they say what the scenarios hide."""
    scenarios = both(FOLDER)
    places = [Path(hashidrill.__file__).resolve().parent, scenarios[-1].resolve().parents[1], *scenarios[:-1]]
    return [str(place) for place in places]
