"""Concentrates the agents' streams on one server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import anyio
from pydantic import Field, StringConstraints

from hashidrill.core.errors import FaultError, SelectorError
from hashidrill.core.experiment.model import NAME_PATTERN
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.faults.base import Cases, table_of
from hashidrill.core.protocols.abc import Claim, Evidence, Host, Observer, Place, Target, Trouble, Undo
from hashidrill.core.protocols.capabilities import AgentApi, NetworkCanary, PacketFilter
from hashidrill.core.protocols.claims import EVERYWHERE, needs, takes
from hashidrill.core.protocols.rights import Right
from hashidrill.products.consul import api, rights
from hashidrill.products.consul.faults import rpc
from hashidrill.products.consul.faults.declared import SELECTED, OfServers, consul_of, is_before, on_one_host

UNTIL = (1, 11)
"""From when on agents may stay with the server that they chose, reachable or not.

Seen on 1.22.2, of agents that had no stream yet; those of 1.10.3 turn to the next server at once. Where between the two
that changed was not looked for.
"""
TOO_NEW = "agents since 1.11 may stay with a server that they cannot reach, and have no streams then"


class StreamsParams(Strict):
    """Whose streams."""

    agents: (
        Annotated[
            list[Annotated[str, StringConstraints(pattern=NAME_PATTERN)]],
            Field(min_length=1, max_length=1000, description="Hosts of client agents"),
        ]
        | None
    ) = None
    """Hosts of client agents, like `[client-1, client-2]`; without it, all. Another step can give the others' streams
    to another server.
    """


class StreamsGather(OfServers[StreamsParams]):
    """Concentrates client agents' streams on this server, by blocking streaming to the other servers.

    All agents' streams, or with `agents` those of the named ones: another step can give the rest to another server.

    An agent has all of its streams from one server, drawn by lot when it connects and again every few minutes. With
    thousands of agents each server has its share. With a few, where the load is is a matter of luck; with this it is
    not. Blocking queries, writes and gossip go wherever they went.

    Limits: later agents may stay with a server that they cannot reach, and have no streams then: seen on 1.22.2, of
    agents that had none yet. RPC must not be encrypted. What the observer sees are the rules: an agent moves its
    streams when it next sends something on the old connection, which is at once where anything changes. It follows no
    change of leader. If the server ends or freezes, agents have no streams, and no answers to what is streamed, until
    it is back. Loads that subscribe directly (`consul.streams`) are not moved.
    """

    kind: ClassVar[str] = "consul.streams.gather"
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({AgentApi, NetworkCanary})
    observer: ClassVar[Observer] = Observer(
        "connections like gRPC's, from each agent to each server",
        "the rules cover the canary's port as well as 8300: it looks at no stream of an agent",
    )
    Params: ClassVar[type[Strict]] = StreamsParams
    cases: ClassVar[Cases] = Cases(on=(("consul:leader", {}),), overlaps="it is for an older Consul")

    def uses(self, place: Place) -> Sequence[Claim]:
        """A server that has the streams has no other trace of that: it does not matter where it is not named."""
        there = frozenset(place.having("consul", "client"))
        whose = frozenset(self.params.agents) if self.params.agents and there else EVERYWHERE | there
        return (
            takes("the agents' streams", "both are about which server has the streams", where=whose, local=False),
            needs(SELECTED, where=frozenset({place.on})),
        )

    def troubles(self, place: Place) -> Iterable[Trouble]:
        yield from super().troubles(place)
        yield from on_one_host(self.kind, place)
        if (consul := consul_of(place)) is None:
            return
        names = place.having("consul", "client")
        clients = len(names)
        yield from self._unknown(names)
        if consul.servers < 2 or not clients:
            there = f"there are {consul.servers} servers and {clients} client agents"
            text = f"{self.kind} needs a second server, and client agents that stream from it ({there})"
            yield ("on",), text
        elif not consul.binary and not is_before(UNTIL, consul):
            until = ".".join(map(str, UNTIL))
            yield ("on",), f"{self.kind} is for Consul before {until}, not {consul.version}: {TOO_NEW}"

    def _unknown(self, clients: Sequence[str]) -> Iterable[Trouble]:
        for number, name in enumerate(self.params.agents or ()):
            if clients and name not in clients:
                text = f"{name} is no client agent; the client agents are {', '.join(clients)}"
                yield ("with", "agents", str(number)), text

    def rights(self) -> Sequence[Right]:
        return rights.READS

    def plan_more(self, target: Target) -> dict[str, Any]:
        hosts = self.hosts.all_hosts()
        clients = [host.name for host in hosts if host.roles.get(api.AGENT) == "client"]
        others = [
            host for host in hosts if host.roles.get(api.AGENT) in ("server", "spare") and host.name != target.host
        ]
        if unknown := [name for name in self.params.agents or () if clients and name not in clients]:
            there = ", ".join(clients)
            raise SelectorError(f"{self.kind}: {', '.join(unknown)} is no client agent; the client agents are {there}")
        if self.params.agents:
            clients = [name for name in clients if name in self.params.agents]
        if not clients or not others:
            lacking = "no client agent" if not clients else "no other server"
            raise SelectorError(f"{self.kind} on {target.host}: there is {lacking}, so there is nothing to gather")
        return {"clients": clients, "others": [host.name for host in others]}

    async def prior(self, target: Target) -> Mapping[str, Any]:
        """Raises FaultError where the target is no server, its Consul is too new, or RPC is encrypted."""
        host = self.hosts.host(target.host)
        if host.roles.get(api.AGENT) != "server":
            raise FaultError(f"{host.name} is not a server, so agents have no streams from it")
        if (version := await api.version_of(host)) >= UNTIL:
            raise FaultError(f"{host.name}: Consul {'.'.join(map(str, version))}: {TOO_NEW}")
        await rpc.check_readable(host)
        return {}

    async def apply(self, undo: Undo) -> None:
        others = [self.hosts.host(name).address for name in undo["others"]]
        for host in self._clients(undo):
            await host.use(PacketFilter).set_packet_rules(table_of(undo["fault_id"]), [rpc.cut_streams(others)])

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        """Whether a connection that begins as for streaming is reset, from each agent to each server."""
        cut: list[str] = []
        servers = [self._host(undo), *map(self.hosts.host, undo["others"])]

        async def attempt(client: Host, server: Host) -> None:
            if await rpc.is_cut(client, server):
                cut.append(server.name)

        async with anyio.create_task_group() as group:
            for client in self._clients(undo):
                for server in servers:
                    group.start_soon(attempt, client, server)
        clients, asked = len(undo["clients"]), undo["others"] if present else []
        measured = ", ".join(f"{cut.count(server.name)} from {server.name}" for server in servers)
        words = f"all {clients} agents are kept from {', '.join(undo['others'])}, and none from {undo['host']}"
        return Evidence(
            sorted(cut) == sorted(name for name in asked for _ in range(clients)),
            words if present else f"none of {clients} agents is kept from any server",
            f"agents kept from servers: {measured}",
            {"agents": clients, "cut": len(cut)},
        )

    async def revert(self, undo: Undo) -> None:
        for host in self._clients(undo):
            await host.use(PacketFilter).clear_packet_rules(table_of(undo["fault_id"]))

    def _clients(self, undo: Undo) -> list[Host]:
        return [self.hosts.host(name) for name in undo["clients"]]
