"""Stops agents gracefully, and replaces servers with new ones."""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import anyio

from hashidrill.core.errors import FaultError
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.faults.base import SERVERS, BaseFault, Cases, NoParams
from hashidrill.core.protocols.abc import Claim, Evidence, Host, Observer, Place, Requires, Target, Trouble, Undo
from hashidrill.core.protocols.capabilities import AgentApi, AgentFiles, ProcessControl, Processes
from hashidrill.core.protocols.claims import AGENT, ANSWERS, EVERYWHERE, HOST, LISTENER, START, needs, spoils, takes
from hashidrill.core.protocols.rights import Right
from hashidrill.core.util.wait import wait_until
from hashidrill.products.consul import api, rights
from hashidrill.products.consul.faults import config as changes
from hashidrill.products.consul.faults.declared import (
    ELECTIONS,
    ONE_AGENT,
    SELECTED,
    OfServers,
    needs_majority,
    no_majority,
    on_one_host,
)

_LEFT_WITHIN_S = 40.0
"""A leaving server waits 5 s for open requests (performance.leave_drain_time), then for Raft to remove it."""
_SEEN_WITHIN_S = 30.0
"""Serf takes some 5 s to declare a silent member failed."""
_REPLACING_S = 120.0
"""How much longer than its `for` a replacement may last: in each direction, one server joins and becomes a voter before
the other server leaves (31 s each way, measured on 2 cores during another run)."""
_SPARE = "the next spare host"
_SEEN_AS = {1: "alive", 2: "leaving", 3: "left", 4: "failed"}


async def leave(host: Host) -> None:
    """Makes the agent leave the datacenter and exit. Raises FaultError if it refuses, WaitTimeoutError if it stays."""

    async def ask() -> None:
        try:
            answer = await host.use(AgentApi).api("PUT", "/v1/agent/leave", timeout_s=_LEFT_WITHIN_S, agent=api.AGENT)
        except FaultError:
            return  # the agent may have exited before it answered; the wait below shows it
        if answer.status != 200:
            raise FaultError(f"{host.name}: its agent did not leave: {api.said(answer)}")

    async def ended() -> tuple[bool | None, str]:
        return (None if await api.has_agent(host) else True), "its agent still runs"

    await ask()
    await wait_until(f"the agent of {host.name} to exit", ended, within_s=_LEFT_WITHIN_S)


async def wipe(host: Host) -> None:
    """Empties the agent's data directory, as on a new machine. The agent must not be running."""
    await anyio.to_thread.run_sync(lambda: shutil.rmtree(host.use(AgentFiles).data / "consul", ignore_errors=True))


class StopParams(Strict):
    """Whether the agent leaves the datacenter first; if not, it gets SIGTERM and does what its configuration says."""

    leave: bool = False
    """True: leave the datacenter first (`PUT /v1/agent/leave`); false: SIGTERM."""


