"""Inside of a sandbox: a real datacenter, a real control plane with Chaos Mesh, and its faults. One JSON line a case.

python real_chaos_mesh.py CONSUL ROOT VERSION CRDS NAME=PATH...
"""

import json
import os
import shlex
import signal
import sys
import time
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import anyio

import real_chaos_machines
import real_chaos_runs
import real_chaos_troubles
from control_plane import ADMIN, USER, ControlPlane, grant
from hashidrill.core.engine.inject import planned
from hashidrill.core.errors import FaultError
from hashidrill.core.experiment.datacenter import Disk
from hashidrill.core.experiment.model import DatacenterSpec
from hashidrill.core.protocols.capabilities import ChaosMachine, Processes
from hashidrill.core.units import Size
from hashidrill.core.util.wait import wait_until
from hashidrill.kubernetes.chaos_mesh import objects
from hashidrill.kubernetes.chaos_mesh.machines import PhysicalProcess, ProcessParams
from hashidrill.kubernetes.chaos_mesh.objects import of_machine
from hashidrill.kubernetes.client import cluster_of
from hashidrill.kubernetes.objects import Owned, ours
from hashidrill.kubernetes.vocabulary import CHAOS_MESH
from hashidrill.lab.local.datacenter import LocalDatacenter
from hashidrill.products.consul.model import Consul
from hashidrill.testing.faults import check_fault
from told_cases import play, refused_without_each, say, seen

HOST = "consul-2"
OWNED = Owned("run-1", "sandbox", "me@here", 60.0)
PHYSICAL = "PhysicalMachineChaos"


class World:
    """A datacenter of ours whose host has a chaosd, as the user of the role that `staging acl kubernetes` prints."""

    def __init__(self, datacenter, plane, cluster) -> None:
        self.datacenter, self.plane, self.cluster = datacenter, plane, cluster
        self.admin = cluster_of({"kubeconfig": str(plane.kubeconfig(ADMIN, name="admin"))})
        self.lasts(60.0)

    @property
    def host(self):
        return self.datacenter.hosts[HOST]

    def lasts(self, deadline_s: float, cluster=None) -> None:
        owned = replace(OWNED, deadline_s=deadline_s)
        made = of_machine(cluster or self.cluster, owned, self.plane.chaosd, netem=False)
        self.host.parts[ChaosMachine] = made

    async def process(self):
        return await self.host.use(Processes).agent_process("consul")

    async def tidy(self) -> None:
        """As before the case, however that ended."""
        for name in ("etcd", "kube-apiserver", "chaosd", "chaos-controller-manager"):
            self.plane.begin(name)
            self.plane.go_on(name)
        await self.plane.server_ready()
        await self.plane.chaosd_ready()
        await self.plane.controller_ready()
        self.lasts(60.0)

        async def clean():
            """A server that has just started answers, and its storage of some kinds does not yet."""
            try:
                for datacenter in ("sandbox", "theirs"):
                    for kind, name, _ in await ours(self.admin, objects.OBJECTS, datacenter):
                        await objects.remove(self.admin, kind, name)
            except FaultError as error:
                return None, str(error)
            return True, ""

        await wait_until("the cluster to hold nothing of ours", clean, within_s=120, gap_s=0.5)
        if (process := await self.process()) is None:
            await self.host.start_agent("consul")
        else:
            os.kill(process.pid, signal.SIGCONT)

        async def answers():
            return (await self.host.agent_answers("consul", 1.0) or None), "it does not answer"

        await wait_until("consul to answer again", answers, within_s=60, gap_s=0.2)

    async def fault(self, **params):
        """On the agent of HOST alone: chaosd takes a number for a process too."""
        params = {"process": str((await self.process()).pid), **params}
        return PhysicalProcess(ProcessParams(**params), self.datacenter)

    async def target(self):
        [found] = await self.datacenter.select(f"host:{HOST}")
        return found

    async def put_on(self, fault_id, **params):
        fault = await self.fault(**params)
        undo = json.loads(json.dumps(dict(await planned(fault, await self.target(), fault_id))))
        await fault.apply(undo)
        return fault, undo


