"""Inside of a sandbox: starts a real Vault, says what that took, and checks every fault of Vault. One JSON line a case.

    python real_vault_faults.py VAULT ROOT (raft|consul) [CONSUL]

First each case by `check_fault`, then the disarmed ones: what the fault did is undone behind its back, and its observer
has to say that it is no longer in force.
"""

import sys
import time
from pathlib import Path

import anyio
import psutil

from fault_cases import momentary
from hashidrill.core.experiment.model import DatacenterSpec
from hashidrill.core.util.wait import wait_until
from hashidrill.lab.local.datacenter import LocalDatacenter
from hashidrill.products.consul.model import Consul
from hashidrill.products.vault.model import Vault
from hashidrill.products.vault.operator import VaultOperator
from hashidrill.testing.faults import check_fault
from told_cases import disarmed, fault_of, say, told
from vault_fault_cases import CASES, DISARMED, PARAMS, RAFT_ONLY

_SETTLED_WITHIN_S = 60


async def settled(datacenter):
    """All servers are unsealed, one is active, and Raft's autopilot calls them healthy: what one case did is over.

    A server that has just come back may not be able to take over yet: a step-down then leaves the old one active.
    """

    async def well():
        sealed = [
            host.name
            for host in datacenter.all_hosts()
            if "vault" in host.roles and not (await host.use(VaultOperator).seal_status()).open
        ]
        if sealed:
            return None, f"sealed: {sealed}"
        try:
            [active] = await datacenter.select("vault:active")
        except Exception as error:
            return None, str(error)
        operator = datacenter.hosts[active.host].use(VaultOperator)
        said = await operator.ask("GET", "sys/storage/raft/autopilot/state")
        data = said.data.get("data") or {}
        healthy = data.get("healthy", True)  # with its data in Consul, it has no autopilot
        return (True if healthy else None), f"autopilot: {data}"

    await wait_until("Vault to be well", well, within_s=_SETTLED_WITHIN_S)


async def checked(datacenter, kind, on):
    await settled(datacenter)
    [target, *_] = await datacenter.select(on)
    report = await check_fault(fault_of(datacenter, kind, PARAMS.get(kind)), target, momentary=momentary(kind))
    return {"asked": report.present.asked, "measured": report.present.measured, "gone": report.gone.measured}


async def unseen(datacenter, kind, on, by):
    await settled(datacenter)
    [target, *_] = await datacenter.select(on)
    host = datacenter.hosts[target.host]

    async def disarm(undo):
        if by == "set back":
            await set_back(host, undo)
        else:
            await getattr(host.use(VaultOperator), by)()

    return await disarmed(fault_of(datacenter, kind, PARAMS.get(kind)), target, disarm, within_s=20)


async def waits(host):
    """How often its server began to wait for leadership, of each time that it was unsealed: once, or it may ignore a
    step-down.
    """
    lines = (host.logs / "vault.log").read_text().splitlines()
    times = [0]
    for line in lines:
        if "Vault server started!" in line or "vault is sealed" in line:
            times.append(0)
        times[-1] += "entering standby mode" in line
    return times


async def set_back(host, undo):
    await host.stop_agent("vault")
    await host.set_agent_config("vault", undo["prior"]["config"])
    await host.start_agent("vault")


async def taken_over(datacenter):
    """Kills the active server: how long until another one is active, and until the dead one is unsealed again."""
    await settled(datacenter)
    [target] = await datacenter.select("vault:active")
    host = datacenter.hosts[target.host]
    began = time.monotonic()
    await host.signal(target.reference, 9)

    async def another():
        try:
            [now] = await datacenter.select("vault:active")
        except Exception as error:
            return None, str(error)
        return (now.host if now.host != target.host else None), f"{now.host} is active"

    name = await wait_until("another server to be active", another, within_s=120, gap_s=0.05)
    took = time.monotonic() - began
    await host.start_agent("vault")
    began = time.monotonic()
    await settled(datacenter)
    return {"killed": target.host, "active": name, "took_s": took, "unsealed_again_s": time.monotonic() - began}


async def memory(datacenter):
    """Resident and proportional megabytes of each agent."""
    found = {}
    for host in datacenter.hosts.values():
        for agent in host.roles:
            info = psutil.Process((await host.agent_process(agent)).pid).memory_full_info()
            found[f"{host.name}/{agent}"] = {"rss_mb": info.rss / 1e6, "pss_mb": info.pss / 1e6}
    return found


async def main() -> None:
    vault, root, storage, *consul = sys.argv[1:]
    parts = {"vault": Vault(storage=storage)}
    binaries = {"vault": Path(vault)}
    if consul:
        parts["consul"] = Consul(servers=1, clients=0, config={"performance": {"raft_multiplier": 1}})
        binaries["consul"] = Path(consul[0])
    spec = DatacenterSpec(**parts)
    datacenter = LocalDatacenter(spec, Path(root), binaries, artifacts=Path(root) / "artifacts")
    began = time.monotonic()
    await datacenter.start()
    await datacenter.wait_ready()
    say(ready_s=time.monotonic() - began, told=[])
    say(memory=await memory(datacenter))
    unsealed: list[str] = []
    async with anyio.create_task_group() as beside:
        beside.start_soon(datacenter.keep, unsealed.append)
        await told({"case": "takeover"}, taken_over(datacenter))
        for kind, on in CASES:
            if kind in RAFT_ONLY and storage != "raft":
                continue
            await told({"case": f"{kind} on {on}"}, checked(datacenter, kind, on))
        for kind, on, by in DISARMED:
            await told({"case": f"{kind} on {on} disarmed by {by}"}, unseen(datacenter, kind, on, by))
        beside.cancel_scope.cancel()
    say(told=unsealed)
    say(standbys={host.name: await waits(host) for host in datacenter.hosts.values() if "vault" in host.roles})
    say(memory=await memory(datacenter))


anyio.run(main)