class AgentStop(BaseFault[StopParams]):
    """Stops the agent gracefully; reverting starts it again.

    Limits: on SIGTERM, client agents leave and servers do not, unless `leave_on_terminate` says otherwise. A server
    that left becomes a voter about 12 s after its return, when autopilot considers it stable.
    """

    kind: ClassVar[str] = "consul.agent.stop"
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({AgentApi, ProcessControl, Processes})
    observer: ClassVar[Observer] = Observer(
        "/proc, and another server's view of the members and of Raft's configuration",
        "applying waits for the same view of the members, but does not look at /proc",
    )
    holds_down: ClassVar[bool] = True
    ends_its_agent: ClassVar[bool] = True
    Params: ClassVar[type[Strict]] = StopParams
    cases: ClassVar[Cases] = Cases(
        each=({}, {"leave": True}),
        on=(("consul:one-follower", {}), ("host:client-1", {}), ("consul:leader", {"leave": True})),
        overlaps=({},),
    )

    @property
    def ends_by_its_api(self) -> bool:
        """Whether the agent exits by a request to its API, of which the process manager does not know."""
        return self.params.leave

    def uses(self, place: Place) -> Sequence[Claim]:
        claims = (takes(AGENT, ONE_AGENT), needs(START), spoils(ANSWERS), spoils(LISTENER))
        return (*super().uses(place), *claims)

    def troubles(self, place: Place) -> Iterable[Trouble]:
        return on_one_host(self.kind, place)

    def rights(self) -> Sequence[Right]:
        return (*rights.READS, rights.right("agent_prefix", "", "write"))

    async def prior(self, target: Target) -> Mapping[str, Any]:
        host = self.hosts.host(target.host)
        if not await api.has_agent(host):
            raise FaultError(f"{host.name}: no agent runs there")
        voters = [peer.name for peer in await api.peers(self.hosts) if peer.voter]
        if self.params.leave and voters == [host.name]:
            raise FaultError(f"{host.name} is the only voter; without it the datacenter cannot work")
        return {"voter": host.name in voters}

    async def apply(self, undo: Undo) -> None:
        host = self._host(undo)
        if self.params.leave:
            await leave(host)
        else:
            await host.use(ProcessControl).stop_agent(api.AGENT)

        async def seen() -> tuple[bool | None, str]:
            state = await self._state(undo)
            return (True if self._is_out(state) else None), f"the others see it {_SEEN_AS.get(state, 'not at all')}"

        await wait_until(f"the other servers to notice that {host.name} is gone", seen, within_s=_SEEN_WITHIN_S)

    def _is_out(self, state: int) -> bool:
        """Whether the agent has left, or at least is not alive; by Consul's default, clients also leave on SIGTERM."""
        return state == api.LEFT if self.params.leave else state not in (0, api.ALIVE)

    async def _state(self, undo: Undo) -> int:
        return (await api.member_states(self.hosts, but=undo["host"])).get(undo["host"], 0)

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        host, state = self._host(undo), await self._state(undo)
        process = await host.use(Processes).agent_process(api.AGENT)
        words = f"{'a process' if process else 'no process'}, the others see it {_SEEN_AS.get(state, 'not at all')}"
        if present:
            asked = f"no process, the others see it {'left' if self.params.leave else 'left or failed'}"
            return Evidence(process is None and self._is_out(state), asked, words)
        back = process is not None and state == api.ALIVE
        if not undo["prior"]["voter"]:
            return Evidence(back, "a process, alive to the others", words)
        voter = any(peer.name == host.name and peer.voter for peer in await api.peers(self.hosts))
        words += f", {'a voter' if voter else 'no voter'}"
        return Evidence(back and voter, "a process, alive to the others, a voter", words)

    async def revert(self, undo: Undo) -> None:
        host = self._host(undo)
        await host.use(ProcessControl).start_agent(api.AGENT)
        await api.wait_in_step(self.hosts, host)
        if undo["prior"]["voter"]:
            await api.wait_for_voter(self.hosts, host)


