"""Inside of a sandbox: starts a real Nomad and checks its faults in it. One JSON line a case.

python real_nomad_faults.py NOMAD ROOT [KIND...]
"""

import sys
import time
from pathlib import Path

import anyio

from fault_cases import momentary
from hashidrill.core.engine.inject import PROVEN_WITHIN_S, observed_within_s, planned
from hashidrill.core.experiment.model import DatacenterSpec
from hashidrill.core.util.wait import wait_until
from hashidrill.lab.local.datacenter import LocalDatacenter
from hashidrill.products.nomad import api
from hashidrill.testing.faults import check_fault
from nomad_fault_cases import DISARMED, JOB, NOMAD_CASES, prepared, sleepers
from told_cases import fault_of, say, seen, told


async def target_of(datacenter, on):
    """Of a datacenter that is well again, with work on every node that can be moved."""
    await datacenter.wait_ready()
    await api.when_led(datacenter, "POST", "/v1/jobs", body={"Job": sleepers()})
    await wait_until("all sleepers to run", lambda: all_run(datacenter), within_s=60, gap_s=0.2)
    return (await datacenter.select(on))[0]


async def all_run(datacenter):
    allocs = await api.when_led(datacenter, "GET", f"/v1/job/{JOB}/allocations")
    run = [one for one in allocs if one["ClientStatus"] == "running" and one["DesiredStatus"] == "run"]
    return (True if len(run) == 2 else None), f"{len(run)} run"


async def checked(datacenter, kind, params, on):
    target = await target_of(datacenter, on)
    await prepared(datacenter, kind, target)
    report = await check_fault(fault_of(datacenter, kind, params), target, momentary=momentary(kind))
    return {"asked": report.present.asked, "measured": report.present.measured, "gone": report.gone.measured}


async def unseen(datacenter, kind, params, on):
    target = await target_of(datacenter, on)
    await prepared(datacenter, kind, target)
    fault = fault_of(datacenter, kind, params)
    undo = await planned(fault, target, "disarm")
    await fault.apply(undo)
    try:
        await seen(fault, undo, within_s=observed_within_s(fault, PROVEN_WITHIN_S))
        await DISARMED[kind](datacenter, undo)
        evidence = await seen(fault, undo, ok=False, within_s=10)
    finally:
        await fault.revert(undo)
    return {"measured": evidence.measured}


async def resident_mb(host):
    """What the host's agent has in memory, programs shared with the others included."""
    process = await host.agent_process("nomad")
    [line] = [line for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if "VmRSS" in line]
    return int(line.split()[1]) // 1024


async def main():
    root, only = Path(sys.argv[2]), sys.argv[3:]
    spec = DatacenterSpec.model_validate({"nomad": {"servers": 3, "clients": 2}, "ready_within": "60s"})
    datacenter = LocalDatacenter(spec, root, {"nomad": Path(sys.argv[1])}, artifacts=root / "artifacts")
    began = time.monotonic()
    await datacenter.start()
    await datacenter.wait_ready()
    ready_s = round(time.monotonic() - began, 1)
    memory_mb = {name: await resident_mb(host) for name, host in datacenter.hosts.items()}
    say(ready_s=ready_s, memory_mb=memory_mb)
    for kind, params, on in NOMAD_CASES:
        if not only or kind in only:
            await told({"kind": kind, "params": params, "on": on}, checked(datacenter, kind, params, on))
            await told({"disarmed": kind}, unseen(datacenter, kind, params, on))


if __name__ == "__main__":
    anyio.run(main)
