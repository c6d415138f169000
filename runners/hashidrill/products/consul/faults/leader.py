"""Faults of leadership: transfer it, keep a server from it, or pin it to a server."""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import StringConstraints

from hashidrill.core.errors import FaultError
from hashidrill.core.experiment.model import NAME_PATTERN
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.faults.base import SERVERS, Cases, NoParams, P, peers_of, table_of
from hashidrill.core.protocols.abc import Claim, Evidence, Host, Observer, Place, Target, Trouble, Undo
from hashidrill.core.protocols.capabilities import AgentApi, NetworkCanary, PacketFilter
from hashidrill.core.protocols.claims import ANSWERS, EVERYWHERE, HOST, needs, takes
from hashidrill.core.protocols.rights import Right
from hashidrill.products.consul import api, rights
from hashidrill.products.consul.faults import rpc
from hashidrill.products.consul.faults.declared import (
    ELECTIONS,
    LEADERSHIP,
    OfServers,
    consul_of,
    is_before,
    needs_majority,
    on_one_host,
    servers_in,
)

TRANSFER_SINCE = (1, 15)
"""The first version of Consul whose API can transfer leadership."""
_TRANSFERRED_WITHIN_S = 20.0


class _LeaderFault(OfServers[P]):
    """Base of leadership faults. `undo["servers"]` has all servers: any of them may have rules of this fault."""

    def uses(self, place: Place) -> Sequence[Claim]:
        leads = takes(LEADERSHIP, "both decide who leads", where=EVERYWHERE, local=False)
        return (needs(HOST), leads, *self._leaderless(place))

    def _leaderless(self, place: Place) -> Iterable[Claim]:
        """Claims every server, because without one of them there may be no leader while the leader is being deposed."""
        consul = consul_of(place)
        if consul is not None and is_before(TRANSFER_SINCE, consul):
            since = ".".join(map(str, TRANSFER_SINCE))
            deposed = f"before Consul {since} only cutting it off deposes a leader"
            away = f"with one of {consul.servers} servers away the others would not be a majority"
            yield from needs_majority(place, f"{deposed}, and {away}", others=True)

    def troubles(self, place: Place) -> Iterable[Trouble]:
        yield from super().troubles(place)
        yield from on_one_host(self.kind, place)
        if len(servers_in(place)) == 1:
            yield ("on",), f"{self.kind} needs another server that can lead (datacenter.consul.servers is 1)"

    def rights(self) -> Sequence[Right]:
        return (*rights.READS, rights.right("operator", "", "write"), rights.keys("hashidrill/nothing/"))

    def plan_more(self, target: Target) -> dict[str, Any]:
        others = [peer.name for peer in peers_of(self.hosts, target, "servers")]
        return {"servers": sorted([target.host, *others])}

    async def prior(self, target: Target) -> Mapping[str, Any]:
        leader = await api.leader_soon(self.hosts)
        voters = await api.voters_with(self.hosts, self.hosts.host(target.host))
        if len(voters) < 2:
            raise FaultError(f"{target.host} is the only voter: no other server can lead")
        term = int((await api.raft_stats(self.hosts.host(leader)))["term"])
        return {"leader": leader, "term": term, "voters": voters}

    def _others(self, undo: Undo, but: Sequence[str]) -> list[Host]:
        return [self.hosts.host(name) for name in undo["servers"] if name not in but]

    async def _cut_votes(self, undo: Undo, of: Sequence[Host]) -> None:
        for host in of:
            others = self._others(undo, [host.name])
            rules = [rpc.cut_votes([other.address for other in others])]
            await host.use(PacketFilter).set_packet_rules(table_of(undo["fault_id"]), rules)

    async def _transfer(self, undo: Undo, leader: Host, to: str | None) -> str:
        if await api.version_of(leader) < TRANSFER_SINCE:
            return await self._depose(undo, leader, to)
        params = {} if to is None else {"id": undo["prior"]["voters"][to]}
        path = "/v1/operator/raft/transfer-leader"
        answer = await leader.use(AgentApi).api(
            "POST", path, params=params, timeout_s=_TRANSFERRED_WITHIN_S, agent=api.AGENT
        )
        # a sick leader may be too slow to transfer its leadership
        if answer.status != 200 and to is None and leader.can(PacketFilter):
            await api.check_quorum_without(self.hosts, leader)
            return await self._depose(undo, leader, to)
        if answer.status != 200:
            raise FaultError(f"{leader.name}: Consul did not transfer leadership: {api.said(answer)}")
        return await self._wait_for(undo, leader, to)

    async def _depose(self, undo: Undo, leader: Host, to: str | None) -> str:
        """For versions without leadership transfer: cuts the leader off until another server leads.

        If `to` must win, only `to` gets the newest log entry; the others cannot win without it. Their vote requests
        still reach `to`, which refuses them, adopts their term, and asks for votes in the next one. (If they were cut,
        the others would vote for themselves in each term before `to` asks: at raft_multiplier 3 no one led for 30 s.)
        """
        others = self._others(undo, [leader.name])
        table, mute = table_of(undo["fault_id"]), [] if to is None else [host for host in others if host.name != to]
        for host in mute:
            deaf = [other.address for other in self._others(undo, [host.name]) if other.name != to]
            await host.use(PacketFilter).set_packet_rules(table, [rpc.cut_votes(deaf)])
        if mute:
            await leader.use(PacketFilter).set_packet_rules(table, rpc.cut_off([host.address for host in mute]))
            with contextlib.suppress(FaultError):  # if this fails, there is no newer entry to share
                await leader.use(AgentApi).api("DELETE", f"/v1/kv/hashidrill/nothing/{table}", agent=api.AGENT)
        await leader.use(PacketFilter).set_packet_rules(table, rpc.cut_off([host.address for host in others]))
        try:
            return await self._wait_for(undo, leader, to)
        finally:
            for host in [leader, *mute]:
                await host.use(PacketFilter).clear_packet_rules(table)

    async def _wait_for(self, undo: Undo, leader: Host, to: str | None) -> str:
        wanted = [to] if to else [host.name for host in self._others(undo, [leader.name])]
        what = f"{to or f'a server other than {leader.name}'} to lead"
        return await api.wait_for_leader(self.hosts, what, wanted)

    async def _tables(self, undo: Undo) -> list[str]:
        table = table_of(undo["fault_id"])
        return [host.name for host in self._filtered(undo) if table in await host.use(PacketFilter).packet_tables()]

    def _filtered(self, undo: Undo) -> list[Host]:
        """The servers that may have packet rules of this fault; Consul's own transfer needs no such rules."""
        return [host for host in self._others(undo, []) if host.can(PacketFilter)]

    async def revert(self, undo: Undo) -> None:
        for host in self._filtered(undo):
            await host.use(PacketFilter).clear_packet_rules(table_of(undo["fault_id"]))