async def keeps_its_contract(world):
    report = await check_fault(await world.fault(), await world.target())
    return {"present": asdict(report.present), "gone": asdict(report.gone)}


async def keeps_its_contract_when_it_kills(world):
    """What brings the agent back is the command of the fault, which chaosd runs."""
    again = world.datacenter.root / "again.py"
    again.write_text(
        "import sys, anyio\nfrom hashidrill.lab.local.hosts import ask\n"
        "anyio.run(ask, __import__('pathlib').Path(sys.argv[1]), {'op': 'start', 'agent': 'consul'})\n"
    )
    restart = shlex.join([sys.executable, str(again), str(world.datacenter.root / f"s/{HOST}.host")])
    first = (await world.process()).reference
    report = await check_fault(await world.fault(signal="KILL", restart=restart), await world.target())
    return {
        "present": asdict(report.present),
        "gone": asdict(report.gone),
        "another": first != (await world.process()).reference,
    }


async def is_seen_to_be_disarmed(world):
    """Somebody lets the process go on; the object and its status stay as they are."""
    fault, undo = await world.put_on("0-disarmed")
    await seen(fault, undo, present=True)
    os.kill((await world.process()).pid, signal.SIGCONT)
    evidence = await fault.verify(undo, present=True)
    await fault.revert(undo)
    await seen(fault, undo, present=False)
    return {"ok": evidence.ok, "measured": evidence.measured}


async def ends_by_itself(world):
    """Nobody deletes it: the controller reverts it after the duration of its own."""
    world.lasts(12.0)
    fault, undo = await world.put_on("0-alone")
    await seen(fault, undo, present=True)
    began = time.monotonic()

    async def answers():
        evidence = await fault.effect("consul").look(world.datacenter, undo, present=False)
        return (True if evidence.ok else None), evidence.measured

    await wait_until("the agent to answer again", answers, within_s=60, gap_s=0.2)
    took_s = time.monotonic() - began
    said = await world.datacenter.hosts[HOST].use(ChaosMachine).said(undo["object"])
    world.lasts(60.0)
    await fault.revert(undo)
    await seen(fault, undo, present=False)
    return {"took_s": round(took_s, 1), "said": said}


async def a_controller_that_is_gone_is_told(world):
    world.plane.end("chaos-controller-manager")
    fault, undo = await world.put_on("0-absent")
    with anyio.move_on_after(4):
        while True:
            evidence = await fault.verify(undo, present=True)
            await anyio.sleep(0.3)
    await fault.revert(undo)
    world.plane.begin("chaos-controller-manager")
    await world.plane.controller_ready()
    return {"ok": evidence.ok, "measured": evidence.measured}


async def a_stuck_finalizer_is_told_with_what_helps(world):
    """The controller dies while the fault is in force: its finalizer keeps the object, until it is back."""
    fault, undo = await world.put_on("0-stuck")
    await seen(fault, undo, present=True)
    world.plane.end("chaos-controller-manager")
    made = undo["object"]
    try:
        await objects.remove(world.cluster, made["kind"], made["name"], within_s=3.0)
        told = ""
    except FaultError as error:
        told = str(error)
    world.plane.begin("chaos-controller-manager")
    await world.plane.controller_ready()
    await fault.revert(undo)
    evidence = await seen(fault, undo, present=False)
    return {"told": told, "gone": evidence.ok}


async def what_is_left_is_found_by_its_labels(world):
    fault, undo = await world.put_on("0-left")
    await seen(fault, undo, present=True)
    found = await ours(world.cluster, objects.OBJECTS, "sandbox")
    for kind, name, _ in found:
        await objects.remove(world.cluster, kind, name)
    await seen(fault, undo, present=False)
    return {"found": found, "after": await ours(world.cluster, objects.OBJECTS, "sandbox")}


