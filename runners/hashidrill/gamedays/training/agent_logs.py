"""What agents' own logs say of why a server is gone, or votes no more.

A trainee can make a server leave in many ways (`consul leave`, a script, a shell in a shell); the agents log it in one.
A log that a trainee has emptied lacks its beginning: that is read as well.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from hashidrill.core.judging.measure import SECOND
from hashidrill.gamedays.training.servers import Server, by_service, runs

if TYPE_CHECKING:
    from hashidrill.core.recording.reader import Recording

_LINE = re.compile(r"^\s*(\d{4}-\d\d-\d\dT\S+) \[[A-Z]+\]\s+(.*)$")
_CRASHED = re.compile(r"^panic:|^fatal error:|^==> Error|^Error |\[FATAL\]|no space left on device", re.MULTILINE)
_LEFT = re.compile(r"serf: EventMemberLeave(?: \(forced\))?: (\S+)")
_REMOVED = re.compile(r"removed raft peer", re.IGNORECASE)
_OWN = re.compile(r"server starting leave|marked as sealed|found peers\.json")
"""Orders that take a vote away, another one's or its own, as Consul 1.22, Nomad 1.10 and Vault 1.21 log them."""


@dataclass(frozen=True)
class Order:
    """A line of a server's log that says that it, or another one, was told to leave."""

    t_ns: int
    host: str
    text: str


def crashed(recording: Recording, server: Server) -> bool:
    """Whether its log says that it ended by itself."""
    return _CRASHED.search(_text(recording, server)) is not None


def orders(recording: Recording, service: str, spared: Collection[str], from_ns: int, to_ns: int) -> Iterator[Order]:
    """What the servers of that product were told between the two moments, in order of time.

    What is about a host of `spared` is left out: servers remove one that a fault has ended by themselves.
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
        yield Order(from_ns, server.host, emptied)  # nothing says when
    for t_ns, said in lines:
        if any(order.search(said) for order in (_LEFT, _REMOVED, _OWN)):
            yield Order(t_ns, server.host, said.strip())


def _emptied(recording: Recording, server: Server, lines: Sequence[tuple[int, str]]) -> str | None:
    """What a person reads where its log lacks the time in which it was first seen to run."""
    series = runs(recording, server.label)
    if series is None or not series.ok.any():
        return None
    if not lines:
        return "it was removed"
    since_ns = int(series.t_ns[series.ok][0])
    return None if lines[0][0] <= since_ns + SECOND else "it was emptied: what stood before is not there"


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
