"""The servers of a game, when each of them ran, and the harm that the trainee did."""

import math
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from hashidrill.core.errors import HypothesisInvalidError
from hashidrill.core.judging.measure import SECOND, latest
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.service import Drawn
from hashidrill.core.recording.reader import Int64s, Recording, Series
from hashidrill.gamedays.training.game_log import Entry

_FRESH_NS = 3 * SECOND
_STOPPED, _GONE = "T", "gone"
_ENDED = re.compile(r"(does not run|is gone)$")
"""The text of a look that did not find the process. A late look has another text."""


@dataclass(frozen=True)
class Server:
    """A server agent; `label` is the host name of its samples."""

    host: str
    service: str
    label: str


def servers(recording: Recording) -> list[Server]:
    """Agents with the role of a server, from run.json."""
    return [
        Server(host["name"], service, host["name"] if number == 0 else f"{host['name']}/{service}")
        for host in recording.run.get("hosts", [])
        for number, (service, role) in enumerate(host.get("agents", {}).items())
        if role == "server"
    ]


def by_service(recording: Recording) -> dict[str, list[Server]]:
    """The servers of each product, in the order of run.json."""
    found: dict[str, list[Server]] = {}
    for server in servers(recording):
        found.setdefault(server.service, []).append(server)
    return found


def runs(recording: Recording, label: str) -> Series | None:
    """The samples of that process; None without any."""
    try:
        return recording.series("process.rss", label)
    except HypothesisInvalidError:
        return None


def up(recording: Recording, label: str, grid: Any) -> Any:
    """For each moment, whether that process ran; true if there is no look close enough in time."""
    looks = [] if (series := runs(recording, label)) is None else _looks(series)
    if not looks:
        return np.ones(len(grid), np.int64)
    index, fresh = latest(np.array([t_ns for t_ns, _ in looks], np.int64), grid, _FRESH_NS)
    running = np.array([state not in {_GONE, _STOPPED} for _, state in looks], np.bool_)
    return np.where(fresh, running[index], True).astype(np.int64)


def _looks(series: Series) -> list[tuple[int, str]]:
    """The time and the process's state of each look that was not late."""
    rows = zip(series.t_ns.tolist(), series.ok.tolist(), series.text, strict=True)
    return [(t_ns, text if ok else _GONE) for t_ns, ok, text in rows if ok or _ENDED.search(text)]


_LINE = re.compile(r"^\s*(\d{4}-\d\d-\d\dT\S+) \[[A-Z]+\]\s+(.*)$")
_CRASHED = re.compile(r"^panic:|^fatal error:|^==> Error|^Error |\[FATAL\]|no space left on device", re.MULTILINE)
_LEFT = re.compile(r"serf: EventMemberLeave(?: \(forced\))?: (\S+)")
_REMOVED = re.compile(r"removed raft peer", re.IGNORECASE)
_OWN = re.compile(r"server starting leave|marked as sealed|found peers\.json")
"""Orders that remove a vote, the server's own or another's, as Consul 1.22, Nomad 1.10 and Vault 1.21 log them."""


@dataclass(frozen=True)
class Order:
    """A line of a server's log about an order to leave, for this server or another."""

    t_ns: int
    host: str
    text: str


def crashed(recording: Recording, server: Server) -> bool:
    """Whether the agent's log shows that the agent ended by itself."""
    return _CRASHED.search(_text(recording, server)) is not None


def orders(recording: Recording, service: str, spared: Collection[str], from_ns: int, to_ns: int) -> Iterator[Order]:
    """The orders to the servers of that product between the two moments, in order of time.

    Orders about a host of `spared` are left out: servers themselves remove a server that a fault has ended.
    """
    found = [
        order for server in by_service(recording).get(service, []) for order in _orders(recording, server, from_ns)
    ]
    addresses = {host["name"]: host.get("address", "") for host in recording.run.get("hosts", [])}
    words = {word for host in spared for word in (host, addresses.get(host)) if word}
    for order in sorted(found, key=lambda each: each.t_ns):
        named = {*re.findall(r"[\w-]+(?:\.\d+)*", order.text), *([order.host] if _OWN.search(order.text) else [])}
        about = named & words
        if from_ns <= order.t_ns <= to_ns and not about:
            yield order