async def an_unreachable_chaosd_is_told(world):
    """Nothing was injected, and the object "recovered": that is what its conditions say, and they prove nothing."""
    world.plane.end("chaosd")
    fault, undo = await world.put_on("0-nobody")
    with anyio.move_on_after(8):
        while True:
            evidence = await fault.verify(undo, present=True)
            await anyio.sleep(0.5)
    found = await world.admin.get(CHAOS_MESH.api, PHYSICAL, undo["object"]["name"])
    held = {one["type"]: one["status"] for one in found["status"]["conditions"]}
    gone = await fault.verify(undo, present=False)
    world.plane.begin("chaosd")
    reverted = ""
    try:
        await fault.revert(undo)
    except FaultError as error:
        reverted = str(error)
    return {
        "ok": evidence.ok,
        "measured": evidence.measured,
        "reverted": reverted,
        "gone": gone.ok,
        "recovered": held.get("AllRecovered"),
        "injected": held.get("AllInjected"),
    }


async def without_a_rule_it_is_refused(world):
    fault = await world.fault()

    async def tidy():
        for kind, name, _ in await ours(world.cluster, objects.OBJECTS, "sandbox"):
            await objects.remove(world.cluster, kind, name)

    target, give = await world.target(), partial(grant, world.plane)
    return {"told": await refused_without_each(fault.rights(), fault, target, give, tidy)}


async def a_process_that_is_not_there_is_told(world):
    """chaosd fails, and so does the controller: nothing is in force, and the object goes."""
    fault, undo = await world.put_on("0-typo", process="consull")
    evidence = None
    with anyio.move_on_after(15):
        while evidence is None or "controller failed" not in evidence.measured:
            evidence = await fault.verify(undo, present=True)
            await anyio.sleep(0.3)
    await fault.revert(undo)
    gone = await seen(fault, undo, present=False)
    return {"ok": evidence.ok, "measured": evidence.measured, "gone": gone.ok}


CASES = (
    keeps_its_contract,
    keeps_its_contract_when_it_kills,
    is_seen_to_be_disarmed,
    ends_by_itself,
    what_is_left_is_found_by_its_labels,
    a_process_that_is_not_there_is_told,
    a_stuck_finalizer_is_told_with_what_helps,
    a_controller_that_is_gone_is_told,
    without_a_rule_it_is_refused,
    an_unreachable_chaosd_is_told,
    *real_chaos_machines.CASES,
    *real_chaos_runs.CASES,
    *real_chaos_troubles.CASES,
)


async def main(cases=CASES) -> None:
    consul, root, version, crds, *named = sys.argv[1:]
    spec = DatacenterSpec(
        consul=Consul(version=version, clients=0, config={"performance": {"raft_multiplier": 1}}),
        disk=Disk(size=Size("128MB")),
    )
    datacenter = LocalDatacenter(spec, Path(root), {"consul": Path(consul)}, frozenset())
    plane = ControlPlane(Path(root) / "plane", dict(one.split("=", 1) for one in named), Path(crds))
    began = time.monotonic()
    await plane.start()
    ready_s = time.monotonic() - began
    await datacenter.start()
    await datacenter.wait_ready()
    plane.machine = datacenter.hosts[HOST]
    plane.begin("chaosd")
    await plane.chaosd_ready()
    cluster = cluster_of({"kubeconfig": str(plane.kubeconfig(USER))})
    world = World(datacenter, plane, cluster)
    await grant(plane, (PhysicalProcess(ProcessParams(), None)).rights())
    say(case="start", plane_s=round(ready_s, 1))
    await play(world, cases)
    await cluster.aclose()
    await world.admin.aclose()
    plane.stop()


if __name__ == "__main__":
    anyio.run(main)
