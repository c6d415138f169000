"""The servers of a game, and when each of them ran."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hashidrill.core.errors import HypothesisInvalidError
from hashidrill.core.judging.measure import SECOND, latest

if TYPE_CHECKING:
    from hashidrill.core.recording.reader import Recording, Series

_FRESH_NS = 3 * SECOND
_STOPPED = "T"


@dataclass(frozen=True)
class Server:
    """An agent that votes, or may: its samples are `label`'s."""

    host: str
    service: str
    label: str


def servers(recording: Recording) -> list[Server]:
    """Agents with the role of a server, from run.json."""
    return list(_servers(recording.run.get("hosts", [])))


def by_service(recording: Recording) -> dict[str, list[Server]]:
    """By product, in the order of run.json."""
    found: dict[str, list[Server]] = {}
    for server in servers(recording):
        found.setdefault(server.service, []).append(server)
    return found


def _servers(hosts: Iterable[Mapping[str, Any]]) -> Iterator[Server]:
    for host in hosts:
        for number, (service, role) in enumerate(host.get("agents", {}).items()):
            if role == "server":
                yield Server(host["name"], service, host["name"] if number == 0 else f"{host['name']}/{service}")


def runs(recording: Recording, label: str) -> Series | None:
    """What was seen of that process; None where nobody looked."""
    try:
        return recording.series("process.rss", label)
    except HypothesisInvalidError:
        return None


def up(recording: Recording, label: str, grid: Any) -> Any:
    """Whether that process ran, for each moment; where nobody looked it did."""
    series = runs(recording, label)
    if series is None:
        return np.ones(len(grid), np.int64)
    index, fresh = latest(series.t_ns, grid, _FRESH_NS)
    running = np.array(
        [bool(ok) and text != _STOPPED for ok, text in zip(series.ok, series.text, strict=True)], np.bool_
    )
    return np.where(fresh, running[index], True).astype(np.int64)
