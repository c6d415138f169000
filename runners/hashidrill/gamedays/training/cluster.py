"""What the cluster says of a trainee's hands: who knew a leader, who was outside, and whether writes went on.

`operator raft remove-peer` and `vault operator seal` leave every process running. So a lost quorum is judged by the
servers' own words and by the writes that stopped, and their logs say whether they were told to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hashidrill.core.errors import HypothesisInvalidError
from hashidrill.core.judging.measure import SECOND
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.service import Drawn
from hashidrill.gamedays.training.agent_logs import orders
from hashidrill.gamedays.training.servers import Server, by_service, servers, up

if TYPE_CHECKING:
    from hashidrill.core.recording.reader import Int64s, Recording, Series
    from hashidrill.gamedays.training.desk import Entry

STOPS = ("stop", "restart", "kill")
ELECTION_NS = 20 * SECOND
"""Longer than elections take on a busy machine, with the longest Raft timeouts that a scenario asks for."""
OUTSIDE_NS = 10 * SECOND
"""A server that the others still count as one of them hears of its leader several times a second."""
_ORDER_NS = 60 * SECOND
_WRITES = ".write"
_HARMLESS = ("(SIGCONT)", "(SIGHUP)", "(SIGUSR1)", "(SIGUSR2)", "(SIGWINCH)")
"""Signals that end and stop nothing."""


def lost_quorums(
    recording: Recording, entries: Sequence[Entry], from_ns: int, to_ns: int
) -> Iterator[tuple[str, int, str]]:
    """(service, when, what a person reads) where no server led for longer than an election takes, after an order.

    Where nobody led when the pager went, that was the fault. Where writes were acknowledged, somebody led.
    """
    faulty = {window.host for window in recording.faults}
    for service, signal in _leads().items():
        if service not in by_service(recording):
            continue
        for begin_ns, end_ns in _gaps(_series(recording, signal, ""), from_ns, to_ns, ELECTION_NS):
            why = _order(recording, entries, service, faulty, begin_ns)
            served_ns = np.append(_acknowledged(recording, service, begin_ns, end_ns), end_ns)
            unserved_ns = int(np.diff(served_ns, prepend=begin_ns).max())
            if not why or unserved_ns < ELECTION_NS:
                continue
            text = (
                f"no majority of its servers knew a leader for about {(end_ns - begin_ns) / SECOND:.0f}s, and no write"
            )
            text += f" was acknowledged for {unserved_ns / SECOND:.0f}s of them; just before: {why}"
            yield service, begin_ns, f"you broke {service}'s quorum: {text}"
            break


def outside(recording: Recording, spared: Collection[str], from_ns: int, to_ns: int) -> Iterator[tuple[int, str]]:
    """(when, what a person reads) of each server that ran, and that the others no longer told who leads.

    `spared` are hosts that the repair may touch, that have a fault, or whose agent was stopped: that is told elsewhere.
    """
    leads = _leads()
    for server in servers(recording):
        signal = leads.get(server.service)
        if signal is None or server.host in spared:
            continue
        for begin_ns, end_ns in _gaps(_series(recording, signal, server.host), from_ns, to_ns, OUTSIDE_NS):
            led = _mostly(_series(recording, signal, ""), begin_ns, end_ns)
            told = list(orders(recording, server.service, spared, from_ns, begin_ns + SECOND))
            if led and _ran(recording, server, begin_ns, end_ns) and told:
                for_s = (end_ns - begin_ns) / SECOND
                text = (
                    f"{server.service} on {server.host} was healthy, and was outside of its cluster while you worked:"
                )
                text += (
                    f" it ran, and knew no leader for about {for_s:.0f}s; the log of {told[-1].host}: {told[-1].text}"
                )
                yield begin_ns, text
                break


def _leads() -> dict[str, str]:
    """By product the signal that names its leader."""
    return {one.name: lane.signal for one in registry.services_with(Drawn) for lane in one.lanes[::-1] if lane.names}


def _series(recording: Recording, signal: str, host: str) -> Series | None:
    try:
        return recording.series(signal, host)
    except HypothesisInvalidError:
        return None


def _gaps(series: Series | None, from_ns: int, to_ns: int, least_ns: int) -> Iterator[tuple[int, int]]:
    """Each time without a good sample that is at least that long, and that one within the span comes before."""
    if series is None:
        return
    inside = (series.t_ns >= from_ns) & (series.t_ns <= to_ns)
    last_good_ns: int | None = None
    last_ns = 0
    for t_ns, ok in zip(series.t_ns[inside].tolist(), series.ok[inside].tolist(), strict=True):
        if ok:
            if last_good_ns is not None and last_ns > last_good_ns and t_ns - last_good_ns >= least_ns:
                yield last_good_ns, t_ns
            last_good_ns = t_ns
        last_ns = t_ns
    if last_good_ns is not None and last_ns - last_good_ns >= least_ns:
        yield last_good_ns, last_ns


def _mostly(series: Series | None, begin_ns: int, end_ns: int) -> bool:
    if series is None:
        return False
    inside = (series.t_ns > begin_ns) & (series.t_ns < end_ns)
    return bool(inside.any()) and float(series.ok[inside].mean()) > 1 / 2


def _ran(recording: Recording, server: Server, begin_ns: int, end_ns: int) -> bool:
    grid = np.arange(begin_ns, end_ns, SECOND, dtype=np.int64)
    return bool(np.all(up(recording, server.label, grid)))


def stops(entry: Entry) -> bool:
    """Whether that stopped an agent, or was meant to: who looks at one, starts it or lets it go on, does not."""
    return entry.what == "agent" and entry.text.partition(" ")[0] in STOPS and not entry.text.endswith(_HARMLESS)


def _order(recording: Recording, entries: Sequence[Entry], service: str, faulty: Collection[str], at_ns: int) -> str:
    """The last order before that moment that may have taken the leader away; empty where there was none."""
    from_ns, to_ns = at_ns - _ORDER_NS, at_ns + SECOND
    found = [
        (each.t_ns, f"{each.text} (on {each.host})")
        for each in entries
        if stops(each) and from_ns <= each.t_ns <= to_ns
    ]
    found += [
        (each.t_ns, f"the log of {each.host}: {each.text}")
        for each in orders(recording, service, faulty, from_ns, to_ns)
    ]
    return max(found)[1] if found else ""


def _acknowledged(recording: Recording, service: str, begin_ns: int, end_ns: int) -> Int64s:
    """When users' writes to that product were acknowledged; none where nobody writes to it."""
    found = [np.empty(0, np.int64)]
    for name, load in recording.experiment.load.items():
        if load.kind.startswith(f"{service}.") and load.kind.endswith(_WRITES):
            ops = recording.operations(name)
            found.append(ops.end_ns[ops.ok & (ops.end_ns > begin_ns) & (ops.end_ns < end_ns)])
    return np.sort(np.concatenate(found))
