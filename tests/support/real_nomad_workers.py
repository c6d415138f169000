"""Inside of a sandbox: load generators as a job of a real Nomad, against a real Consul.

python real_nomad_workers.py NOMAD CONSUL ROOT PYTHON. One JSON line for each part.
"""

import json
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import anyio
import httpx2

import drills
from hashidrill.core.engine.load_generator import LoadGenerator, LoadSpecification
from hashidrill.core.errors import DatacenterError
from hashidrill.core.experiment.model import DatacenterSpec
from hashidrill.core.recording.journal import Clock, read_journal
from hashidrill.core.recording.reader import Recording
from hashidrill.core.util.wait import wait_until
from hashidrill.lab.local.datacenter import LocalDatacenter
from hashidrill.products.consul.loads.kv import KvWrite
from hashidrill.staging.attach.http import Login, Wire
from hashidrill.staging.carriers.nomad_jobs import Jobs
from hashidrill.staging.generators.spawners import PREFIX

WORKERS = 3
RATE = "60/s"
TOKEN = "5a7d1c9e-token-of-consul"
_SPEC = {
    "consul": {"servers": 3, "clients": 0, "config": {"performance": {"raft_multiplier": 1}}},
    "nomad": {"servers": 1, "clients": WORKERS},
    "ready_within": "60s",
}
_ENOUGH = 120
LEASE_S = 6.0


class World:
    """The datacenter, and what came out of its generators."""

    def __init__(self, root, wire, nomad, consul):
        self.root, self.wire, self.nomad, self.consul = root, wire, nomad, consul
        self.operations, self.samples = [], []

    async def asked(self, method, path, body=None, **params):
        content = None if body is None else json.dumps(body).encode()
        answer = await self.wire.request(method, path, body=content, params=params)
        assert answer.status == 200, (path, answer)
        return answer.json()

    def generator(self, run_id):
        fleet = {
            "spawner": "nomad",
            "workers": WORKERS,
            "lease_s": LEASE_S,
            "lost_after_s": 4.0,
            "login": Login("nomad", self.nomad).handed_over(),
        }
        # nobody asks by this URL: a token on its way to the workers
        entrance = {"tls": {}, "headers": {"X-Consul-Token": TOKEN}, "params": {}}
        return LoadGenerator(Clock(), run_id, fleet=fleet, entrances={"http://127.0.0.1:1": entrance})

    async def start(self, loads):
        params = KvWrite.Params.model_validate({"rate": RATE, "keys": 7, "once": "50%"})
        self.operations.clear()
        await loads.start(
            [LoadSpecification("kv", KvWrite.kind, params, self.consul)],
            self.operations.append,
            lambda _t_ns, sample: self.samples.append(sample),
        )

    async def has(self, number):
        async def enough():
            return len(self.operations) >= number or None, f"{len(self.operations)} operations"

        await wait_until("operations", enough, within_s=60)

    async def python_is(self, python):
        for node in await self.asked("GET", "/v1/nodes"):
            body = {"NodeID": node["ID"], "Meta": {"hashidrill_python": python}}
            await self.asked("POST", "/v1/client/metadata", body, node_id=node["ID"])

        async def known():
            nodes = [await self.asked("GET", f"/v1/node/{one['ID']}") for one in await self.asked("GET", "/v1/nodes")]
            return all((node["Meta"] or {}).get("hashidrill_python") for node in nodes) or None, "meta"

        await wait_until("the servers to know the meta", known, within_s=30)

    async def allocations(self, run_id):
        return await self.asked("GET", f"/v1/job/hashidrill-generators-{run_id}/allocations")


async def refused(world):
    try:
        async with world.generator("refused") as loads:
            await world.start(loads)
    except DatacenterError as error:
        return {"error": str(error), "jobs": await Jobs(world.wire).left(PREFIX, ".*")}
    return {"error": ""}


