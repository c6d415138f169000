"""Leadership: transfer it, keep a server from it, or pin it to a server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import StringConstraints

from hashidrill.abc import Claim, Evidence, Host, Observer, Place, Target, Trouble, Undo
from hashidrill.capabilities import AgentApi, NetworkCanary, PacketFilter
from hashidrill.claims import ANSWERS, EVERYWHERE, HOST, needs, takes
from hashidrill.errors import FaultError
from hashidrill.experiment.model import NAME_PATTERN
from hashidrill.experiment.strict import Strict
from hashidrill.faults.base import NoParams, P, peers_of, table_of
from hashidrill.services.consul import api
from hashidrill.services.consul.faults import rpc
from hashidrill.services.consul.faults.declared import (
    ELECTIONS,
    LEADERSHIP,
    OfServers,
    consul_of,
    is_before,
    needs_majority,
    on_one_host,
)

TRANSFER_SINCE = (1, 15)
"""The first version of Consul that can be asked to."""
_TRANSFERRED_WITHIN_S = 20.0


class _LeaderFault(OfServers[P]):
    """`undo["servers"]` are all of them: rules may have been put on any."""

    def uses(self, place: Place) -> Sequence[Claim]:
        leads = takes(LEADERSHIP, "both are about who leads", where=EVERYWHERE, local=False)
        return (needs(HOST), leads, *self._leaderless(place))

    def _leaderless(self, place: Place) -> Iterable[Claim]:
        """Nobody might lead while the leader is deposed, with one server less."""
        consul = consul_of(place)
        if consul is not None and is_before(TRANSFER_SINCE, consul):
            since = ".".join(map(str, TRANSFER_SINCE))
            deposed = f"before Consul {since} a leader is deposed by cutting it off"
            away = f"with one of {consul.servers} servers away the others would be no majority"
            yield from needs_majority(place, f"{deposed}, and {away}", others=True)

    def troubles(self, place: Place) -> Iterable[Trouble]:
        yield from super().troubles(place)
        yield from on_one_host(self.kind, place)
        if len(place.servers) == 1:
            yield ("on",), f"{self.kind} needs another server that can lead (datacenter.consul.servers is 1)"

    def plan_more(self, target: Target) -> dict[str, Any]:
        others = [peer.name for peer in peers_of(self.hosts, target, "servers")]
        return {"servers": sorted([target.host, *others])}

    async def prior(self, target: Target) -> Mapping[str, Any]:
        """Raises FaultError for a host that is no voter, for a single one, and when nobody leads."""
        leader = await api.leader_soon(self.hosts)
        voters = await api.voters_with(self.hosts, self.hosts.host(target.host))
        if len(voters) < 2:
            raise FaultError(f"{target.host} is the only voter: nobody else can lead")
        term = int((await api.raft_stats(self.hosts.host(leader)))["term"])
        return {"leader": leader, "term": term, "voters": voters}

    def _others(self, undo: Undo, but: Sequence[str]) -> list[Host]:
        return [self.hosts.host(name) for name in undo["servers"] if name not in but]

    async def _cut_votes(self, undo: Undo, of: Sequence[Host]) -> None:
        """None of these servers can be elected from now on."""
        for host in of:
            others = self._others(undo, [host.name])
            rules = [rpc.cut_votes([other.address for other in others])]
            await host.use(PacketFilter).set_packet_rules(table_of(undo["fault_id"]), rules)

    async def _transfer(self, undo: Undo, leader: Host, to: str | None) -> str:
        """The new leader. Raises FaultError, or WaitTimeoutError when nobody else is elected in time."""
        if await api.version_of(leader) < TRANSFER_SINCE:
            return await self._depose(undo, leader, to)
        params = {} if to is None else {"id": undo["prior"]["voters"][to]}
        path = "/v1/operator/raft/transfer-leader"
        answer = await leader.use(AgentApi).api("POST", path, params=params, timeout_s=_TRANSFERRED_WITHIN_S)
        if answer.status != 200 and to is None:  # a sick leader may be too slow to hand over
            await api.check_quorum_without(self.hosts, leader)
            return await self._depose(undo, leader, to)
        if answer.status != 200:
            raise FaultError(f"{leader.name}: the leadership was not transferred: {api.said(answer)}")
        return await self._wait_for(undo, leader, to)

    async def _depose(self, undo: Undo, leader: Host, to: str | None) -> str:
        """Older versions have no way to ask: the leader is cut off until another leads.

        If `to` must win, it alone gets the newest entry. The others cannot win without that; their requests go to
        `to`, which refuses them, takes over their term, and asks with the next one. (Unheard, they would vote for
        themselves in each term before it asks in the same: at raft_multiplier 3 nobody led for half a minute.)
        """
        others = self._others(undo, [leader.name])
        table, mute = table_of(undo["fault_id"]), [] if to is None else [host for host in others if host.name != to]
        for host in mute:
            deaf = [other.address for other in self._others(undo, [host.name]) if other.name != to]
            await host.use(PacketFilter).set_packet_rules(table, [rpc.cut_votes(deaf)])
        if mute:
            await leader.use(PacketFilter).set_packet_rules(table, rpc.cut_off([host.address for host in mute]))
            with contextlib.suppress(FaultError):  # a leader that cannot even do this had no newest entry to share
                await leader.use(AgentApi).api("DELETE", f"/v1/kv/hashidrill/nothing/{table}")
        await leader.use(PacketFilter).set_packet_rules(table, rpc.cut_off([host.address for host in others]))
        try:
            return await self._wait_for(undo, leader, to)
        finally:
            for host in [leader, *mute]:
                await host.use(PacketFilter).clear_packet_rules(table)

    async def _wait_for(self, undo: Undo, leader: Host, to: str | None) -> str:
        wanted = [to] if to else [host.name for host in self._others(undo, [leader.name])]
        what = f"{to or f'another server than {leader.name}'} to lead"
        return await api.wait_for_leader(self.hosts, what, wanted)

    async def _tables(self, undo: Undo) -> list[str]:
        """The servers that have rules of this fault."""
        table = table_of(undo["fault_id"])
        return [host.name for host in self._others(undo, []) if table in await host.use(PacketFilter).nft_tables()]

    async def revert(self, undo: Undo) -> None:
        for host in self._others(undo, []):
            await host.use(PacketFilter).clear_packet_rules(table_of(undo["fault_id"]))


class TransferParams(Strict):
    """To whom; without it, Raft chooses."""

    to: Annotated[str, StringConstraints(pattern=NAME_PATTERN)] | None = None


class LeaderTransfer(_LeaderFault[TransferParams]):
    """Moves leadership once: by a transfer, or by isolating the leader where Consul has no transfer."""

    kind: ClassVar[str] = "consul.leader.transfer"
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({AgentApi, PacketFilter})
    observer: ClassVar[Observer] = Observer(
        "the Raft state and term that each server reports of itself",
        "Consul's HTTP API, which also takes the transfer request; not the path that applying waits on",
    )
    once: ClassVar[bool] = True
    Params: ClassVar[type[Strict]] = TransferParams

    def troubles(self, place: Place) -> Iterable[Trouble]:
        yield from super().troubles(place)
        to = self.params.to
        if to is not None and place.servers and (to not in place.servers or place.on == f"host:{to}"):
            others = ", ".join(name for name in place.servers if place.on != f"host:{name}")
            text = f"the leadership of {place.on} cannot be transferred to {to}; the servers are {others}"
            yield ("on",), text

    async def prior(self, target: Target) -> Mapping[str, Any]:
        prior = await super().prior(target)
        if prior["leader"] != target.host:
            raise FaultError(f"{target.host} does not lead, {prior['leader']} does; put it on consul:leader")
        if self.params.to == target.host:
            raise FaultError(f"{target.host} leads already; name another server in `to`, or none")
        if self.params.to is not None and self.params.to not in prior["voters"]:
            known = ", ".join(sorted(prior["voters"]))
            raise FaultError(f"{self.params.to} is no voter; the voters are {known}")
        host = self.hosts.host(target.host)
        if await api.version_of(host) < TRANSFER_SINCE:  # it is cut off until the others have elected another one
            await api.check_quorum_without(self.hosts, host)
        return prior

    async def apply(self, undo: Undo) -> None:
        await self._transfer(undo, self._host(undo), self.params.to)

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        """In force: another leads, in a later term, by what each server says of itself. Gone: somebody does, and nobody
        is cut off.
        """
        prior = undo["prior"]
        leader, term = await api.leader_of_terms(self.hosts)
        measured = f"{leader or 'nobody'} leads in term {term}"
        if present:
            right = leader == self.params.to if self.params.to else leader not in (None, prior["leader"])
            asked = f"{self.params.to or 'another server'} leads, after {prior['leader']} in term {prior['term']}"
            return Evidence(right and term > prior["term"], asked, measured, {"term": term})
        tables = await self._tables(undo)
        measured += f"; rules on {', '.join(tables) or 'no server'}"
        return Evidence(leader is not None and not tables, "somebody leads, and no rules are left", measured)


class _Electable(_LeaderFault[NoParams]):
    """Some servers cannot be elected as long as the fault is in force."""

    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({AgentApi, NetworkCanary, PacketFilter})

    def uses(self, place: Place) -> Sequence[Claim]:
        return (*super().uses(place), needs(ELECTIONS, where=EVERYWHERE, local=False))

    def muted(self, undo: Undo) -> list[Host]:
        raise NotImplementedError

    def leads_rightly(self, undo: Undo, leader: str) -> bool:
        raise NotImplementedError

    async def prior(self, target: Target) -> Mapping[str, Any]:
        host = self.hosts.host(target.host)
        await rpc.check_readable(host)
        await api.check_quorum_without(self.hosts, host)
        return await super().prior(target)

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        """Who says that it leads; and whether a connection that begins like Raft's passes between each two servers."""
        leader, _ = await api.leader_of_terms(self.hosts)
        servers = self._others(undo, [])
        cut = [host.name for host in servers if await rpc.is_cut(host, self._others(undo, [host.name])[0])]
        words = f"{leader or 'nobody'} leads, Raft's connections of {', '.join(cut) or 'no server'} are cut"
        if not present:
            tables = await self._tables(undo)
            left = f"; rules on {', '.join(tables)}" if tables else ""
            return Evidence(
                leader is not None and not cut and not tables, "somebody leads, and every server can be elected",
                words + left,
            )  # fmt: skip
        muted = [host.name for host in self.muted(undo)]
        right = leader is not None and self.leads_rightly(undo, leader)
        return Evidence(right and cut == muted, self.asked(undo), words, {"leader": leader or ""})

    def asked(self, undo: Undo) -> str:
        raise NotImplementedError


