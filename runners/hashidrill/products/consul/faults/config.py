"""Changes an agent's configuration keys and restores them: by a reload if Consul can reload them, else by a restart.

This is also how streaming is switched on and off: `{use_streaming_backend: false, rpc: {enable_streaming: false}}`.
A restart stops the agent, writes the file, then starts the agent. So, wherever it is interrupted, an agent that runs
while the original file is on disk has read only the original file.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import anyio
from pydantic import Field, field_validator, model_validator

from hashidrill.core.errors import FaultError
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.faults.base import SERVERS, BaseFault, Cases
from hashidrill.core.protocols.abc import Claim, Evidence, Host, Hosts, Observer, Place, Requires, Target, Undo
from hashidrill.core.protocols.capabilities import AgentApi, AgentFiles, AgentSettings, ProcessControl, Processes
from hashidrill.core.protocols.claims import AGENT, takes
from hashidrill.core.protocols.rights import Right
from hashidrill.core.util import nested
from hashidrill.core.util.nested import merge
from hashidrill.products.consul import api, rights, settings
from hashidrill.products.consul.faults.declared import AGENT_CONFIG, ONE_AGENT, needs_majority, no_majority, servers_in

By = Literal["reload", "restart"]
_RELOADED_WITHIN_S = 20.0
TURN = "consul.config"
"""The name of the turn in which agents on several hosts restart, so that no two servers are down at once."""
_CHECK = ("validate",)
"""`consul validate FILE...` (1.0 and later)."""


async def configured(host: Host) -> dict[str, Any]:
    """The configuration that a fault changes: the agent's own file, or an additional file on an attached host."""
    if host.can(AgentFiles):
        return await host.use(AgentFiles).agent_config(api.AGENT)
    return await host.use(AgentSettings).agent_settings(api.AGENT)


async def validate(hosts: Hosts, config: Mapping[str, Any]) -> None:
    """Raises FaultError with Consul's own message if an agent would not start with this configuration.

    Without a consul binary nothing is checked here; then the agent itself refuses an invalid configuration.
    """
    try:
        consul = hosts.tool("consul")
    except FaultError:
        return
    with tempfile.TemporaryDirectory(prefix="hashidrill-") as folder:
        file = Path(folder) / "consul.json"
        file.write_text(json.dumps(config))
        result = await anyio.run_process([str(consul), "validate", str(file)], check=False)
    if result.returncode:
        text = (result.stderr + result.stdout).decode(errors="replace").replace(str(file), "the configuration")
        lines = [line.strip(" \t*") for line in text.splitlines() if line.strip(" \t*")]
        why = " ".join(lines).removeprefix("Config validation failed: ")
        raise FaultError(f"Consul rejects the configuration: {why}")


async def reload(host: Host) -> None:
    """Reloads the agent's configuration. Raises FaultError with Consul's own message."""
    answer = await host.use(AgentApi).api("PUT", "/v1/agent/reload", timeout_s=_RELOADED_WITHIN_S, agent=api.AGENT)
    if answer.status != 200:
        raise FaultError(f"{host.name}: Consul refused the reload: {api.said(answer)}")


async def change(hosts: Hosts, host: Host, config: Mapping[str, Any], by: By) -> None:
    """Makes the agent run with that configuration. Raises FaultError if a restart would cost the majority."""
    if not host.can(AgentFiles):
        await _added(hosts, host, config, by)
        return
    if by == "reload":
        await host.use(AgentFiles).set_agent_config(api.AGENT, config)
        await reload(host)
        return
    async with hosts.turn(TURN):
        await api.check_quorum_without(hosts, host)
        await _restarted(hosts, host, config)


async def put_back(hosts: Hosts, host: Host, config: Mapping[str, Any], by: By) -> None:
    """Makes the agent run with its former configuration; an unchanged agent is not restarted."""
    if not host.can(AgentFiles):
        await _taken_away(hosts, host)
        return
    if by == "reload" and await api.has_agent(host):
        if await host.use(AgentFiles).agent_config(api.AGENT) != config:
            await host.use(AgentFiles).set_agent_config(api.AGENT, config)
        await reload(host)  # even if an earlier try put the file back: the agent may not have read it yet
        return
    async with hosts.turn(TURN):
        changed = await host.use(AgentFiles).agent_config(api.AGENT) != config
        if changed or not await api.has_agent(host):
            await _restarted(hosts, host, config)


