"""Changes configuration keys of a Nomad agent, server or client, by a restart; another restart restores them."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field, field_validator

from hashidrill.core.errors import FaultError
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.faults.base import BaseFault, Cases
from hashidrill.core.protocols.abc import Claim, Evidence, Host, Observer, Place, Target, Undo
from hashidrill.core.protocols.capabilities import AgentApi, AgentFiles, ProcessControl, Processes
from hashidrill.core.protocols.claims import AGENT, ANSWERS, HOST, needs, takes
from hashidrill.core.protocols.rights import Right
from hashidrill.core.util import nested
from hashidrill.core.util.nested import merge
from hashidrill.core.util.wait import wait_until
from hashidrill.products.nomad import api, rights, settings

_TURN = "nomad.config"
"""The turn in which agents restart one after the other, so that no two servers are down at once."""
_BACK_WITHIN_S = 60.0
_ONE_AGENT = "they may target the same host, and one would stop the agent that the other needs, or undo its change"


class ConfigParams(Strict):
    """Which configuration keys to set."""

    set_: dict[str, Any] = Field(alias="set", min_length=1)
    """Keys and values as in Nomad's configuration file: `{server: {heartbeat_grace: 10s}}`."""

    @field_validator("set_")
    @classmethod
    def _can_be_set(cls, value: dict[str, Any]) -> dict[str, Any]:
        if fixed := settings.fixed(value):
            raise ValueError(f"{fixed[0]} cannot be changed, because the datacenter depends on it")
        for path, leaf in nested.leaves(value):
            if leaf is None or leaf == {}:
                raise ValueError(f"{nested.dotted(path)} has no value; write one")
        return value


