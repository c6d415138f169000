"""Cuts connections to Consul's server port, selected by their protocol; concentrates the agents' streams on one server.

The first byte of a connection to port 8300 names its protocol. 0x01 is Raft: a follower opens such a connection only
to ask for votes. 0x08 is gRPC, which agents use for streams. Other bytes are RPC, such as the writes that a follower
forwards and the blocking queries of agents. The rules inspect that byte and store it as the connection's mark.

So a server can vote for others, get the log from the leader and answer RPC, but never win an election. This needs no
restart, does not affect the other servers, and is exact. performance.raft_multiplier 10, meant for slow machines, is
not a substitute: for 10 to 20 s after a leader's death, a follower with this setting refuses to vote for others. In
ten elections each, with three servers under writes, elections took 11 to 24 s instead of 2 to 4 s, and on 1.22.2 the
server to avoid won all five that followed a killed leader; with these rules it won none of ten on either version.

The rules also cover the port on which canaries listen: they cut a canary's request that begins with the digit 1, so
the observer sees the rules at work on a connection of its own.
"""

import errno
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import anyio
from pydantic import Field, StringConstraints

from hashidrill.core.errors import FaultError, SelectorError
from hashidrill.core.experiment.model import NAME_PATTERN
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.faults.base import Cases, table_of
from hashidrill.core.protocols.abc import Claim, Evidence, ExchangeRequest, Host, Observer, Place, Target, Trouble, Undo
from hashidrill.core.protocols.capabilities import AgentApi, NetworkCanary, PacketFilter
from hashidrill.core.protocols.claims import EVERYWHERE, needs, takes
from hashidrill.core.protocols.packets import PAYLOADS, Block, Cut, Word
from hashidrill.core.protocols.rights import Right
from hashidrill.products.consul import api, rights
from hashidrill.products.consul.faults.declared import SELECTED, OfServers, consul_of, is_before, on_one_host

RPC_PORT = 8300
CANARY_PORT = 21_990
_MISSED, _CANARY = 0x00, 0x31
"""Other first bytes that are cut on a new connection: for a first byte that the rules missed, and for the canary."""
RAFT, _GRPC = 0x01, 0x08
_REQUEST_VOTE, _REQUEST_PRE_VOTE = 0x01, 0x04
"""First bytes of requests on a Raft connection that is older than the rules."""
_TRIAL = ExchangeRequest(upload_bytes=1, download_bytes=1, timeout_s=1.0)


def cut_votes(addresses: Sequence[str]) -> Cut:
    """The rules that keep a server from being elected; `addresses` are the other servers' addresses."""
    older: list[tuple[Word, ...]] = [
        (("doff", doff), ("data", at, 8, True, number))
        for doff, at in PAYLOADS
        for number in (_REQUEST_VOTE, _REQUEST_PRE_VOTE)
    ]
    return _cut("votes", addresses, RAFT, older)


def cut_streams(addresses: Sequence[str]) -> Cut:
    """The rules that block an agent's streams from the servers with these addresses.

    A connection older than the rules is recognised by its next frame. An HTTP/2 frame begins with a length of three
    bytes, whose third byte is not 0 in a short frame. In a frame of yamux, which all other connections use, such a
    third byte would mean flags that do not exist.
    """
    older: list[tuple[Word, ...]] = [
        (("doff", doff), ("data", at, 16, True, 0), ("data", at + 16, 8, False, 0)) for doff, at in PAYLOADS
    ]
    return _cut("streams", addresses, _GRPC, older)


def _cut(name: str, addresses: Sequence[str], first: int, older: Sequence[tuple[Word, ...]]) -> Cut:
    return Cut(name, tuple(addresses), (RPC_PORT, CANARY_PORT), (first, _MISSED, _CANARY), tuple(older))


def cut_off(addresses: Sequence[str]) -> list[Block]:
    """The rules that depose a leader: no Raft and no RPC with the other servers, either way."""
    return [Block("input", tuple(addresses), RPC_PORT), Block("output", tuple(addresses), RPC_PORT)]


async def is_cut(host: Host, other: Host) -> bool:
    """Whether the canary's connection from that host to the other server is reset on its way.

    Raises FaultError if it is neither reset nor answered.
    """
    await other.use(NetworkCanary).canary_listen(CANARY_PORT)
    [seen] = await host.use(NetworkCanary).exchange(other.address, CANARY_PORT, _TRIAL)
    if seen.errno not in (0, errno.ECONNRESET):
        name = errno.errorcode.get(seen.errno, str(seen.errno))
        raise FaultError(f"{host.name}: the canary of {other.name} did not answer: {name}")
    return seen.errno == errno.ECONNRESET


async def check_readable(host: Host) -> None:
    """Raises FaultError if RPC is encrypted: the rules could not read the first byte."""
    debug_config = (await api.agent_self(host))["DebugConfig"]
    old, new = debug_config.get("VerifyOutgoing"), debug_config.get("TLS", {}).get("InternalRPC", {})  # since 1.12
    if old or new.get("VerifyOutgoing"):
        raise FaultError(
            f"{host.name}: its RPC is encrypted, so packet rules cannot tell its connections apart; turn TLS off"
        )