async def _restarted(hosts: Hosts, host: Host, config: Mapping[str, Any]) -> None:
    await host.use(ProcessControl).stop_agent(api.AGENT)
    await host.use(AgentFiles).set_agent_config(api.AGENT, config)
    await host.use(ProcessControl).start_agent(api.AGENT)
    await api.wait_in_step(hosts, host)


async def _added(hosts: Hosts, host: Host, config: Mapping[str, Any], by: By) -> None:
    """Adds settings; the host itself restarts the agent, and restarts it again if the fault is no longer renewed."""
    async with hosts.turn(TURN):
        if by == "restart":
            await api.check_quorum_without(hosts, host)
        await host.use(AgentSettings).set_agent_settings(api.AGENT, config, restart=by == "restart", check=_CHECK)
        await api.wait_in_step(hosts, host)


async def _taken_away(hosts: Hosts, host: Host) -> None:
    async with hosts.turn(TURN):
        await host.use(AgentSettings).clear_agent_settings(api.AGENT)
        await api.wait_in_step(hosts, host)


_BACKEND_KEY = "use_streaming_backend"
_BACKEND_HEADER = "x-consul-query-backend"
_PATIENT_S = 20.0
"""How long an overloaded agent may take to answer."""
_MARKER = "hashidrill-config"
"""A key of `node_meta`, which agents always show: it proves that an agent has read keys that it does not show."""


class ConfigParams(Strict):
    """Which keys to set, and whether to reload or restart the agent."""

    set_: dict[str, Any] = Field(alias="set", min_length=1)
    """Keys as in Consul's configuration file, merged into the existing ones: `{raft_trailing_logs: 50}`."""
    by: Literal["auto", "reload", "restart"] = "auto"
    """`reload` or `restart`; `auto` reloads if that is enough, and otherwise restarts."""

    @field_validator("set_")
    @classmethod
    def _can_be_set(cls, value: dict[str, Any]) -> dict[str, Any]:
        if fixed := sorted(value.keys() & settings.FIXED):
            raise ValueError(f"{fixed[0]} cannot be changed, because the datacenter depends on it")
        for path, leaf in nested.leaves(value):
            if leaf is None or leaf == {}:
                raise ValueError(f"{nested.dotted(path)} has no value; write one")
        return value

    @model_validator(mode="after")
    def _can_be_reloaded(self) -> ConfigParams:
        if self.by == "reload" and (keys := settings.needs_restart(self.set_)):
            raise ValueError(f"Consul cannot reload {keys[0]}; write by: restart, or leave out `by`")
        return self


