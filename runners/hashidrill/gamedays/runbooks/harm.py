"""What was done to the datacenter by hand: servers restarted that nothing ailed, a quorum lost. From the recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hashidrill.core.recording.journal import Entry
from hashidrill.core.recording.reader import Recording

SERVER = "server"


@dataclass
class _Agents:
    """Which process each HOST/AGENT is, "" where none runs."""

    now: dict[str, str] = field(default_factory=dict)

    def up(self, servers: Sequence[str]) -> int:
        return sum(bool(self.now.get(name)) for name in servers)


def harm_of(recording: Recording, entries: Sequence[Entry]) -> list[str]:
    """Each harm as a sentence. `entries`: what was done, in order (`attended.did`).

    A server may be restarted by whoever follows a runbook where a fault is on its host, and where the servers of that
    product had no quorum anyway: then nothing is served that a restart could take away.
    """
    servers = _servers(recording)
    ailing = {window.host for window in recording.faults if window.proven}
    agents, acting = _Agents(), False
    lost: dict[str, str] = {}
    touched: dict[str, str] = {}
    without_quorum = set[str]()
    for entry in entries:
        acting = acting or entry.data.get("what") == "acts"
        if entry.data.get("what") != "agents":
            continue
        changed: Mapping[str, str] = entry.data.get("agents") or {}
        before, agents.now = dict(agents.now), {**agents.now, **changed}
        if not acting:
            without_quorum = {p for p, names in servers.items() if agents.up(names) < _majority(names)}
            continue
        for product, names in servers.items():
            if product in without_quorum:
                continue
            up = agents.up(names)
            if up < _majority(names):
                lost.setdefault(product, f"the quorum of {product} was lost by hand: {up} of {len(names)} servers ran")
            for name in names:
                ours = bool(before.get(name)) or name in touched
                if name in changed and ours and name.partition("/")[0] not in ailing:
                    touched[name] = "restarted" if changed[name] else "stopped"
    return [*lost.values(), *(f"a healthy server was {what}: {name}" for name, what in touched.items())]


def _servers(recording: Recording) -> dict[str, list[str]]:
    """HOST/AGENT of each product's servers."""
    found: dict[str, list[str]] = {}
    for host in recording.run.get("hosts") or []:
        agents: Mapping[str, str] = host.get("agents") or {"consul": host.get("role", "")}
        for agent, role in agents.items():
            if role == SERVER:
                found.setdefault(agent, []).append(f"{host['name']}/{agent}")
    return found


def _majority(names: Sequence[str]) -> int:
    return len(names) // 2 + 1