class TransferParams(Strict):
    """The new leader; by default, Raft chooses."""

    to: Annotated[str, StringConstraints(pattern=NAME_PATTERN)] | None = None
    """A server's name, like consul-2; without it, Raft chooses."""


class LeaderTransfer(_LeaderFault[TransferParams]):
    """Moves leadership once: by a transfer or, in versions of Consul without transfer, by isolating the leader.

    Limits: an error if the server does not lead. Before 1.15 the others must be a majority, and the move takes as long
    as one election; with `to`, which keeps all other servers from winning, it takes as long as several elections.
    """

    kind: ClassVar[str] = "consul.leader.transfer"
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({AgentApi})
    observer: ClassVar[Observer] = Observer(
        "the Raft state and term that each server reports for itself",
        "Consul's HTTP API",
    )
    once: ClassVar[bool] = True
    Params: ClassVar[type[Strict]] = TransferParams
    cases: ClassVar[Cases] = Cases(
        each=({}, {"to": "consul-3"}),
        on=(("consul:leader", {}), ("consul:leader", {"to": "?"})),
        momentary=True,
        overlaps=((["consul:leader"], {}),),
    )

    def troubles(self, place: Place) -> Iterable[Trouble]:
        yield from super().troubles(place)
        to = self.params.to
        servers = servers_in(place)
        if to is not None and servers and (to not in servers or place.on == f"host:{to}"):
            others = ", ".join(name for name in servers if place.on != f"host:{name}")
            text = f"{place.on} cannot transfer leadership to {to}; possible are {others}"
            yield ("on",), text

    async def prior(self, target: Target) -> Mapping[str, Any]:
        prior = await super().prior(target)
        if prior["leader"] != target.host:
            raise FaultError(f"{target.host} does not lead, but {prior['leader']} does; use on: consul:leader")
        if self.params.to == target.host:
            raise FaultError(f"{target.host} already leads; name another server in `to`, or leave out `to`")
        if self.params.to is not None and self.params.to not in prior["voters"]:
            known = ", ".join(sorted(prior["voters"]))
            raise FaultError(f"{self.params.to} is not a voter; the voters are {known}")
        host = self.hosts.host(target.host)
        if await api.version_of(host) < TRANSFER_SINCE:  # it will be cut off until the others elect another leader
            host.use(PacketFilter)
            await api.check_quorum_without(self.hosts, host)
        return prior

    async def apply(self, undo: Undo) -> None:
        await self._transfer(undo, self._host(undo), self.params.to)

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        """In force: by each server's state, another leads in a later term. Gone: one leads, and none is cut off."""
        prior = undo["prior"]
        leader, term = await api.leader_of_terms(self.hosts)
        measured = f"{leader or 'no server'} leads in term {term}"
        if present:
            right = leader == self.params.to if self.params.to else leader not in (None, prior["leader"])
            asked = f"{self.params.to or 'another server'} leads, after {prior['leader']} in term {prior['term']}"
            return Evidence(right and term > prior["term"], asked, measured, {"term": term})
        tables = await self._tables(undo)
        measured += f"; rules on {', '.join(tables) or 'no server'}"
        return Evidence(leader is not None and not tables, "a server leads, and no rules are left", measured)