class ConsulConfig(BaseFault[ConfigParams]):
    """Changes agent configuration: reloads if Consul can reload the keys, else restarts one agent after the other.

    Limits: `consul validate` checks the configuration first; its complaint becomes the error. With three or more
    servers, the fault restarts a server only if the other live servers are a majority (it first waits up to 20 s for a
    returning server). Reverting restarts in any case. The marker in `node_meta` costs one catalog write.
    """

    kind: ClassVar[str] = "consul.config"
    cases: ClassVar[Cases] = Cases(
        each=(
            {"set": {"raft_snapshot_threshold": 50, "raft_trailing_logs": 60}},
            {"set": {"raft_snapshot_interval": "7s"}, "by": "restart"},
            {"set": {"use_streaming_backend": False, "rpc": {"enable_streaming": False}}},
            {"set": {"telemetry": {"prefix_filter": ["-consul.raft"]}}},
        ),
        on=(
            ("consul:leader", {"set": {"raft_snapshot_threshold": 50, "raft_trailing_logs": 60}}),
            ("consul:one-follower", {"set": {"raft_snapshot_interval": "7s"}, "by": "restart"}),
            ("consul:leader", {"set": {"use_streaming_backend": False, "rpc": {"enable_streaming": False}}}),
            ("host:client-1", {"set": {"use_streaming_backend": False}}),
            ("host:client-1", {"set": {"telemetry": {"prefix_filter": ["-consul.raft"]}, "log_level": "DEBUG"}}),
        ),
        overlaps=(
            (SERVERS, {"set": {"raft_trailing_logs": 60}}),
            {"set": {"telemetry": {"prefix_filter": ["-consul.raft"]}}},
        ),
    )
    at_a_time: ClassVar[int | None] = 1
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({AgentApi, AgentFiles, ProcessControl, Processes})
    instead: ClassVar[frozenset[type[Any]]] = frozenset({AgentApi, AgentSettings, Processes})
    observer: ClassVar[Observer] = Observer(
        "the configuration that the agent shows, its process, and which backend answers its queries",
        "the injector reads the file back; the proof of keys not shown is the fault's own marker in `node_meta`",
    )
    Params: ClassVar[type[Strict]] = ConfigParams
    observed_within_s = 90.0
    """After its restart, a client agent that reopened 4,000 views took over 40 s to show its settings."""

    def requires(self) -> Requires:
        return replace(super().requires(), instead=self.instead)

    def uses(self, place: Place) -> Sequence[Claim]:
        claims = [*super().uses(place), takes(AGENT, ONE_AGENT), takes(AGENT_CONFIG)]
        restarts = self.params.by == "restart" or bool(settings.needs_restart(self.params.set_))
        if restarts and place.hosts & {*servers_in(place)}:
            claims += needs_majority(place, no_majority(place))
        return claims

    def rights(self) -> Sequence[Right]:
        return (*rights.READS, rights.right("agent_prefix", "", "write"), rights.right("service", "consul"))

    async def prior(self, target: Target) -> Mapping[str, Any]:
        host = self.hosts.host(target.host)
        config = await configured(host)
        new = merge(config, self.params.set_)
        if new == config:
            raise FaultError(
                f"{host.name}: its configuration file already sets this, so the fault would change nothing"
            )
        if host.can(AgentFiles):  # otherwise the host checks the configuration together with the existing files
            await validate(self.hosts, new)
        by = await self._by(host)
        if by == "restart":
            await api.check_quorum_without(self.hosts, host)
        return {
            "config": config,
            "by": by,
            "shown": await self._shown(host),
            "backend": await _backend(host) if _BACKEND_KEY in self.params.set_ else None,
        }

    async def _by(self, host: Host) -> By:
        """Raises FaultError if the step asks for a reload and this version of Consul needs a restart."""
        version = await api.version_of(host)
        keys = settings.needs_restart(self.params.set_, version)
        if self.params.by == "reload" and keys:
            shown = ".".join(map(str, version))
            raise FaultError(f"{host.name}: Consul {shown} cannot reload {keys[0]}; write by: restart")
        return "restart" if keys or self.params.by == "restart" else "reload"

    async def _shown(self, host: Host) -> dict[str, Any]:
        return self._shown_by(await api.agent_self(host, timeout_s=_PATIENT_S))

    def _shown_by(self, about: Mapping[str, Any]) -> dict[str, Any]:
        debug = about["DebugConfig"]
        return {nested.dotted(path): settings.shown(debug, path) for path, _ in nested.leaves(self.params.set_)}

    async def apply(self, undo: Undo) -> None:
        host, prior = self._host(undo), undo["prior"]
        new = merge(prior["config"], self.params.set_)
        unseen = [
            key
            for key, (asked, shown) in self._keys(prior["shown"]).items()
            if settings.agrees(key, asked, shown) is None
        ]
        await change(self.hosts, host, self._marked(new, undo) if unseen else new, prior["by"])
        if not unseen and prior["by"] == "reload" and self._differing(await self._shown(host)):
            # before 1.16.2, agents show the values that they started with
            await change(self.hosts, host, self._marked(new, undo), prior["by"])

    @staticmethod
    def _marked(config: Mapping[str, Any], undo: Undo) -> dict[str, Any]:
        return merge(config, {"node_meta": {_MARKER: undo["fault_id"]}})

    def _keys(self, shown: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        asked = {nested.dotted(path): value for path, value in nested.leaves(self.params.set_)}
        return {key: (value, shown[key]) for key, value in asked.items()}

    def _differing(self, shown: Mapping[str, Any]) -> list[str]:
        return [key for key, (asked, seen) in self._keys(shown).items() if not settings.agrees(key, asked, seen)]

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        return await (self._in_force(undo) if present else self._gone(undo))

    async def _in_force(self, undo: Undo) -> Evidence:
        """Whether the file has the values, the agent shows them and, after a restart, the process is a new one."""
        host, prior = self._host(undo), undo["prior"]
        asked = ", ".join(f"{key} {asked}" for key, (asked, _) in self._keys(prior["shown"]).items())
        in_file = nested.holds(await configured(host), self.params.set_)
        process = await host.use(Processes).agent_process(api.AGENT)
        new = process is not None and process.reference != undo["reference"]
        about = await api.agent_self(host, timeout_s=_PATIENT_S)
        shown = self._shown_by(about)
        differing = self._differing(shown)
        marked = about["Meta"].get(_MARKER) == undo["fault_id"]
        restarted = prior["by"] == "reload" or new
        if prior["by"] == "restart":  # a new process has read the file; only keys that are not shown need the marker
            lying = [key for key in differing if settings.agrees(key, *self._keys(shown)[key]) is False]
            marked = marked and not lying
        backend, right = await self._backend_evidence(host)
        words = [
            f"{'in' if in_file else 'not in'} its file",
            "a new process" if new else "the same process",
            *(f"{key} {_seen(value)}" for key, value in shown.items()),
            *(["the marker in its node_meta"] if marked else []),
            *([f"queries are answered by {backend}"] if backend else []),
        ]
        return Evidence(
            in_file and restarted and (not differing or marked) and right,
            f"{asked} (by {prior['by']})",
            ", ".join(words),
            {"by": prior["by"], **{key: str(value) for key, value in shown.items()}},
        )

    async def _backend_evidence(self, host: Host) -> tuple[str, bool]:
        """(the backend that answers queries, whether it is the requested one); empty if the key is not set."""
        asked = self.params.set_.get(_BACKEND_KEY)
        if not isinstance(asked, bool):
            return "", True
        backend = await _backend(host)
        return backend, backend == ("streaming" if asked else "blocking-query")

    async def _gone(self, undo: Undo) -> Evidence:
        host, prior = self._host(undo), undo["prior"]
        restored = await configured(host) == prior["config"]
        about = await api.agent_self(host, timeout_s=_PATIENT_S)
        shown = self._shown_by(about)
        unmarked = about["Meta"].get(_MARKER) != undo["fault_id"]
        backend = None if prior["backend"] is None else await _backend(host)
        words = [
            f"its file {'as before' if restored else 'differs'}",
            *(f"{key} {_seen(value)}" for key, value in shown.items()),
            *([] if unmarked else ["the marker still in its node_meta"]),
            *([f"queries are answered by {backend}"] if backend else []),
        ]
        before = ", ".join(f"{key} {_seen(value)}" for key, value in prior["shown"].items())
        return Evidence(
            restored and shown == prior["shown"] and unmarked and backend == prior["backend"],
            f"as before: {before}",
            ", ".join(words),
        )

    async def revert(self, undo: Undo) -> None:
        prior = undo["prior"]
        await put_back(self.hosts, self._host(undo), prior["config"], prior["by"])


def _seen(value: Any) -> str:
    return "not shown" if value is None else str(value)


async def _backend(host: Host) -> str:
    """`streaming` or `blocking-query`: what serves a blocking query of this agent. Raises FaultError.

    The query is stale, so it needs no leader: another server, even the leader, may be restarting right now.
    """
    path, params = "/v1/health/service/consul", {"index": "1", "wait": "1s", "stale": ""}
    answer = await host.use(AgentApi).api("GET", path, params=params, timeout_s=_PATIENT_S, agent=api.AGENT)
    if answer.status != 200:
        raise FaultError(f"{host.name}: GET {path}: {api.said(answer)}")
    return answer.headers.get(_BACKEND_HEADER, "")
