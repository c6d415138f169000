"""Units, logs and CPU of a host, as a trainee's shell has them: those of its agents.

What breaks a link runs on the host as its agents do, with a unit and a log of its own: both would tell of it.

Standard library alone: it runs beside the shell of a trainee.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from hashidrill.sandbox import syscalls as sc

_PROPERTY = "MainPID"
"""`systemctl show -p MainPID UNIT`."""


def foreign(name: str, words: Sequence[str], agents: Collection[str]) -> str:
    """The first unit of a systemctl or journalctl that is no agent of the host; empty where there is none."""
    named = [word.split("=", 1)[1] for word in words if word.startswith("--unit=")]
    named += [word for before, word in itertools.pairwise(words) if before in {"-u", "--unit"}]
    if name == "systemctl":
        signals = {at + 1 for at, word in enumerate(words) if word == "-s"}
        plain = [word for at, word in enumerate(words) if not word.startswith("-") and at not in signals]
        named += [word for word in plain[1:] if word != _PROPERTY]
    units = [unit.removesuffix(".service") for unit in named]
    return next((unit for unit in units if unit not in agents), "")


def logs(new: str, host: Mapping[str, Any], mount: Callable[..., None] = sc.mount) -> None:
    """In the root `new`, the host's folder of logs has those of its agents alone. Raises OSError."""
    folder = f"{host['folder']}/logs"
    kept = [path for agent in host["agents"] if os.path.isfile(path := f"{folder}/{agent}.log")]  # noqa: PTH113 - no pathlib here
    mount("none", new + folder, "tmpfs", sc.MS_NOSUID | sc.MS_NODEV, "mode=755,size=64k")
    for path in kept:
        os.close(os.open(new + path, os.O_CREAT | os.O_WRONLY, 0o644))
        mount(path, new + path, "", sc.MS_BIND)


def enter(spec: Mapping[str, Any]) -> None:
    """Puts the calling process, the parent of a shell, on that host: it gets the host's share of the CPU."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(f"{spec['root']}/s/{spec['host']}.host")
        connection.sendall(json.dumps({"op": "enter", "pid": os.getpid()}).encode() + b"\n")
        connection.recv(64)
