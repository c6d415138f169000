"""Cases of real_chaos_mesh.py: whole runs by the command line, attached to a real Consul and a real Chaos Mesh.

Its datacenter is somebody else's here: reached by address, armed, with the role that `staging acl kubernetes` prints.
"""

import json
import os
import signal
import time
from functools import partial
from pathlib import Path

import anyio

from control_plane import NAMESPACE, USER, grant
from drills import environment, experiment, hashidrill, start
from hashidrill.core.recording.journal import read_journal
from hashidrill.kubernetes.chaos_mesh import objects
from hashidrill.kubernetes.chaos_mesh.machines import PhysicalProcess, ProcessParams
from hashidrill.kubernetes.objects import ours

_WITHIN_S = 180
_PROVEN_WITHIN_S = 90
LOAD = {"kv-writes": {"kind": "consul.kv.write", "rate": "10/s", "keys": 10, "value": "64B"}}
BEFORE_ITS_END = ("fault.intent", "fault.applied", "fault.proven")
KILLED_AT = (*BEFORE_ITS_END, "fault.still", "fault.reverted")
EXPECT = [{"no_acknowledged_write_lost": {"load": "kv-writes"}}]


class Runs:
    """One experiment: chaosd stops the Consul of its machine for some seconds."""

    def __init__(self, world, name, *, lasts="4s", **kubernetes) -> None:
        self.world, self.folder = world, world.datacenter.root / "runs" / name
        self.folder.mkdir(parents=True)
        self.runs = self.folder / "runs"
        self.home = environment(HOME=self.folder / "home", XDG_STATE_HOME=self.folder / "state")
        (self.folder / "home").mkdir()
        self.lasts = lasts
        settings = {
            "kubeconfig": str(world.plane.kubeconfig(USER)),
            "namespace": NAMESPACE,
            "chaosd": {world.host.name: world.plane.chaosd},
            **kubernetes,
        }
        self.file = self.folder / "theirs.yaml"
        address = world.datacenter.hosts["consul-1"].plans["consul"].url
        self.file.write_text(
            json.dumps(
                {
                    "apiVersion": "hashidrill/v1",
                    "kind": "Attach",
                    "metadata": {"name": "theirs"},
                    "datacenter": {"consul": {"address": address}},
                    "services": {"kubernetes": settings},
                }
            )
        )

    async def armed(self):
        process = await self.world.process()
        stop = {
            "fault": "chaos_mesh.physical.process",
            "on": f"host:{self.world.host.name}",
            "with": {"process": str(process.pid)},
            "for": self.lasts,
        }
        self.path = experiment(self.folder / "stopped.yaml", method=[stop], load=LOAD, expect=EXPECT, servers=3)
        await self.world.host.api("DELETE", "/v1/kv/hashidrill-interlocks/lock", agent="consul")
        armed = await self.says("staging", "arm", self.path, "--attach", self.file, "--for", "10m")
        assert armed.returncode == 0, armed.stderr
        return self

    async def says(self, *words):
        return await anyio.to_thread.run_sync(
            partial(hashidrill, *words, "--runs", self.runs, env=self.home, within_s=_WITHIN_S)
            if "arm" not in words
            else partial(hashidrill, *words, env=self.home, within_s=_WITHIN_S)
        )

    async def run(self):
        """(exit code, the verdict, what was said, what is left in the cluster)."""
        done = await self.says("run", self.path, "--attach", self.file, "--json")
        said = json.loads(done.stdout) if done.stdout.startswith("[") else []
        left = await ours(self.world.admin, objects.OBJECTS, "theirs")
        verdict = said[0].get("verdict") if said else ""
        why = [one.data.get("error", "") for one in self.journal() if one.event in {"end", "fault.stuck"}]
        return {
            "exit": done.returncode,
            "verdict": verdict,
            "said": done.stderr[-3000:],
            "why": " ".join(why)[-1500:],
            "left": left,
        }

    def journal(self):
        return [entry for path in sorted(self.runs.glob("*/journal.jsonl")) for entry in read_journal(path)]

    async def begun(self, event="fault.proven"):
        """The process of a run whose journal has that event."""
        process = start("run", self.path, "--attach", self.file, "--plain", "--runs", self.runs, env=self.home)
        deadline = time.monotonic() + _PROVEN_WITHIN_S
        while not any(entry.event == event for entry in self.journal()):
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                raise AssertionError(f"it never came to {event}: {process.communicate()}")
            await anyio.sleep(0.2)
        return process

    async def healed(self):
        done = await self.says("heal", "--attach", self.file, "--json")
        return {
            "exit": done.returncode,
            "said": done.stderr[-1500:],
            "left": await ours(self.world.admin, objects.OBJECTS, "theirs"),
        }


