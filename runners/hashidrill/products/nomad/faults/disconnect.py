"""A node that no longer reaches Nomad's servers, while everything else on its host goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from hashidrill.core.errors import FaultError
from hashidrill.core.faults.base import Cases, NoParams, table_of
from hashidrill.core.protocols.abc import Claim, Evidence, Observer, Place, Target, Undo
from hashidrill.core.protocols.capabilities import AgentApi, PacketFilter
from hashidrill.core.protocols.claims import ANSWERS, ON_CONNECTIONS, connections, needs, takes
from hashidrill.core.protocols.packets import Block
from hashidrill.core.protocols.rights import Right
from hashidrill.products.nomad import api, rights
from hashidrill.products.nomad.agents import RPC_PORT
from hashidrill.products.nomad.durations import seconds
from hashidrill.products.nomad.faults.declared import OfNodes
from hashidrill.products.nomad.tasks import TaskProcesses

_SEEN_WITHIN_S = 60.0
"""Nomad's own settings: a silent node is down after 20 to 30 s, and one that was gone tries again every 1 to 30 s."""
_AWAY = ("down", "disconnected")


@dataclass(frozen=True)
class _Heartbeat:
    """What the node says of itself: how long ago a server took its last heartbeat, and when the next one is due."""

    last_s: float
    ttl_s: float

    @property
    def late(self) -> bool:
        return self.last_s > self.ttl_s

    def __str__(self) -> str:
        return f"its last heartbeat was taken {self.last_s:.1f}s ago (due every {self.ttl_s:.1f}s)"


class NodeDisconnect(OfNodes[NoParams]):
    """Drops what the node's agent sends to Nomad's servers, so its heartbeats stop; its tasks, and Consul, go on.

    Limits: in force after 5 to 7 s with this datacenter's settings, after 20 to 30 s with Nomad's own. A node that
    comes back stops allocations that were replaced meanwhile.
    """

    kind: ClassVar[str] = "nomad.node.disconnect"
    observer: ClassVar[Observer] = Observer(
        "the node's status in a follower's state, and when the node itself says that its last heartbeat was taken"
    )
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({AgentApi, PacketFilter, TaskProcesses})
    cases: ClassVar[Cases] = Cases(on=(("nomad:one-client", {}),))

    def rights(self) -> Sequence[Right]:
        return rights.READS

    @property
    def observed_within_s(self) -> float:
        return _SEEN_WITHIN_S

    def uses(self, place: Place) -> Sequence[Claim]:
        servers = place.having("nomad", "server")
        cut = frozenset((host, server) for host in place.hosts for server in servers)
        return (
            *super().uses(place),
            takes(connections(RPC_PORT), where=cut, meets=ON_CONNECTIONS),
            needs(ANSWERS, "the node itself must say that no server takes its heartbeats"),
        )

    def plan_more(self, target: Target) -> dict[str, Any]:
        return {"addresses": [host.address for host in api.servers_of(self.hosts)]}

    async def prior(self, target: Target) -> Mapping[str, Any]:
        """Raises FaultError for a node that the servers take for gone already."""
        node = await api.node_named(self.hosts, target.host)
        if node["Status"] != "ready":
            raise FaultError(f"{target.host} is {node['Status']} already, without this fault")
        return {"node": node["ID"], "tasks": [one.reference for one in await self._tasks(target.host)]}

    async def _tasks(self, host: str) -> Sequence[Any]:
        return await self.hosts.host(host).use(TaskProcesses).task_processes()

    async def apply(self, undo: Undo) -> None:
        rule = Block("output", tuple(undo["addresses"]), port=RPC_PORT)
        await self._host(undo).use(PacketFilter).set_packet_rules(table_of(undo["fault_id"]), [rule])

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        """The servers' word and the node's: either alone could be about something else."""
        status = str((await api.from_copy(self.hosts, f"/v1/node/{self._node(undo)}"))["Status"])
        heartbeat = await self._heartbeat(undo)
        before = set(undo["prior"]["tasks"])
        still = len(before & {one.reference for one in await self._tasks(undo["host"])})
        measured = f"the node is {status}; {heartbeat}; {still} of {len(before)} processes of its tasks still run"
        figures: dict[str, float | str] = {"last_heartbeat_s": heartbeat.last_s, "tasks": len(before), "still": still}
        if present:
            asked = "the servers take the node for gone, and it says that none takes its heartbeats"
            return Evidence(status in _AWAY and heartbeat.late, asked, measured, figures)
        asked = "the node is ready, and says that its heartbeats are taken"
        return Evidence(status == "ready" and not heartbeat.late, asked, measured, figures)

    async def _heartbeat(self, undo: Undo) -> _Heartbeat:
        """Raises FaultError when the node does not tell."""
        answer = await api.call(self._host(undo), "GET", "/v1/agent/self")
        try:
            stats = answer.json()["stats"]["client"]
            last_s, ttl_s = seconds(stats["last_heartbeat"]), seconds(stats["heartbeat_ttl"])
        except (ValueError, KeyError, TypeError):
            last_s = ttl_s = None
        if last_s is None or ttl_s is None:
            raise FaultError(f"{undo['host']} does not say when its last heartbeat was taken: {api.said(answer)}")
        return _Heartbeat(last_s, ttl_s)

    async def revert(self, undo: Undo) -> None:
        await self._host(undo).use(PacketFilter).clear_packet_rules(table_of(undo["fault_id"]))
