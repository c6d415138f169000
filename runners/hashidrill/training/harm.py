"""What the trainee's hands did to the datacenter, from the recording and the timeline.

A healthy agent that was stopped, restarted or sent a signal is harm where the repair needed none of it. A quorum is
broken by hand where a majority of a product's servers would have run, had the hands not been there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hashidrill.errors import HypothesisInvalidError
from hashidrill.measure import SECOND, latest
from hashidrill.training.desk import Entry

if TYPE_CHECKING:
    from hashidrill.recording.reader import Recording, Series

STOPS = ("stop", "restart", "kill")
_FRESH_NS = 3 * SECOND
_STOPPED = "T"


@dataclass(frozen=True)
class Harm:
    """`grave` harm means that the game is lost."""

    t_ns: int
    text: str
    grave: bool = False


@dataclass(frozen=True)
class Server:
    """An agent that votes, or may: its samples are `label`'s."""

    host: str
    service: str
    label: str


def harms(
    recording: Recording, entries: Sequence[Entry], *, allowed: Collection[str] | None, from_ns: int, to_ns: int
) -> list[Harm]:
    """`allowed` are the hosts whose agents the repair may stop; None: all of them. In order of time."""
    found = [*_restarts(entries, allowed), *_gone(recording, entries, allowed, from_ns, to_ns)]
    found += _quorums(recording, entries, from_ns, to_ns)
    return sorted(found, key=lambda harm: harm.t_ns)


def _restarts(entries: Sequence[Entry], allowed: Collection[str] | None) -> Iterator[Harm]:
    told: set[tuple[str, str]] = set()
    for entry in entries:
        verb, _, agent = entry.text.partition(" ")
        if entry.what != "agent" or verb not in STOPS or allowed is None or entry.host in allowed:
            continue
        if (entry.host, agent) not in told:  # the same one twice is one mistake
            told.add((entry.host, agent))
            yield Harm(entry.t_ns, f"{agent} on {entry.host} was healthy, and you did: {entry.text}")


def _gone(
    recording: Recording, entries: Sequence[Entry], allowed: Collection[str] | None, from_ns: int, to_ns: int
) -> Iterator[Harm]:
    """Agents that ended in another way than by systemctl: `consul leave`, a signal."""
    if allowed is None:
        return
    by_systemctl = {entry.host for entry in entries if entry.what == "agent"}
    faulty = {window.host for window in recording.faults}
    for server in servers(recording):
        if server.host in allowed or server.host in by_systemctl or server.host in faulty:
            continue
        away = _away(recording, server.label, from_ns, to_ns)
        if away is not None:
            yield Harm(away, f"{server.service} on {server.host} was healthy, and it ended while you worked")


def _quorums(recording: Recording, entries: Sequence[Entry], from_ns: int, to_ns: int) -> Iterator[Harm]:
    grid = np.arange(from_ns, to_ns, SECOND // 2, dtype=np.int64)
    faulty = _down_by_fault(recording)
    for service in dict.fromkeys(server.service for server in servers(recording)):
        voters = [server for server in servers(recording) if server.service == service]
        majority = len(voters) // 2 + 1
        runs = np.zeros(len(grid), np.int64)
        without_hands = np.zeros(len(grid), np.int64)
        for server in voters:
            up = _up(recording, server.label, grid)
            by_hand = any(e.what == "agent" and e.host == server.host for e in entries) or server.host not in faulty
            runs += up
            without_hands += up | by_hand
        broken = np.flatnonzero((runs < majority) & (without_hands >= majority))
        if len(broken):
            first = int(broken[0])
            at_s = len(broken) / 2
            yield Harm(
                int(grid[first]),
                f"you broke {service}'s quorum: {int(runs[first])} of {len(voters)} servers ran, for about {at_s:g}s",
                grave=True,
            )


def _down_by_fault(recording: Recording) -> set[str]:
    return {window.host for window in recording.faults if window.kind.startswith(("process.", "cpu."))}


def servers(recording: Recording) -> list[Server]:
    """Agents with the role of a server, from run.json."""
    return list(_servers(recording.run.get("hosts", [])))


def _servers(hosts: Iterable[Mapping[str, Any]]) -> Iterator[Server]:
    for host in hosts:
        for number, (service, role) in enumerate(host.get("agents", {}).items()):
            if role == "server":
                yield Server(host["name"], service, host["name"] if number == 0 else f"{host['name']}/{service}")


def _series(recording: Recording, label: str) -> Series | None:
    try:
        return recording.series("process.rss", label)
    except HypothesisInvalidError:
        return None


def _up(recording: Recording, label: str, grid: Any) -> Any:
    """Whether that process ran, for each moment; where nobody looked it did."""
    series = _series(recording, label)
    if series is None:
        return np.ones(len(grid), np.int64)
    index, fresh = latest(series.t_ns, grid, _FRESH_NS)
    runs = np.array([bool(ok) and text != _STOPPED for ok, text in zip(series.ok, series.text, strict=True)], np.bool_)
    return np.where(fresh, runs[index], True).astype(np.int64)


def _away(recording: Recording, label: str, from_ns: int, to_ns: int) -> int | None:
    """When it first did not run, between the two moments."""
    series = _series(recording, label)
    if series is None:
        return None
    for t_ns, ok in zip(series.t_ns, series.ok, strict=True):
        if from_ns <= t_ns <= to_ns and not ok:
            return int(t_ns)
    return None
