"""Did two sides run something different? A variant that did not take effect would pass for one that does no harm."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from hashidrill.judging.comparison import differences

if TYPE_CHECKING:
    from hashidrill.recording.reader import Recording

_OF_AGENTS = re.compile(r"datacenter\.\w+\.(version|servers|clients|config|server_config|client_config)\b")
"""What must be seen in the agents that were started: their versions, their number, their configuration."""
_PROGRAMS = ("python", "kernel", "toxiproxy-server", "bbolt")
"""Versions that are recorded and that no variant sets."""


def ran_the_same(one: Recording, other: Recording) -> str:
    """Why two recordings show no difference, or nothing.

    They are runs of the same experiment with the same configuration; or of two that differ in their agents, of which
    the run's own list says that they were started the same.
    """
    return (
        took_no_effect(one, other)
        if _differs(one, other)
        else "both ran the same experiment with the same configuration"
    )


def took_no_effect(one: Recording, other: Recording) -> str:
    """Why what differs between two experiments did not reach their agents, or nothing.

    Secrets are in no recording: where only those differ, it says nothing.
    """
    differs = _differs(one, other)
    started, also = _started(one), _started(other)
    if differs and started is not None and started == also and all(_OF_AGENTS.match(at) for at in differs):
        return f"{', '.join(differs)} took no effect: both started the same agents with the same configuration"
    return ""


def _differs(one: Recording, other: Recording) -> list[str]:
    return [line.partition(":")[0] for line in differences(one.experiment, other.experiment)]


def _started(recording: Recording) -> str | None:
    """Every agent that was started: version, host, configuration; None where the run does not say."""
    run: dict[str, Any] = recording.run
    if not isinstance(run.get("config"), dict) or not run["config"]:
        return None
    versions = {name: each for name, each in dict(run.get("versions") or {}).items() if name not in _PROGRAMS}
    text = json.dumps([versions, run.get("binaries"), run.get("hosts"), run["config"]], sort_keys=True, default=str)
    root = str(run.get("root") or "")
    return text.replace(root, "") if root else text