class LeaderAvoid(_Electable):
    """Keeps the server from being elected: it follows and votes, but its own vote requests are dropped."""

    kind: ClassVar[str] = "consul.leader.avoid"
    observer: ClassVar[Observer] = Observer(
        "the Raft state that each server reports of itself, and connections like Raft's from each server",
        "the rules cover the canary's port as well as 8300: it tries no connection of Raft itself",
    )

    def _leaderless(self, place: Place) -> Iterable[Claim]:
        away = f"with one of {len(place.servers)} servers away and one that cannot be elected"
        return needs_majority(place, f"{away}, nobody may be left to lead", others=True)

    def muted(self, undo: Undo) -> list[Host]:
        return [self._host(undo)]

    def leads_rightly(self, undo: Undo, leader: str) -> bool:
        return leader != str(undo["host"])

    def asked(self, undo: Undo) -> str:
        return f"another server than {undo['host']} leads, and it cannot be elected"

    async def apply(self, undo: Undo) -> None:
        host = self._host(undo)
        if await self.hosts.leader() == host.name:
            await self._transfer(undo, host, None)
        await self._cut_votes(undo, [host])
        await self._wait_for(undo, host, None)


class LeaderPin(_Electable):
    """Pins leadership: moves it to this server, and if an election happens anyway, this server wins it."""

    kind: ClassVar[str] = "consul.leader.pin"
    observer: ClassVar[Observer] = Observer(
        "the Raft state that each server reports of itself, and connections like Raft's from each server",
        "the rules cover the canary's port as well as 8300: it tries no connection of Raft itself",
    )

    def uses(self, place: Place) -> Sequence[Claim]:
        alone = "the only server that can be elected may be away, and nobody would lead"
        return (needs(ANSWERS, alone), *super().uses(place))

    def muted(self, undo: Undo) -> list[Host]:
        return self._others(undo, [undo["host"]])

    def leads_rightly(self, undo: Undo, leader: str) -> bool:
        return leader == str(undo["host"])

    def asked(self, undo: Undo) -> str:
        return f"{undo['host']} leads, and no other can be elected"

    async def apply(self, undo: Undo) -> None:
        leader = await self.hosts.leader()
        if leader is None:
            raise FaultError("nobody leads just now")
        if leader != undo["host"]:
            await self._transfer(undo, self.hosts.host(leader), undo["host"])
        await self._cut_votes(undo, self.muted(undo))
        await api.wait_for_leader(self.hosts, f"{undo['host']} to lead", [undo["host"]])


KINDS = (LeaderTransfer, LeaderAvoid, LeaderPin)
