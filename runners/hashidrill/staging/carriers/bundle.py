"""One Python text of what runs on a host: its modules, and the call that starts it.

python3 FILE                 a program as a file, as a Nomad job has it
python3 -c STARTER           and `handed(program)` at the beginning of standard input, as SSH has it
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

STARTER = """\
import os
n, d = int(os.read(0, 9)), b""
while len(d) < n:
    p = os.read(0, n - len(d))
    if not p: raise SystemExit(2)
    d += p
exec(compile(d, "hashidrill", "exec"))
"""
"""It reads the program and no byte more: what comes after it is for the program."""
OLDEST_PYTHON = (3, 8)
_INSIDE = "hashidrill.staging.carriers.inside"
_PATHS = "hashidrill.core.util.trusted_paths"
AGENT = (
    _PATHS,
    *(
        f"{_INSIDE}.{name}"
        for name in (
            "system",
            "notes",
            "restart",
            "tracing",
            "throttling",
            "settings",
            "host_faults",
            "handover",
            "agent",
        )
    ),
)
"""In the order in which they need each other."""
HANDOVER = (_PATHS, f"{_INSIDE}.system", f"{_INSIDE}.notes", f"{_INSIDE}.handover")
HOLDER = (f"{_INSIDE}.holder",)
EYES = (
    "hashidrill.lab.sandbox.rpc",
    _PATHS,
    "hashidrill.lab.local.inside.exchange",
    "hashidrill.lab.local.inside.canary",
    f"{_INSIDE}.system",
    f"{_INSIDE}.restart",
    f"{_INSIDE}.tracing",
    f"{_INSIDE}.settings",
    f"{_INSIDE}.eyes",
)
"""The observers: they share with the agents how processes are read, and nothing that changes any."""
_LOADER = """\
import json, sys, types
if sys.version_info < OLDEST:
    print(json.dumps({"event": "refused", "name": "python-old", "why": "its python3 is " + sys.version.split()[0]
        + ", and hashidrill needs " + ".".join(map(str, OLDEST)) + " or later there"}), flush=True)
    sys.exit(2)
for name, source in json.loads(MODULES):
    parts = name.split(".")
    for package in (".".join(parts[:n]) for n in range(1, len(parts))):
        if package not in sys.modules:
            sys.modules[package] = types.ModuleType(package)
            sys.modules[package].__path__ = []
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
sys.modules[json.loads(MODULES)[-1][0]].main(json.loads(ARGUMENT))
"""


def program(argument: Mapping[str, Any], modules: Sequence[str] = AGENT) -> str:
    """Runs `main(argument)` of the last of the modules. It holds all that it needs."""
    told = {"OLDEST": OLDEST_PYTHON, "MODULES": _sources(tuple(modules)), "ARGUMENT": json.dumps(argument)}
    return "".join(f"{name} = {value!r}\n" for name, value in told.items()) + _LOADER


def handed(text: str) -> bytes:
    """A program as STARTER reads it: its length in eight digits, and itself."""
    return f"{len(text.encode()):08d}\n{text}".encode()


@cache
def _sources(modules: tuple[str, ...]) -> str:
    found = []
    for name in modules:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise AssertionError(f"{name} is not there to be sent")
        found.append((name, Path(spec.origin).read_text()))
    return json.dumps(found)
