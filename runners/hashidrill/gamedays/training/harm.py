"""What the trainee's hands did to the datacenter, from what the hosts' init was asked for, the recording and the logs.

A healthy agent that was stopped, restarted or sent a signal is harm where the repair needed none of it, and so is
a server that was made to leave its cluster. A quorum is broken by hand where a majority of a product's servers would
have run, had the hands not been there, or where the cluster itself says so (hashidrill.gamedays.training.cluster).
What was typed decides nothing: a script, another shell and `consul leave` do the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hashidrill.core.judging.measure import SECOND, not_the_same_process_ns
from hashidrill.gamedays.training.agent_logs import crashed
from hashidrill.gamedays.training.cluster import lost_quorums, outside, stops
from hashidrill.gamedays.training.desk import Entry
from hashidrill.gamedays.training.servers import Server, by_service, runs, servers, up

if TYPE_CHECKING:
    from hashidrill.core.recording.reader import Int64s, Recording


_KEEPS_RUNNING = (
    "network.",
    "disk.latency",
    "disk.bandwidth",
    "consul.leader.",
    "consul.streams.",
    "nomad.leader.",
    "vault.seal",
)
"""Kinds of faults that end no process of an agent: what ends on a host with one of these did not end by it."""


@dataclass(frozen=True)
class Harm:
    """`grave` harm means that the game is lost."""

    t_ns: int
    text: str
    grave: bool = False


def harms(
    recording: Recording, entries: Sequence[Entry], *, allowed: Collection[str] | None, from_ns: int, to_ns: int
) -> list[Harm]:
    """`allowed` are the hosts whose agents the repair may stop; None: all of them. In order of time."""
    found = [*_restarts(entries, allowed), *_gone(recording, entries, allowed, from_ns, to_ns)]
    found += _outside(recording, entries, allowed, from_ns, to_ns)
    found += _quorums(recording, entries, from_ns, to_ns)
    return sorted(found, key=lambda harm: harm.t_ns)


def _restarts(entries: Sequence[Entry], allowed: Collection[str] | None) -> Iterator[Harm]:
    told: set[tuple[str, str]] = set()
    for entry in entries:
        agent = entry.text.partition(" ")[2].partition(" ")[0]
        if not stops(entry) or allowed is None or entry.host in allowed:
            continue
        if (entry.host, agent) not in told:  # the same one twice is one mistake
            told.add((entry.host, agent))
            yield Harm(entry.t_ns, f"{agent} on {entry.host} was healthy, and you did: {entry.text}")


def _gone(
    recording: Recording, entries: Sequence[Entry], allowed: Collection[str] | None, from_ns: int, to_ns: int
) -> Iterator[Harm]:
    """Servers that ended, and neither by a fault, nor by systemctl, nor by themselves: `consul leave`.

    One that was started again at once is another process.
    """
    if allowed is None:
        return
    by_systemctl = {entry.host for entry in entries if stops(entry)}
    faulty = _down_by_fault(recording)
    for server in servers(recording):
        if server.host in allowed or server.host in by_systemctl or server.host in faulty:
            continue
        away = _away(recording, server.label, from_ns, to_ns)
        if away is not None and not crashed(recording, server):
            yield Harm(away, f"{server.service} on {server.host} was healthy, and it ended while you worked")


def _outside(
    recording: Recording, entries: Sequence[Entry], allowed: Collection[str] | None, from_ns: int, to_ns: int
) -> Iterator[Harm]:
    """Servers that ran and were no part of their cluster any more: `consul operator raft remove-peer`."""
    if allowed is None:
        return
    stopped = {entry.host for entry in entries if stops(entry)}
    spared = {*allowed, *stopped, *(window.host for window in recording.faults)}
    for t_ns, text in outside(recording, spared, from_ns, to_ns):
        yield Harm(t_ns, text)


def _quorums(recording: Recording, entries: Sequence[Entry], from_ns: int, to_ns: int) -> Iterator[Harm]:
    """By the processes, and by the cluster where these all ran."""
    found = list(_stopped_quorums(recording, entries, from_ns, to_ns))
    yield from (harm for _, harm in found)
    for service, t_ns, text in lost_quorums(recording, entries, from_ns, to_ns):
        if service not in {each for each, _ in found}:
            yield Harm(t_ns, text, grave=True)


def _stopped_quorums(
    recording: Recording, entries: Sequence[Entry], from_ns: int, to_ns: int
) -> Iterator[tuple[str, Harm]]:
    grid = np.arange(from_ns, to_ns, SECOND // 2, dtype=np.int64)
    faulty = _down_by_fault(recording)
    for service, voters in by_service(recording).items():
        majority = len(voters) // 2 + 1
        running = np.zeros(len(grid), np.int64)
        without_hands = np.zeros(len(grid), np.int64)
        for server in voters:
            ran = up(recording, server.label, grid)
            by_itself = server.host in faulty or crashed(recording, server)
            by_hand_ns = _by_hand_ns(entries, server, grid, ran, by_itself=by_itself)
            running += ran
            without_hands += ran | (grid >= by_hand_ns)
        broken = np.flatnonzero((running < majority) & (without_hands >= majority))
        if len(broken):
            first = int(broken[0])
            at_s = len(broken) / 2
            text = f"{int(running[first])} of {len(voters)} servers ran, for about {at_s:g}s"
            yield service, Harm(int(grid[first]), f"you broke {service}'s quorum: {text}", grave=True)


def _by_hand_ns(entries: Sequence[Entry], server: Server, grid: Int64s, ran: Int64s, *, by_itself: bool) -> float:
    """From when on it is the trainee's doing that it does not run; infinite where it never is.

    Who restarts what a fault has ended, ends nothing.
    """
    for entry in entries:
        at = max(0, int(np.searchsorted(grid, entry.t_ns, side="right")) - 1)
        if stops(entry) and entry.host == server.host and (bool(ran[at]) or not by_itself):
            return entry.t_ns
    away = np.flatnonzero(ran == 0)
    return float("inf") if by_itself or not len(away) else float(grid[away[0]])


def _down_by_fault(recording: Recording) -> set[str]:
    """Hosts with a fault that may end their agent, or stop it."""
    return {window.host for window in recording.faults if not window.kind.startswith(_KEEPS_RUNNING)}


def _away(recording: Recording, label: str, from_ns: int, to_ns: int) -> int | None:
    """When it was first found gone, or to be another process, between the two moments."""
    if runs(recording, label) is None:
        return None
    return not_the_same_process_ns(recording, label, from_ns, to_ns)