UNTIL = (1, 11)
"""The first version whose agents may stay with the server that they chose, even if they cannot reach it.

Seen on 1.22.2 with agents that had no stream yet; agents of 1.10.3 turn to the next server at once. The exact version
of the change is unknown.
"""
TOO_NEW = "agents since 1.11 may stay with a server that they cannot reach, and then have no streams"


class StreamsParams(Strict):
    """The agents whose streams move."""

    agents: (
        Annotated[
            list[Annotated[str, StringConstraints(pattern=NAME_PATTERN)]],
            Field(min_length=1, max_length=1000, description="Hosts of client agents"),
        ]
        | None
    ) = None
    """Hosts of client agents, like `[client-1, client-2]`; by default all. Another step can concentrate the streams
    of the other agents on another server.
    """


class StreamsGather(OfServers[StreamsParams]):
    """Concentrates client agents' streams on this server, by blocking streaming to the other servers.

    An agent gets all its streams from one server, which it draws by lot when it connects and again every few minutes.
    With few agents, luck decides which server has the load; this fault decides instead. It affects only streams.

    Limits: RPC must not be encrypted. The observer sees the rules, not the streams: an agent moves its streams when it
    next sends on the old connection, which happens right after any change. Newer agents that had no streams yet may
    get none (1.22.2). The fault does not follow a change of leader. If the server ends or freezes, agents have no
    streams, and no answers to streamed queries, until it is back. The fault does not move loads that subscribe directly
    (`consul.streams`).
    """

    kind: ClassVar[str] = "consul.streams.gather"
    cases: ClassVar[Cases] = Cases(on=(("consul:leader", {}),), overlaps="it is for an older Consul")
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({AgentApi, NetworkCanary})
    observer: ClassVar[Observer] = Observer(
        "connections from each agent to each server that begin like gRPC's",
        "the rules cover the canary's port as well as 8300; the observer does not see an agent's streams",
    )
    Params: ClassVar[type[Strict]] = StreamsParams

    def uses(self, place: Place) -> Sequence[Claim]:
        """Does not claim the server that gets the streams, because the fault affects only the other servers."""
        there = frozenset(place.having("consul", "client"))
        whose = frozenset(self.params.agents) if self.params.agents and there else EVERYWHERE | there
        return (
            takes("the agents' streams", "both decide which server has the streams", where=whose, local=False),
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
                text = f"{name} is not a client agent; the client agents are {', '.join(clients)}"
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
            raise SelectorError(
                f"{self.kind}: {', '.join(unknown)} is not a client agent; the client agents are {there}"
            )
        if self.params.agents:
            clients = [name for name in clients if name in self.params.agents]
        if not clients or not others:
            lacking = "no client agent" if not clients else "no other server"
            raise SelectorError(f"{self.kind} on {target.host}: there is {lacking}, so there is nothing to gather")
        return {"clients": clients, "others": [host.name for host in others]}

    async def prior(self, target: Target) -> Mapping[str, Any]:
        host = self.hosts.host(target.host)
        if host.roles.get(api.AGENT) != "server":
            raise FaultError(f"{host.name} is not a server, so agents have no streams from it")
        if (version := await api.version_of(host)) >= UNTIL:
            raise FaultError(f"{host.name}: Consul {'.'.join(map(str, version))}: {TOO_NEW}")
        await check_readable(host)
        return {}

    async def apply(self, undo: Undo) -> None:
        others = [self.hosts.host(name).address for name in undo["others"]]
        for host in self._clients(undo):
            await host.use(PacketFilter).set_packet_rules(table_of(undo["fault_id"]), [cut_streams(others)])

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        """Whether a connection that starts like a stream is reset, from each agent to each server."""
        cut: list[str] = []
        servers = [self._host(undo), *map(self.hosts.host, undo["others"])]

        async def attempt(client: Host, server: Host) -> None:
            if await is_cut(client, server):
                cut.append(server.name)

        async with anyio.create_task_group() as group:
            for client in self._clients(undo):
                for server in servers:
                    group.start_soon(attempt, client, server)
        clients, asked = len(undo["clients"]), undo["others"] if present else []
        measured = ", ".join(f"{cut.count(server.name)} from {server.name}" for server in servers)
        words = f"all {clients} agents are kept from {', '.join(undo['others'])}, and no agent from {undo['host']}"
        return Evidence(
            sorted(cut) == sorted(name for name in asked for _ in range(clients)),
            words if present else f"no agent of {clients} is blocked from a server",
            f"agents kept from servers: {measured}",
            {"agents": clients, "cut": len(cut)},
        )

    async def revert(self, undo: Undo) -> None:
        for host in self._clients(undo):
            await host.use(PacketFilter).clear_packet_rules(table_of(undo["fault_id"]))

    def _clients(self, undo: Undo) -> list[Host]:
        return [self.hosts.host(name) for name in undo["clients"]]