def _orders(recording: Recording, server: Server, from_ns: int) -> Iterator[Order]:
    lines = list(_lines(recording, server))
    if (emptied := _emptied(recording, server, lines)) is not None:
        yield Order(from_ns, server.host, emptied)  # its time is unknown
    for t_ns, said in lines:
        if any(order.search(said) for order in (_LEFT, _REMOVED, _OWN)):
            yield Order(t_ns, server.host, said.strip())


def _emptied(recording: Recording, server: Server, lines: Sequence[tuple[int, str]]) -> str | None:
    """A sentence, if the server's log lacks the time at which the server was first seen running; otherwise None."""
    series = runs(recording, server.label)
    if series is None or not series.ok.any():
        return None
    if not lines:
        return "it was removed"
    since_ns = int(series.t_ns[series.ok][0])
    return None if lines[0][0] <= since_ns + SECOND else "the file was truncated: its earlier lines are gone"


def _lines(recording: Recording, server: Server) -> Iterator[tuple[int, str]]:
    began = recording.journal[0]
    for line in _text(recording, server).splitlines():
        if (found := _LINE.match(line)) is None:
            continue
        try:
            wall_s = datetime.fromisoformat(found[1]).timestamp()
        except (ValueError, OverflowError):
            continue
        yield round((wall_s - began.wall) * SECOND) + began.t_ns, found[2]


def _text(recording: Recording, server: Server) -> str:
    path = recording.path / "logs" / Path(server.host).name / f"{Path(server.service).name}.log"
    return path.read_text(errors="replace") if path.is_file() else ""


STOPS = ("stop", "restart", "kill")
ELECTION_NS = 20 * SECOND
"""Longer than elections take on a busy machine, with the longest Raft timeouts of any scenario."""
OUTSIDE_NS = 10 * SECOND
"""A server that is still a member hears from its leader several times a second."""
_ORDER_NS = 60 * SECOND
_WRITES = ".write"
_HARMLESS = ("(SIGCONT)", "(SIGHUP)", "(SIGUSR1)", "(SIGUSR2)", "(SIGWINCH)")
"""Signals that neither end nor stop an agent."""


def lost_quorums(
    recording: Recording, entries: Sequence[Entry], from_ns: int, to_ns: int
) -> Iterator[tuple[str, int, str]]:
    """(service, time, sentence) for each period after an order that had no leader for longer than an election.

    If there was no leader when the pager went off, the fault is the cause. Acknowledged writes prove a leader.
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
                f" was acknowledged for {unserved_ns / SECOND:.0f}s of them; just before: {why}"
            )
            yield service, begin_ns, f"you broke {service}'s quorum: {text}"
            break


def outside(recording: Recording, spared: Collection[str], from_ns: int, to_ns: int) -> Iterator[tuple[int, str]]:
    """(time, sentence) for each running server that no longer learned from the others which server leads.

    `spared` are hosts that the repair may touch, that have a fault, or whose agent was stopped: other functions
    report these.
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
                text = (
                    f"{server.service} on {server.host} was healthy, but was outside its cluster while you worked:"
                    f" it ran, but knew no leader for about {(end_ns - begin_ns) / SECOND:.0f}s; the log of"
                    f" {told[-1].host}: {told[-1].text}"
                )
                yield begin_ns, text
                break


def _leads() -> dict[str, str]:
    return {one.name: lane.signal for one in registry.services_with(Drawn) for lane in one.lanes[::-1] if lane.names}


def _series(recording: Recording, signal: str, host: str) -> Series | None:
    try:
        return recording.series(signal, host)
    except HypothesisInvalidError:
        return None


def _gaps(series: Series | None, from_ns: int, to_ns: int, least_ns: int) -> Iterator[tuple[int, int]]:
    """Each gap of at least that length without a good sample, if a good sample within the span comes before it."""
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
    """Whether that command stopped an agent, or was meant to; to inspect, start or resume an agent does not count."""
    return entry.what == "agent" and entry.text.partition(" ")[0] in STOPS and not entry.text.endswith(_HARMLESS)


