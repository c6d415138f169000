"""Cases of real_chaos_mesh.py: each fault that chaosd carries out on a machine, as its own canaries see it."""

import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import asdict
from pathlib import Path

from hashidrill.core.engine.inject import planned
from hashidrill.core.errors import FaultError
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.capabilities import ChaosMachine
from hashidrill.core.util.wait import pause, wait_until
from hashidrill.testing.faults import check_fault

_TRIES, _GAP_S = 5, 5.0
BANDWIDTH = "chaos_mesh.physical.bandwidth"
MACHINE_CASES = {
    "chaos_mesh.physical.disk_fill": {"size": "20MB", "path": "FILE"},
    "chaos_mesh.physical.cpu": {"workers": 4},
    "chaos_mesh.physical.partition": {"from": "host:consul-1", "direction": "out"},
    BANDWIDTH: {"from": "host:consul-1", "rate": "64KB/s"},
}
NEEDED = {
    "chaos_mesh.physical.disk_fill": (),
    "chaos_mesh.physical.cpu": ("stress-ng",),
    "chaos_mesh.physical.partition": ("iptables", "ipset"),
    BANDWIDTH: ("iptables", "tc"),
}
"""What chaosd starts, which must be on its machine."""


def fault_of(world, kind):
    params = MACHINE_CASES[kind]
    if "path" in params:
        params = {**params, "path": str(world.host.data / "filled")}
    cls = registry.fault(kind)
    return cls(cls.Params.model_validate(params), world.datacenter)


def disarm(world, kind) -> None:
    """Takes away what chaosd did, behind its back."""
    inside = ["nsenter", f"--net={world.host.namespace}"]
    if kind.endswith("disk_fill"):
        (world.host.data / "filled").unlink()
    elif kind.endswith("cpu"):
        for pid in stressed():
            os.kill(pid, signal.SIGKILL)
    elif kind.endswith("partition"):
        subprocess.run([*inside, "iptables", "-w", "-F"], check=True)
    else:
        subprocess.run([*inside, "tc", "qdisc", "del", "dev", "eth0", "root"], check=True)


def stressed() -> list[int]:
    """Of this sandbox: it has process numbers of its own."""
    found = [one for one in Path("/proc").iterdir() if one.name.isdigit()]
    return [int(one.name) for one in found if _name(one).startswith("stress-ng")]


def _name(process: Path) -> str:
    try:
        return (process / "comm").read_text()
    except OSError:
        return ""


async def in_force(fault, undo, *, present):
    async def look():
        evidence = await fault.verify(undo, present=present)
        return (evidence if evidence.ok else None), evidence.measured

    return await wait_until(f"it to be {'in force' if present else 'gone'}", look, within_s=60, gap_s=0.2)


async def at_leisure(fault, target):
    """Other work may keep the machine busy for a while: then a proof of CPU is refused beforehand."""
    for _ in range(_TRIES - 1):
        try:
            return await check_fault(fault, target)
        except FaultError as error:
            if "too busy" not in str(error):
                raise
            await pause(_GAP_S)
    return await check_fault(fault, target)


async def injected(world, undo):
    """The effect is there before the controller has written so."""

    async def look():
        said = await world.host.use(ChaosMachine).said(undo["object"])
        return (True if "AllInjected" in said else None), said

    await wait_until("the controller to say so", look, within_s=60, gap_s=0.2)


async def proven(world, fault, target):
    began = time.monotonic()
    report = await at_leisure(fault, target)
    took_s = time.monotonic() - began
    undo = json.loads(json.dumps(dict(await planned(fault, target, "0-disarmed"))))
    await fault.apply(undo)
    await in_force(fault, undo, present=True)
    await injected(world, undo)
    disarm(world, fault.kind)
    evidence = await fault.verify(undo, present=True)
    await fault.revert(undo)
    await in_force(fault, undo, present=False)
    return {
        "present": asdict(report.present),
        "gone": asdict(report.gone),
        "took_s": round(took_s, 1),
        "disarmed": asdict(evidence),
    }


def a_case(kind):
    """A case of its own for each kind: `machine:KIND`."""

    async def case(world):
        if lacking := [name for name in NEEDED[kind] if shutil.which(name) is None]:
            return {"lacking": lacking}
        world.lasts(300.0, world.admin)
        fault = fault_of(world, kind)
        [target] = await world.datacenter.select(f"host:{world.host.name}")
        try:
            return await proven(world, fault, target)
        except FaultError as error:
            if "too busy" not in str(error):
                raise
            return {"refused": str(error)}

    case.__name__ = f"machine:{kind}"
    return case


async def a_delay_that_fails_blocks_no_other_fault(world):
    """By netem, which this kernel may not have: we have no kind for it, and others use this chaosd too."""
    if lacking := [name for name in NEEDED[BANDWIDTH] if shutil.which(name) is None]:
        return {"lacking": lacking}
    world.lasts(300.0, world.admin)
    part = world.host.use(ChaosMachine)
    made = part.object_of("PhysicalMachineChaos", "0-delay")
    delay = {"action": "network-delay", "network-delay": {"device": "eth0", "latency": "20ms"}}
    await part.create(made, delay, once=False)

    async def decided():
        said = await part.said(made)
        return (said if "failed" in said or "AllInjected" in said else None), said

    told = await wait_until("the controller to inject it, or to fail", decided, within_s=60, gap_s=0.3)
    await part.remove(made)
    [target] = await world.datacenter.select(f"host:{world.host.name}")
    report = await check_fault(fault_of(world, BANDWIDTH), target)
    return {"told": told, "present": asdict(report.present), "gone": asdict(report.gone)}


CASES = (*map(a_case, MACHINE_CASES), a_delay_that_fails_blocks_no_other_fault)
