"""Probes of the replicated store, and the server that leads it."""

import contextlib
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from pydantic import BaseModel, TypeAdapter

from hashidrill.core.errors import FaultError
from hashidrill.core.probes import agents
from hashidrill.core.protocols.abc import Host, Sample
from hashidrill.core.protocols.capabilities import AgentApi
from hashidrill.core.protocols.service import LEADS
from hashidrill.core.util.wait import all_at_once

_TELLS_WITHIN_S = 1.0


class _Server(BaseModel):
    """What a server says about itself (`/v1/agent/self`)."""

    role: str
    term: int
    commit_index: int
    snapshots: int
    installs: int


_SERVER = TypeAdapter(_Server)


class LeaderProbe(agents.LeaderProbe):
    """`store.leader` (host empty) as a majority of all servers sees it."""

    signals: ClassVar = ("store.leader",)


class ServerProbe(agents.HostProbe):
    """`store.term` (text: `leads` if it leads), `store.commit_index`, and how many snapshots the server began and
    installed.
    """

    signals: ClassVar = ("store.term", "store.commit_index", "store.snapshots", "store.installs")

    async def measure(self) -> Sequence[Sample]:
        said = await self._api.get(self._address, "/v1/agent/self", _SERVER)
        values = (said.term, said.commit_index, said.snapshots, said.installs)
        texts = (LEADS if said.role == "leader" else "", "", "", "")
        return [
            Sample(signal, float(value), text, self.host)
            for signal, value, text in zip(self.signals, values, texts, strict=True)
        ]


async def leader_of(servers: Sequence[Host]) -> str | None:
    """The server that a majority names as the leader now."""
    votes: Counter[str] = Counter()

    async def ask(host: Host) -> None:
        with contextlib.suppress(FaultError, ValueError):
            said = await host.use(AgentApi).api("GET", "/v1/status/leader", timeout_s=_TELLS_WITHIN_S, agent="store")
            votes[str(said.json()).partition(":")[0]] += 1

    await all_at_once(partial(ask, host) for host in servers)
    return next((host.name for host in servers if votes[host.address] > len(servers) // 2), None)
