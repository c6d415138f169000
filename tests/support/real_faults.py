"""Inside of a sandbox: starts a real datacenter and checks every fault on hosts in it. One JSON line a case.

    python real_faults.py CONSUL ROOT VERSION all|["KIND PARAMETER=VALUE", ...]

First each case by `check_fault`, then the disarmed ones: what the fault put there is taken away behind its back, and
its observer has to say that it is no longer in force.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import anyio

from fault_cases import DISARMED, HOST_CASES, name, nature
from hashidrill.core.engine.inject import observed_within_s, planned
from hashidrill.core.experiment.datacenter import Disk
from hashidrill.core.experiment.model import DatacenterSpec
from hashidrill.core.protocols.abc import Target
from hashidrill.core.units import Size
from hashidrill.lab.local.datacenter import LocalDatacenter
from hashidrill.products.consul.model import Consul
from hashidrill.testing.faults import check_fault
from told_cases import fault_of, say, seen, told

OPERATIONS = frozenset({"fsync", "write", "read"})
HOST = "consul-2"
_SEEN_WITHIN_S, _UNSEEN_WITHIN_S = 5.0, 15.0


async def main() -> None:
    spec = DatacenterSpec(
        consul=Consul(version=sys.argv[3], config={"performance": {"raft_multiplier": 1}}),
        disk=Disk(size=Size("256MB")),
    )
    binaries = {"consul": Path(sys.argv[1])}
    datacenter = LocalDatacenter(spec, Path(sys.argv[2]), binaries, OPERATIONS, memory_groups=True)
    await datacenter.start()
    await datacenter.wait_ready()
    before = await _rights(datacenter)
    for check, cases in ((_keeps_its_contract, HOST_CASES), (_sees_that_it_was_disarmed, DISARMED)):
        for kind, params in cases:
            if sys.argv[4] != "all" and name(kind, params) not in json.loads(sys.argv[4]):
                continue
            line = {"check": check.__name__, "kind": kind, "params": params}
            await told(line, check(datacenter, kind, params), under="")
    line = {"check": "_rights", "kind": "agent", "params": {}, "present": before, "gone": await _rights(datacenter)}
    say(**line, seconds=0)


async def _rights(datacenter):
    """What the agent that faults kill and start again may do, and what this process may."""
    agent = await datacenter.hosts[HOST].agent_process("consul")
    found = {}
    for who, pid in (("agent", agent.pid), ("own", "self")):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        sets = dict(line.split(":\t") for line in lines if line.startswith(("Cap", "NoNewPrivs")))
        found |= {f"{who} {name}": int(value, 16) for name, value in sets.items()}
    return {"asked": "no capability", "measured": f"{found['agent CapEff']:x}", "pid": agent.pid, **found}


async def _keeps_its_contract(datacenter, kind, params):
    fault = fault_of(datacenter, kind, params)
    [target] = await datacenter.select(f"host:{HOST}")

    def again() -> Target:
        return target

    report = await check_fault(fault, again, **nature(kind))
    return {"present": asdict(report.present), "gone": asdict(report.gone)}


async def _sees_that_it_was_disarmed(datacenter, kind, params):
    """Evidence while it was in force, and once it was not: that one is not ok."""
    fault = fault_of(datacenter, kind, params)
    [target] = await datacenter.select(f"host:{HOST}")
    undo = await planned(fault, target, f"disarmed-{kind}")
    await fault.apply(undo)
    try:
        armed = await seen(fault, undo, ok=True, within_s=observed_within_s(fault, _SEEN_WITHIN_S))
        if fault.cases.disarm is None:
            await fault_of(datacenter, kind, params).revert(undo)
        else:
            await fault.cases.disarm(datacenter.hosts[HOST], undo)
        disarmed = await seen(fault, undo, ok=False, within_s=observed_within_s(fault, _UNSEEN_WITHIN_S))
    finally:
        await fault.revert(undo)
    await seen(fault, undo, ok=True, within_s=observed_within_s(fault, _UNSEEN_WITHIN_S), present=False)
    return {"present": asdict(armed), "gone": asdict(disarmed)}


anyio.run(main)