async def together(world):
    async with world.generator("together") as loads:
        await world.start(loads)
        nodes = {one["NodeName"] for one in await world.allocations("together")}
        job = json.dumps(await world.asked("GET", "/v1/job/hashidrill-generators-together"))
        await world.has(_ENOUGH)
        await loads.stop()
        read = await loads.final_reads()
    numbers = sorted(int(op.value.rpartition(".")[2]) for op in world.operations)
    ends = [op.end_ns for op in world.operations]
    due = sorted(op.intended_ns for op in world.operations)[: _ENOUGH - 10]
    written = {op.key for op in world.operations if op.outcome == "ok"}
    uncertain = [one.value for one in world.samples if one.signal.endswith(".uncertainty")]
    return {
        "nodes": len(nodes),
        "whole": numbers[: _ENOUGH - 10] == list(range(_ENOUGH - 10)),
        "once": len(set(numbers)) == len(numbers),
        "ordered": ends == sorted(ends),
        "apart_ms": max(abs(t - due[0] - n * 1e9 / 60) for n, t in enumerate(due)) / 1e6,
        "uncertain_ms": max(uncertain) * 1e3,
        "lost": sum(read["kv"].get(key) is None for key in written),
        "written": len(written),
        "sum": next(one.text for one in world.samples if one.signal == "workers.kv.offered"),
        "token_in_job": TOKEN in job,
        "jobs": await Jobs(world.wire).left(PREFIX, ".*"),
    }


async def killed_worker(world):
    try:
        async with world.generator("killed-worker") as loads:
            await world.start(loads)
            [first, *_] = await world.allocations("killed-worker")
            await world.asked("POST", f"/v1/allocation/{first['ID']}/stop")
            await world.has(10**6)
    except DatacenterError as error:
        return {"error": str(error), "jobs": await Jobs(world.wire).left(PREFIX, ".*")}
    return {"error": ""}


async def killed_runner(world):
    began = time.monotonic()
    try:
        async with world.generator("killed-runner") as loads:
            await world.start(loads)
            os.kill(loads._process.pid, signal.SIGKILL)
            began = time.monotonic()
            await world.has(10**6)
    except DatacenterError:
        pass

    async def ended():
        states = [one["ClientStatus"] for one in await world.allocations("killed-runner")]
        return all(state in {"complete", "failed"} for state in states) or None, str(states)

    await wait_until("the workers to end by themselves", ended, within_s=40)
    took_s = time.monotonic() - began
    found = await Jobs(world.wire).left(PREFIX, ".*")
    return {"took_s": took_s, "jobs": found, "purged": await Jobs(world.wire).remove(PREFIX, ".*")}


def register(consul, nomad):
    """That Nomad in the Consul that arms, as its operators do: it arms no product that it does not name."""
    members = httpx2.get(f"{nomad}/v1/agent/members").raise_for_status().json()["Members"]
    nodes = httpx2.get(f"{nomad}/v1/nodes").raise_for_status().json()
    for name, address in [(e["Name"], e["Addr"]) for e in members] + [(e["Name"], e["Address"]) for e in nodes]:
        node = {"Node": f"nomad-{name}", "Address": address, "Service": {"Service": "nomad"}}
        httpx2.put(f"{consul}/v1/catalog/register", json=node).raise_for_status()


def by_address(folder, consul, nomad, lasts="2s"):
    """A datacenter to attach, whose Nomad offers the loads, and an experiment for it."""
    register(consul, nomad)
    attach = folder / "staging.yaml"
    attach.write_text(
        json.dumps(
            {
                "apiVersion": "hashidrill/v1",
                "kind": "Attach",
                "metadata": {"name": "staging"},
                "datacenter": {"consul": {"address": consul}, "nomad": {"address": nomad}},
                "engine": {"nomad": {"workers": WORKERS, "lease": "10s", "lost_after": "5s"}},
            }
        )
    )
    load = {"kind": "consul.kv.write", "rate": RATE, "keys": 20, "value": "64B", "via": "consul:servers"}
    moved = {"fault": "consul.leader.transfer", "on": "consul:leader", "for": lasts}
    path = drills.experiment(
        folder / "moved.yaml",
        method=[moved],
        load={"kv": load},
        require=["kv.latency.p50 < 500ms"],
        expect=[{"no_acknowledged_write_lost": {"load": "kv"}}],
        servers=3,
    )
    return attach, path