class _Electable(_LeaderFault[NoParams]):
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
        """Checks which server says that it leads, and that connections that begin like Raft's pass between servers."""
        leader, _ = await api.leader_of_terms(self.hosts)
        servers = self._others(undo, [])
        cut = [host.name for host in servers if await rpc.is_cut(host, self._others(undo, [host.name])[0])]
        words = f"{leader or 'no server'} leads, Raft's connections of {', '.join(cut) or 'no server'} are cut"
        if not present:
            tables = await self._tables(undo)
            left = f"; rules on {', '.join(tables)}" if tables else ""
            return Evidence(
                leader is not None and not cut and not tables,
                "a server leads, and every server can be elected",
                words + left,
            )
        muted = [host.name for host in self.muted(undo)]
        right = leader is not None and self.leads_rightly(undo, leader)
        return Evidence(right and cut == muted, self.asked(undo), words, {"leader": leader or ""})

    def asked(self, undo: Undo) -> str:
        raise NotImplementedError


class LeaderAvoid(_Electable):
    """Keeps the server from being elected: it follows and votes, but its own vote requests are dropped.

    Limits: RPC must not be encrypted. With three servers, both others must be up: if one is away, the other can win
    only with the avoided server's vote, and only if its log is not behind. A server without pre-votes (1.10.3) that
    cannot win raises the term, and elections take longer. `performance.raft_multiplier: 10` is not a substitute: a
    server with this setting won five of ten elections on 1.22.2; with this fault it won none.
    """

    kind: ClassVar[str] = "consul.leader.avoid"
    observer: ClassVar[Observer] = Observer(
        "the Raft state that each server reports for itself, and connections from it that begin like Raft's",
        "the rules also cover the canary's port, not only 8300",
    )
    cases: ClassVar[Cases] = Cases(
        on=(("consul:leader", {}), ("consul:one-follower", {})), overlaps=(([*SERVERS, "consul:leader"], {}),)
    )

    def _leaderless(self, place: Place) -> Iterable[Claim]:
        away = f"with one of {len(servers_in(place))} servers away and another one unelectable"
        return needs_majority(place, f"{away}, there may be no server that can lead", others=True)

    def muted(self, undo: Undo) -> list[Host]:
        return [self._host(undo)]

    def leads_rightly(self, undo: Undo, leader: str) -> bool:
        return leader != str(undo["host"])

    def asked(self, undo: Undo) -> str:
        return f"{undo['host']} cannot be elected, and another server leads"

    async def apply(self, undo: Undo) -> None:
        host = self._host(undo)
        if await api.leader_of(self.hosts) == host.name:
            await self._transfer(undo, host, None)
        await self._cut_votes(undo, [host])
        await self._wait_for(undo, host, None)


class LeaderPin(_Electable):
    """Pins leadership: moves it to this server, and if an election happens anyway, this server wins it."""

    kind: ClassVar[str] = "consul.leader.pin"
    observer: ClassVar[Observer] = Observer(
        "the Raft state that each server reports for itself, and connections from it that begin like Raft's",
        "the rules also cover the canary's port, not only 8300",
    )
    cases: ClassVar[Cases] = Cases(
        on=(("consul:one-follower", {}), ("consul:leader", {})), overlaps=(([*SERVERS, "consul:one-follower"], {}),)
    )

    def uses(self, place: Place) -> Sequence[Claim]:
        alone = "the only electable server may be away, and no server would lead"
        return (needs(ANSWERS, alone), *super().uses(place))

    def muted(self, undo: Undo) -> list[Host]:
        return self._others(undo, [undo["host"]])

    def leads_rightly(self, undo: Undo, leader: str) -> bool:
        return leader == str(undo["host"])

    def asked(self, undo: Undo) -> str:
        return f"{undo['host']} leads, and no other server can be elected"

    async def apply(self, undo: Undo) -> None:
        leader = await api.leader_of(self.hosts)
        if leader is None:
            raise FaultError("no server leads right now")
        if leader != undo["host"]:
            await self._transfer(undo, self.hosts.host(leader), undo["host"])
        await self._cut_votes(undo, self.muted(undo))
        await api.wait_for_leader(self.hosts, f"{undo['host']} to lead", [undo["host"]])
