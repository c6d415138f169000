"""What Consul itself says against a configuration: `consul validate`, which starts nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hashidrill.core.util.commands import ask

_OF_THIS_MACHINE = ("bind_addr", "client_addr", "advertise_addr", "advertise_addr_wan", "serf_lan", "serf_wan")
"""Keys that may hold a template, `{{ GetInterfaceIP "eth1" }}`, that only the agent's own machine can fill in."""


def refusal(binary: Path, files: Sequence[Path], settings: Mapping[str, Any], work: Path) -> str:
    """The words with which Consul refuses these files, in this order; "" where it takes them.

    A part of a configuration is one too: what every agent needs is added in a file of its own, below `work`.
    """
    stand_ins: dict[str, Any] = {} if settings.get("data_dir") else {"data_dir": str(work / "data")}
    stand_ins |= {key: "127.0.0.1" for key in _OF_THIS_MACHINE if "{{" in str(settings.get(key, ""))}
    more = work / "stand-ins.json"
    more.write_text(json.dumps(stand_ins))
    answer = ask([str(binary), "validate", *map(str, files), str(more)])
    return "" if answer.code == 0 else answer.words.replace("Config validation failed: ", "")