class NomadConfig(BaseFault[ConfigParams]):
    """Changes agent configuration: restarts one agent after the other; a client's tasks go on meanwhile.

    Limits: keys on which the datacenter depends (`data_dir`, `server.bootstrap_expect`, addresses, ports) are refused.
    A leader that restarts loses its leadership.
    """

    kind: ClassVar[str] = "nomad.config"
    Params: ClassVar[type[Strict]] = ConfigParams
    at_a_time: ClassVar[int | None] = 1
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({AgentApi, AgentFiles, ProcessControl, Processes})
    observer: ClassVar[Observer] = Observer(
        "the configuration that the agent shows, and its process",
        "the injector reads the file back; for keys that the agent does not show, only a new process is proof",
    )
    cases: ClassVar[Cases] = Cases(on=(("nomad:leader", {"set": {"server": {"heartbeat_grace": "4s"}}}),))

    def rights(self) -> Sequence[Right]:
        return rights.READS

    @property
    def observed_within_s(self) -> float:
        return _BACK_WITHIN_S

    def uses(self, place: Place) -> Sequence[Claim]:
        claims = [needs(HOST), takes(self.kind), takes(AGENT, _ONE_AGENT)]
        servers = frozenset(place.having("nomad", "server"))
        if place.hosts & servers and len(servers) > 1:
            why = f"with one of {len(servers)} servers of Nomad away and another one restarting, no server may lead"
            own = place.hosts if len(place.hosts) == 1 else frozenset()
            claims.append(needs(ANSWERS, why, where=servers - own, local=False))
        return claims

    async def prior(self, target: Target) -> Mapping[str, Any]:
        """Raises FaultError if the agent already has these settings, or if no server could lead without this one."""
        host = self.hosts.host(target.host)
        config = await host.use(AgentFiles).agent_config(api.AGENT)
        if merge(config, self.params.set_) == config:
            raise FaultError(f"{host.name}: its configuration file sets this already: the fault would change nothing")
        await self._check_majority(host)
        return {"config": config, "shown": await self._shown(host)}

    async def _check_majority(self, host: Host) -> None:
        servers = api.servers_of(self.hosts)
        if host.roles[api.AGENT] != "server" or len(servers) == 1:
            return
        voters = await api.raft_voters(self.hosts)
        answering = [one.name for one in servers if one is not host and await self._answers(one)]
        if 2 * len(answering) <= len(voters):
            raise FaultError(
                f"{host.name} is not restarted: of {len(voters)} voters only {', '.join(answering) or 'none'} would "
                f"be left, which is not a majority"
            )

    async def _answers(self, host: Host) -> bool:
        return await host.use(Processes).agent_answers(api.AGENT, 2.0)

    async def _shown(self, host: Host) -> dict[str, Any]:
        answer = await api.call(host, "GET", "/v1/agent/self")
        if answer.status != 200:
            raise FaultError(f"{host.name} does not show its configuration: {api.said(answer)}")
        about = answer.json()["config"]
        return {nested.dotted(path): settings.shown(about, path) for path, _ in nested.leaves(self.params.set_)}

    async def apply(self, undo: Undo) -> None:
        await self._restarted(self._host(undo), merge(undo["prior"]["config"], self.params.set_))

    async def _restarted(self, host: Host, config: Mapping[str, Any]) -> None:
        """Stops, writes, starts: so an agent that runs while the former file is on disk has read only that file."""
        async with self.hosts.turn(_TURN):
            await self._check_majority(host)
            await host.use(ProcessControl).stop_agent(api.AGENT)
            await host.use(AgentFiles).set_agent_config(api.AGENT, config)
            await host.use(ProcessControl).start_agent(api.AGENT)
            await self._wait_in_step(host)

    async def _wait_in_step(self, host: Host) -> None:
        async def in_step() -> tuple[bool | None, str]:
            if await host.use(Processes).agent_process(api.AGENT) is None:
                raise FaultError(f"{host.name}: nomad ended after its restart; its log says why")
            try:
                if host.roles[api.AGENT] == "client":
                    status = str((await api.node_named(self.hosts, host.name))["Status"])
                    return (True if status == "ready" and await self._answers(host) else None), f"the node is {status}"
                raft = (await api.call(host, "GET", "/v1/agent/self", timeout_s=2.0)).json()["stats"]["raft"]
                led = (await api.call(host, "GET", "/v1/status/leader", params={"stale": ""}, timeout_s=2.0)).json()
            except (FaultError, KeyError, ValueError, TypeError) as error:
                return None, str(error)
            fine = raft["state"] in ("Leader", "Follower") and bool(led)
            return (True if fine else None), f"{raft['state']}, {led or 'no server'} leads"

        await wait_until(f"nomad on {host.name} to catch up", in_step, within_s=_BACK_WITHIN_S, gap_s=0.2)

    def _asked(self) -> dict[str, Any]:
        return {nested.dotted(path): value for path, value in nested.leaves(self.params.set_)}

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        host, prior = self._host(undo), undo["prior"]
        config = await host.use(AgentFiles).agent_config(api.AGENT)
        process = await host.use(Processes).agent_process(api.AGENT)
        shown = await self._shown(host)
        seen = [f"{key} {'not shown' if value is None else value}" for key, value in shown.items()]
        if not present:
            before = ", ".join(f"{key} {'not shown' if one is None else one}" for key, one in prior["shown"].items())
            words = ["its file as before" if config == prior["config"] else "its file differs", *seen]
            return Evidence(
                config == prior["config"] and shown == prior["shown"], f"as before: {before}", ", ".join(words)
            )
        in_file = nested.holds(config, self.params.set_)
        new = process is not None and process.reference != undo["reference"]
        lying = [key for key, asked in self._asked().items() if settings.agrees(asked, shown[key]) is False]
        words = ["in its file" if in_file else "not in its file", "a new process" if new else "the same process", *seen]
        asked = ", ".join(f"{key} {value}" for key, value in self._asked().items())
        return Evidence(
            in_file and new and not lying, asked, ", ".join(words), {key: str(value) for key, value in shown.items()}
        )

    async def revert(self, undo: Undo) -> None:
        prior, host = undo.get("prior", {}), self._host(undo)
        if "config" not in prior:
            return
        changed = await host.use(AgentFiles).agent_config(api.AGENT) != prior["config"]
        if changed or await host.use(Processes).agent_process(api.AGENT) is None:
            await self._restarted(host, prior["config"])