def _order(recording: Recording, entries: Sequence[Entry], service: str, faulty: Collection[str], at_ns: int) -> str:
    """The last order before that moment that may have taken the leader away; "" without one."""
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
    """The times at which users' writes to that product were acknowledged; empty without writes."""
    found = [np.empty(0, np.int64)]
    for name, load in recording.experiment.load.items():
        if load.kind.startswith(f"{service}.") and load.kind.endswith(_WRITES):
            ops = recording.operations(name)
            found.append(ops.end_ns[ops.ok & (ops.end_ns > begin_ns) & (ops.end_ns < end_ns)])
    return np.sort(np.concatenate(found))


_KEEPS_RUNNING = (
    "network.",
    "disk.latency",
    "disk.bandwidth",
    "consul.leader.",
    "consul.streams.",
    "nomad.leader.",
    "vault.seal",
)
"""Kinds of faults that do not end an agent's process: an agent that ends on such a host ended for another reason."""


@dataclass(frozen=True)
class Harm:
    """`grave` harm means that the game is lost."""

    t_ns: int
    text: str
    grave: bool = False


def harms(
    recording: Recording, entries: Sequence[Entry], *, allowed: Collection[str] | None, from_ns: int, to_ns: int
) -> list[Harm]:
    """The harm in order of time. `allowed` are the hosts whose agents the repair may stop; None: all hosts."""
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
            yield Harm(entry.t_ns, f"{agent} on {entry.host} was healthy, but you did: {entry.text}")


def _gone(
    recording: Recording, entries: Sequence[Entry], allowed: Collection[str] | None, from_ns: int, to_ns: int
) -> Iterator[Harm]:
    """Servers that ended, but not by a fault, by systemctl or by a crash: for example by `consul leave`.

    A server that was restarted at once counts, as a new process.
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
            yield Harm(away, f"{server.service} on {server.host} was healthy, but ended while you worked")


def _outside(
    recording: Recording, entries: Sequence[Entry], allowed: Collection[str] | None, from_ns: int, to_ns: int
) -> Iterator[Harm]:
    """Servers that ran but were no longer members of their cluster: `consul operator raft remove-peer`."""
    if allowed is None:
        return
    stopped = {entry.host for entry in entries if stops(entry)}
    spared = {*allowed, *stopped, *(window.host for window in recording.faults)}
    for t_ns, text in outside(recording, spared, from_ns, to_ns):
        yield Harm(t_ns, text)


def _quorums(recording: Recording, entries: Sequence[Entry], from_ns: int, to_ns: int) -> Iterator[Harm]:
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
    """The time from which the agent does not run because of the trainee; infinity if there is none.

    Restarting an agent that a fault has ended does not count as ending it.
    """
    for entry in entries:
        at = max(0, int(np.searchsorted(grid, entry.t_ns, side="right")) - 1)
        if stops(entry) and entry.host == server.host and (bool(ran[at]) or not by_itself):
            return entry.t_ns
    away = np.flatnonzero(ran == 0)
    return float("inf") if by_itself or not len(away) else float(grid[away[0]])


def _down_by_fault(recording: Recording) -> set[str]:
    """Hosts with a fault that may end or stop their agent."""
    return {window.host for window in recording.faults if not window.kind.startswith(_KEEPS_RUNNING)}


def _away(recording: Recording, label: str, from_ns: int, to_ns: int) -> int | None:
    """The first time between the two moments at which the process was gone or replaced.

    A look in time after another one has the CPU time used since then, unless the process was replaced. A late look
    and the look after it prove neither.
    """
    series = runs(recording, label)
    if series is None:
        return None
    cpu = recording.series("process.cpu")
    used_ns = cpu.t_ns[cpu.ok & (np.array(cpu.host) == label)]
    rows = list(zip(series.t_ns.tolist(), series.ok.tolist(), series.text, strict=True))
    next_ns = [*(t_ns for t_ns, _, _ in rows[1:]), math.inf]
    before_ok = [False, *(ok for _, ok, _ in rows[:-1])]
    for (t_ns, ok, text), until_ns, compares in zip(rows, next_ns, before_ok, strict=True):
        if t_ns < from_ns:
            continue
        another = ok and compares and not np.any((used_ns >= t_ns) & (used_ns < until_ns))
        if another or (not ok and _ENDED.search(text)):
            return int(t_ns)
        if t_ns >= to_ns:  # this look shows the state up to that time
            return None
    return None