async def a_run_is_proven_and_judged(world):
    return await (await Runs(world, "whole").armed()).run()


async def a_run_without_a_controller_is_invalid(world):
    one = await Runs(world, "absent").armed()
    world.plane.end("chaos-controller-manager")
    return await one.run()


async def a_run_whose_controller_dies_says_what_helps_and_is_healed(world):
    one = await Runs(world, "dies").armed()
    process = await one.begun()
    world.plane.end("chaos-controller-manager")
    began = time.monotonic()
    said = "".join(await anyio.to_thread.run_sync(process.communicate))
    took_s = time.monotonic() - began
    stuck = await ours(world.admin, objects.OBJECTS, "theirs")
    world.plane.begin("chaos-controller-manager")
    await world.plane.controller_ready()
    return {
        "exit": process.returncode,
        "said": said,
        "stuck": stuck,
        "healed": await one.healed(),
        "took_s": round(took_s, 1),
    }


async def a_run_without_a_right_is_invalid(world):
    """Its role may look at everything, and create nothing; then it may not even look who is a pod."""
    rights = PhysicalProcess(ProcessParams(), None).rights()
    told = {}
    for name, lacks in (("create", "create"), ("pods", "pods")):
        one = await Runs(world, f"role-{name}").armed()
        await grant(world.plane, [right for right in rights if lacks not in {right.access, right.resource}])
        try:
            told[name] = await one.run()
        finally:
            await grant(world.plane, rights)
    return told


def killed_at(event):
    """Runner and engine are killed at that event of the journal: `killed:EVENT`."""

    async def case(world):
        one = await Runs(world, f"killed-{event}", lasts="60s" if event in BEFORE_ITS_END else "1s").armed()
        process = await one.begun(event)
        for pid in of_journal(one.runs):  # first: an engine whose runner is gone reverts what it can
            os.kill(pid, signal.SIGKILL)
        os.killpg(process.pid, signal.SIGKILL)
        await anyio.to_thread.run_sync(process.communicate)
        left = await ours(world.admin, objects.OBJECTS, "theirs")
        healed = await one.healed()
        answers = await world.host.agent_answers("consul", 2.0)
        return {"found": left, "healed": healed, "answers": answers}

    case.__name__ = f"killed:{event}"
    return case


async def a_run_on_a_server_that_is_gone_does_not_begin(world):
    one = await Runs(world, "gone").armed()
    world.plane.end("kube-apiserver")
    done = await one.says("run", one.path, "--attach", one.file, "--json")
    return {"exit": done.returncode, "said": done.stderr[-1500:], "began": one.runs.exists()}


def of_journal(runs):
    """The engines of these runs: a journal of theirs is open in them."""
    held = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if any(fd.readlink().is_relative_to(runs) for fd in (folder / "fd").iterdir()):
                held.append(int(folder.name))
        except OSError:
            continue
    return held


CASES = (
    a_run_is_proven_and_judged,
    a_run_without_a_controller_is_invalid,
    a_run_without_a_right_is_invalid,
    a_run_whose_controller_dies_says_what_helps_and_is_healed,
    *map(killed_at, KILLED_AT),
    a_run_on_a_server_that_is_gone_does_not_begin,
)
