"""Changes an agent's configuration file and applies it: by a reload, or by restarting one agent after the other.

A restart ends the agent first, then writes the file, then starts it: so, wherever it is interrupted, an agent that
runs while the file is as before has never read another.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import anyio

from hashidrill.abc import Host, Hosts
from hashidrill.capabilities import AgentApi, AgentFiles, ProcessControl
from hashidrill.errors import FaultError
from hashidrill.services.consul import api

By = Literal["reload", "restart"]
_RELOADED_WITHIN_S = 20.0
TURN = "consul.config"
"""Restarts of agents on several hosts take turns by this name, so that no two servers are down at once."""


async def validate(hosts: Hosts, config: Mapping[str, Any]) -> None:
    """Raises FaultError with Consul's own message for a configuration that an agent would not start with.

    Without a consul binary at hand nothing is said here: then the agent itself refuses it.
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
        raise FaultError(f"Consul refuses the configuration: {why}")


async def reload(host: Host) -> None:
    """Raises FaultError with Consul's own message."""
    answer = await host.use(AgentApi).api("PUT", "/v1/agent/reload", timeout_s=_RELOADED_WITHIN_S)
    if answer.status != 200:
        raise FaultError(f"{host.name}: the reload was refused: {api.said(answer)}")


async def change(hosts: Hosts, host: Host, config: Mapping[str, Any], by: By) -> None:
    """The agent runs with that configuration afterwards. Raises FaultError before a majority would be lost."""
    if by == "reload":
        await host.use(AgentFiles).set_agent_config(api.AGENT, config)
        await reload(host)
        return
    async with hosts.turn(TURN):
        await api.check_quorum_without(hosts, host)
        await _restarted(hosts, host, config)


async def put_back(hosts: Hosts, host: Host, config: Mapping[str, Any], by: By) -> None:
    """The agent runs with its former configuration afterwards; one that never had another is not restarted."""
    if by == "reload" and await api.has_agent(host):
        if await host.use(AgentFiles).agent_config(api.AGENT) != config:
            await host.use(AgentFiles).set_agent_config(api.AGENT, config)
        await reload(host)  # whether the file was put back by us before or not: then the agent has not read it yet
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
