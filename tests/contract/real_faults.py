"""Runs inside of a sandbox: starts a real datacenter and checks every fault on it. Prints one JSON line a case.

python real_faults.py CONSUL ROOT
"""

from __future__ import annotations

import json
import signal
import sys
import time
import traceback
from pathlib import Path

import anyio
from fault_cases import CASES, nature

from hashidrill import registry
from hashidrill.abc import Target
from hashidrill.datacenter.local import LocalDatacenter
from hashidrill.model import Consul, DatacenterSpec, Disk, Size
from hashidrill.testing.faults import check_fault
from hashidrill.wait import wait_until

OPERATIONS = frozenset({"fsync", "write", "read"})


async def _disarmed(datacenter, kind, params, disarm) -> dict:
    """Put the fault in force, take it away behind its back, and ask its observer: it must not say that it is there."""
    cls = registry.fault(kind)
    fault = cls(cls.Params.model_validate(params), datacenter)
    [target] = await datacenter.select("host:consul-2")
    undo = fault.plan(target, fault_id="disarmed")
    await fault.apply(undo)
    try:
        before = await fault.verify(undo, present=True)
        await disarm(datacenter.hosts["consul-2"], undo)
        after = await fault.verify(undo, present=True)
    finally:
        await fault.revert(undo)
    return {"armed": before.ok, "disarmed": after.ok, "measured": after.measured}


async def _flush_rules(host, _undo):
    await host.nft("flush ruleset")


async def _clear_disk(host, _undo):
    await host.clear_disk_rule("disarmed")


async def _remove_ballast(host, _undo):
    for file in host.data.glob(".ballast-*"):
        file.unlink()


async def _continue(host, undo):
    await host.signal(undo["pid"], undo["start_time"], signal.SIGCONT)


async def _start(host, _undo):
    await host.start_agent("consul")
    await _answers(host)


async def _answers(host):
    async def answers():
        return (True if await host.agent_answers("consul", 0.5) else None), "no answer"

    await wait_until("the agent to answer", answers, within_s=20)


async def _lift_limit(host, _undo):
    await host.unlimit_cpu("disarmed")


DISARMED = (
    ("disk.latency", {"delay": "100ms"}, _clear_disk),
    ("disk.error", {}, _clear_disk),
    ("disk.bandwidth", {"rate": "256kB/s"}, _clear_disk),
    ("disk.full", {}, _remove_ballast),
    ("process.pause", {}, _continue),
    ("process.kill", {}, _start),
    ("cpu.throttle", {"cores": 0.1}, _lift_limit),
    ("network.partition", {}, _flush_rules),
    ("network.loss", {"percent": "40%"}, _flush_rules),
    ("network.block", {"port": 8500}, _flush_rules),
)


async def main() -> None:
    spec = DatacenterSpec(
        consul=Consul(version=sys.argv[3], config={"performance": {"raft_multiplier": 1}}),
        disk=Disk(size=Size("256MB")),
    )
    datacenter = LocalDatacenter(spec, Path(sys.argv[2]), Path(sys.argv[1]), OPERATIONS)
    await datacenter.start()
    await datacenter.wait_ready()
    for kind, params in CASES:
        began = time.monotonic()
        line = {"kind": kind, "params": params}
        try:
            report = await _check(datacenter, kind, params)
            line |= {"asked": report.present.asked, "measured": report.present.measured, "gone": report.gone.measured}
            line["figures"] = dict(report.present.figures)
        except Exception as error:
            traceback.print_exc()
            line["error"] = f"{type(error).__name__}: {error}"
        print(json.dumps({**line, "seconds": round(time.monotonic() - began, 2)}), flush=True)
    for kind, params, disarm in DISARMED:
        line = {"disarmed": kind}
        try:
            line |= {"result": await _disarmed(datacenter, kind, params, disarm)}
            await _answers(datacenter.hosts["consul-2"])
        except Exception as error:
            traceback.print_exc()
            line["error"] = f"{type(error).__name__}: {error}"
        print(json.dumps(line), flush=True)


async def _check(datacenter, kind, params):
    cls = registry.fault(kind)
    fault = cls(cls.Params.model_validate(params), datacenter)
    [target] = await datacenter.select("host:consul-2")

    def again() -> Target:
        return target

    return await check_fault(fault, again, **nature(kind))


anyio.run(main)
