"""What Nomad itself says against a configuration: `nomad config validate`, and its own list of keys.

Nomad 1.10.5 takes keys that it does not know without a word, and ignores them: `serve = 3` at the top,
`heartbeat_grac` in a block. What it knows stands in its binary, as the tags of the structures that it decodes into.
"""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hashidrill.core.protocols.registry import near
from hashidrill.core.util.commands import ask
from hashidrill.core.util.nested import leaves

_TAG = re.compile(rb'hcl:"([a-z][a-z0-9_]*)')
_CHOSEN = frozenset(
    {
        "options",
        "meta",
        "host_volume",
        "host_network",
        "chroot_env",
        "plugin",
        "config",
        "http_api_response_headers",
        "vault",
        "consul",
        "template",
    }
)
"""Below these, names are their author's, or another program's."""
_WARNING = re.compile(r"^WARNING: .*$|^Configuration is (?:in)?valid!?$", re.MULTILINE)


def refusal(binary: Path, files: Sequence[Path], settings: Mapping[str, Any], work: Path) -> str:
    """The words with which Nomad refuses these files, in this order, or the keys that it would ignore; "" for neither.

    A part of a configuration is one too: what every agent needs is added in a file of its own, below `work`.
    """
    stand_ins: dict[str, Any] = {} if settings.get("data_dir") else {"data_dir": str(work / "data")}
    if not any(_enabled(settings.get(role)) for role in ("server", "client")):
        stand_ins["server"] = {"enabled": True, "bootstrap_expect": 1}
    more = work / "stand-ins.json"
    more.write_text(json.dumps(stand_ins))
    answer = ask([str(binary), "config", "validate", *map(str, files), str(more)])
    if answer.code != 0:
        return "\n".join(line for line in _WARNING.sub("", answer.words).splitlines() if line.strip())
    return "\n".join(unknown_keys(settings, known_keys(binary)))


def known_keys(binary: Path) -> frozenset[str]:
    """The names of all keys that this Nomad decodes, of agents and of jobs."""
    with binary.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        return frozenset(found[1].decode() for found in _TAG.finditer(text))


def unknown_keys(settings: Mapping[str, Any], known: frozenset[str]) -> list[str]:
    """One line for each key that Nomad does not know, names compared as Nomad does, without regard to case."""
    said = []
    for path, _ in leaves(settings):
        for depth, name in enumerate(path):
            if name.lower() not in known:
                key = ".".join(path[: depth + 1])
                said.append(f"Nomad does not know {key}, and would ignore it: {near(name, sorted(known))}")
                break
            if name in _CHOSEN:
                break
    return list(dict.fromkeys(said))


def _enabled(block: Any) -> bool:
    return isinstance(block, Mapping) and block.get("enabled") is True
