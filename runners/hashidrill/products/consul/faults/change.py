"""Changes an agent's configuration file and applies it: by a reload, or by restarting one agent after the other.

A restart stops the agent, writes the file, then starts the agent. So, wherever it is interrupted, a running agent with
the original file on disk has never read another one.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import anyio

from hashidrill.core.errors import FaultError
from hashidrill.core.protocols.abc import Host, Hosts
from hashidrill.core.protocols.capabilities import AgentApi, AgentFiles, AgentSettings, ProcessControl
from hashidrill.products.consul import api

By = Literal["reload", "restart"]
_RELOADED_WITHIN_S = 20.0
TURN = "consul.config"
"""The name of the turn in which agents on several hosts restart, so that no two servers are down at once."""
_CHECK = ("validate",)
"""`consul validate FILE...` (1.0 and later)."""


async def configured(host: Host) -> dict[str, Any]:
    """What a fault changes: the agent's configuration file, or a file of ours beside those of somebody else."""
    if host.can(AgentFiles):
        return await host.use(AgentFiles).agent_config(api.AGENT)
    return await host.use(AgentSettings).agent_settings(api.AGENT)


async def validate(hosts: Hosts, config: Mapping[str, Any]) -> None:
    """Raises FaultError with Consul's own message for a configuration with which an agent would not start.

    Without a consul binary it checks nothing; then the agent itself refuses the configuration.
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
    """Raises FaultError with Consul's own message."""
    answer = await host.use(AgentApi).api("PUT", "/v1/agent/reload", timeout_s=_RELOADED_WITHIN_S, agent=api.AGENT)
    if answer.status != 200:
        raise FaultError(f"{host.name}: Consul refused the reload: {api.said(answer)}")


async def change(hosts: Hosts, host: Host, config: Mapping[str, Any], by: By) -> None:
    """Makes the agent run with that configuration. Raises FaultError instead of losing the majority."""
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
    """Makes the agent run with its former configuration; an agent that never had another is not restarted."""
    if not host.can(AgentFiles):
        await _taken_away(hosts, host)
        return
    if by == "reload" and await api.has_agent(host):
        if await host.use(AgentFiles).agent_config(api.AGENT) != config:
            await host.use(AgentFiles).set_agent_config(api.AGENT, config)
        await reload(host)  # also if an earlier try put the file back: the agent may not have read it yet
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
    """The host itself restarts the agent, and restarts it again when nobody asks for the fault any more."""
    async with hosts.turn(TURN):
        if by == "restart":
            await api.check_quorum_without(hosts, host)
        await host.use(AgentSettings).set_agent_settings(api.AGENT, config, restart=by == "restart", check=_CHECK)
        await api.wait_in_step(hosts, host)


async def _taken_away(hosts: Hosts, host: Host) -> None:
    async with hosts.turn(TURN):
        await host.use(AgentSettings).clear_agent_settings(api.AGENT)
        await api.wait_in_step(hosts, host)