async def attached(world):
    folder = world.root / "attached"
    folder.mkdir()
    attach, path = by_address(folder, world.consul[0], world.nomad)
    env = drills.environment(HOME=folder, XDG_STATE_HOME=folder / "state")

    async def run(*words):
        return await anyio.to_thread.run_sync(lambda: drills.hashidrill(*words, "--attach", attach, env=env))

    armed = await run("staging", "arm", path, "--for", "10m")
    done = await run("run", path, "--json", "--runs", folder / "runs")
    if done.returncode != 0:
        return {"error": f"{armed.stderr} {done.stdout} {done.stderr}"}
    [said] = json.loads(done.stdout)
    recording = Recording(Path(said["recording"]))
    return {
        "verdict": said["verdict"],
        "operations": len(recording.operations("kv")),
        "jobs": await Jobs(world.wire).left(PREFIX, ".*"),
        "offered": recording.series("workers.kv.offered").text,
        "signals": sorted(name for name in recording.signals if name.startswith("workers.")),
    }


async def lost_in_a_run(world):
    """A whole run by address, of which Nomad stops one worker while a fault is in force."""
    folder = world.root / "lost"
    folder.mkdir()
    attach, path = by_address(folder, world.consul[0], world.nomad, lasts="60s")
    env = drills.environment(HOME=folder, XDG_STATE_HOME=folder / "state")
    arming = partial(drills.hashidrill, "staging", "arm", path, "--for", "10m", "--attach", attach, env=env)
    armed = await anyio.to_thread.run_sync(arming)
    runner = drills.start("run", path, "--attach", attach, "--json", "--runs", folder / "runs", env=env)

    async def proven():
        journals = [*(folder / "runs").glob("*/journal.jsonl")]
        events = [entry.event for journal in journals for entry in read_journal(journal)]
        return "fault.proven" in events or runner.poll() is not None or None, str(events)

    await wait_until("a fault to be proven", proven, within_s=60)
    [job] = await Jobs(world.wire).left(PREFIX, ".*")
    [first, *_] = await world.asked("GET", f"/v1/job/{job}/allocations")
    await world.asked("POST", f"/v1/allocation/{first['ID']}/stop")
    out, error = await anyio.to_thread.run_sync(runner.communicate)
    if not out.startswith("["):
        return {"error": f"{armed.stderr} {out} {error}"}
    [said] = json.loads(out)
    events = [entry.event for entry in read_journal(Path(said["recording"]) / "journal.jsonl")]
    return {
        "code": runner.returncode,
        "verdict": said["verdict"],
        "invalid": said["invalid"],
        "gone": events.count("fault.gone"),
        "jobs": await Jobs(world.wire).left(PREFIX, ".*"),
    }


async def main():
    nomad, consul, root = (Path(word) for word in sys.argv[1:4])
    spec = DatacenterSpec.model_validate(_SPEC)
    datacenter = LocalDatacenter(spec, root, {"nomad": nomad, "consul": consul}, artifacts=root / "artifacts")
    await datacenter.start()
    await datacenter.wait_ready()
    [url, *_] = await datacenter.endpoints("nomad:servers")
    async with Wire(Login("nomad", url)) as wire:
        world = World(root, wire, url, await datacenter.endpoints("consul:servers"))
        print(json.dumps({"part": "refused", **await refused(world)}), flush=True)
        await world.python_is(sys.argv[4])
        for part in (together, killed_worker, killed_runner, attached, lost_in_a_run):
            try:
                line = await part(world)
            except Exception as error:  # the test shows it
                line = {"error": repr(error)}
            print(json.dumps({"part": part.__name__, **line}), flush=True)


if __name__ == "__main__":
    anyio.run(main)