class ServerReplace(OfServers[NoParams]):
    """Replaces the server: a new server joins on a spare host as a voter, then the old one leaves. Revert swaps back.

    Limits: it takes about half a minute each way. The fault gives up after 40 s in which the new server makes no
    progress in catching up, or after 3 min. Loads that use servers directly keep using the old server. Conflicting
    steps start at least 2 min after the fault's `for`, because its end is not known beforehand.
    """

    kind: ClassVar[str] = "consul.server.replace"
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({AgentApi, AgentFiles, ProcessControl, Processes})
    observer: ClassVar[Observer] = Observer(
        "/proc, and a third server's view of Raft's configuration and of the members",
        "applying waits for the same configuration, and uses /proc only to see the old agent exit",
    )
    once: ClassVar[bool] = True
    holds_down: ClassVar[bool] = True
    cases: ClassVar[Cases] = Cases(on=(("consul:leader", {}),), overlaps=((SERVERS, {}),))

    def requires(self) -> Requires:
        return replace(super().requires(), spare_servers=1)

    def uses(self, place: Place) -> Sequence[Claim]:
        gone = "they may target the same host, which the replacement removes"
        spare = "each takes the next free spare host; start them one after the other, on different servers"
        elected = "the new server could win an election, which would break the pinned or avoided leadership"
        same = frozenset({("at", place.begins_s), ("on", place.on)})
        return (
            takes(self.kind),
            spoils(HOST, gone, longer_s=_REPLACING_S),
            spoils(SELECTED, gone, where=frozenset({place.on}), longer_s=_REPLACING_S),
            takes(_SPARE, spare, where=same, longer_s=_REPLACING_S, local=False),
            spoils(ELECTIONS, elected, where=EVERYWHERE, longer_s=_REPLACING_S, local=False),
            *needs_majority(place, no_majority(place), longer_s=_REPLACING_S),
        )

    def troubles(self, place: Place) -> Iterable[Trouble]:
        yield from super().troubles(place)
        yield from on_one_host(self.kind, place)

    def rights(self) -> Sequence[Right]:
        return rights.READS

    async def prior(self, target: Target) -> Mapping[str, Any]:
        """Chooses the step's spare host by the server's place among the voters. Raises FaultError if none is free."""
        host = self.hosts.host(target.host)
        voters = sorted(await api.voters_with(self.hosts, host))
        await api.check_quorum_without(self.hosts, host)
        spares = [one for one in self.hosts.all_hosts() if await self._is_free(one)]
        if not spares:
            raise FaultError(f"no spare host is left to replace {host.name}; let an earlier replacement end first")
        return {"spare": spares[voters.index(host.name) % len(spares)].name}

    async def _is_free(self, host: Host) -> bool:
        """Whether the host has never had a server. A replaced founding server's host is not free: it returns there."""
        if host.roles.get(api.AGENT) != "spare" or await api.has_agent(host):
            return False
        return "bootstrap_expect" not in await host.use(AgentFiles).agent_config(api.AGENT)

    def _spare(self, undo: Undo) -> Host:
        return self.hosts.host(undo["prior"]["spare"])

    async def apply(self, undo: Undo) -> None:
        old, new = self._host(undo), self._spare(undo)
        if await api.has_agent(new):
            raise FaultError(f"another replacement took {new.name}; start replacements one after the other")
        await self._join(new)
        async with self.hosts.turn(changes.TURN):
            await self._leave(old)

    async def _join(self, host: Host) -> None:
        await host.use(ProcessControl).start_agent(api.AGENT)
        host.roles[api.AGENT] = "server"
        await api.wait_in_step(self.hosts, host)
        await api.wait_for_voter(self.hosts, host)

    async def _leave(self, host: Host) -> None:
        """Makes the server leave, unless it has left, and turns its host into a spare host without data."""
        if await api.has_agent(host):
            await leave(host)
        host.roles[api.AGENT] = "spare"
        await wipe(host)

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        old, new = self._host(undo), self._spare(undo)
        here, gone = (new, old) if present else (old, new)
        voters = sorted(peer.name for peer in await api.peers(self.hosts, but=gone.name) if peer.voter)
        state = (await api.member_states(self.hosts, but=gone.name)).get(gone.name, 0)
        ended, leader = not await api.has_agent(gone), await api.leader_of(self.hosts)
        words = (
            f"voters {', '.join(voters)}; {gone.name} {'without' if ended else 'with'} an agent, "
            f"seen {_SEEN_AS.get(state, 'not at all')}; {leader or 'no server'} leads"
        )
        return Evidence(
            here.name in voters and gone.name not in voters and ended and state in (0, api.LEFT) and leader is not None,
            f"{here.name} votes instead of {gone.name}" if present else f"{here.name} votes, {gone.name} is gone",
            words,
        )

    async def revert(self, undo: Undo) -> None:
        old, new = self._host(undo), self._spare(undo)
        if await api.has_agent(new):
            new.roles[api.AGENT] = "server"
        if not await api.has_agent(old):
            old.roles[api.AGENT] = "spare"
            if old.name not in {peer.name for peer in await api.peers(self.hosts, but=old.name)}:
                await wipe(old)  # it has left, so its Raft data belongs to a member that no longer exists
            await self._join(old)
        old.roles[api.AGENT] = "server"
        await api.wait_for_voter(self.hosts, old)
        if await api.has_agent(new) or new.roles.get(api.AGENT) == "server":
            async with self.hosts.turn(changes.TURN):
                await self._leave(new)
