"""Runs inside of a sandbox and prints one JSON document of figures about the local datacenter.

python datacenter_figures.py (ready|throughput|reaction) CONSUL ROOT [layer|bare]
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import anyio
import httpx2

from hashidrill.core.experiment.model import DatacenterSpec
from hashidrill.core.loads.http_client import HttpClient
from hashidrill.lab.local.datacenter import LocalDatacenter
from hashidrill.products.consul.api import leader_of
from hashidrill.products.consul.model import Consul

SPEC = DatacenterSpec(consul=Consul(clients=0, config={"performance": {"raft_multiplier": 1}}))
WRITERS, SECONDS = 16, 6.0
TRIES = 15


async def ready_by_hand(consul: str, root: Path) -> float:
    """Three servers on loopback addresses, as a person would start them; seconds until a write is accepted."""
    addresses = [f"127.0.7.{n}" for n in (1, 2, 3)]
    began = time.monotonic()
    processes = []
    for address in addresses:
        join = [f"-retry-join={other}" for other in addresses]
        command = [
            consul,
            "agent",
            "-server",
            "-bootstrap-expect=3",
            f"-node={address}",
            f"-bind={address}",
            f"-client={address}",
            f"-data-dir={root}/{address}",
            "-retry-interval=250ms",
            "-disable-host-node-id",
            "-hcl=performance { raft_multiplier = 1 }",
            "-hcl=ports { grpc = -1 }",
            "-hcl=disable_update_check = true",
            *join,
        ]
        processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    base = f"http://{addresses[0]}:8500"
    async with httpx2.AsyncClient(base_url=base, trust_env=False, timeout=2) as client:
        while True:
            try:
                members = (await client.get("/v1/agent/members")).json()
                alive = [member for member in members if member["Status"] == 1]
                if len(alive) == len(addresses) and (await client.put("/v1/kv/ready", content=b"1")).text == "true":
                    break
            except (httpx2.HTTPError, ValueError):
                pass
            await anyio.sleep_until(anyio.current_time() + 0.05)
    took = time.monotonic() - began
    for process in processes:
        process.kill()
        process.wait()
    return took


async def throughput(consul: str, root: Path, kind: str) -> dict[str, float]:
    operations = frozenset({"fsync"}) if kind == "layer" else frozenset()
    datacenter = LocalDatacenter(SPEC, root, {"consul": Path(consul)}, operations)
    await datacenter.start()
    await datacenter.wait_ready()
    leader = datacenter.hosts[await leader_of(datacenter) or ""]
    url = f"http://{leader.address}:8500/v1/kv/bench/"
    done = 0
    async with HttpClient() as client, anyio.create_task_group() as group:

        async def writer(n: int) -> None:
            nonlocal done
            while True:
                await client.request("PUT", f"{url}{n}", body=b"x" * 512, timeout_s=30)
                done += 1

        for n in range(WRITERS):
            group.start_soon(writer, n)
        await anyio.sleep_until(anyio.current_time() + 1)
        before, began = done, time.monotonic()
        await anyio.sleep_until(anyio.current_time() + SECONDS)
        rate = (done - before) / (time.monotonic() - began)
        group.cancel_scope.cancel()
    return {"writes_per_s": rate}


async def reaction(consul: str, root: Path) -> dict[str, list[float]]:
    """Seconds from the call that injects (reverts) to the start of the first operation that shows it."""
    from hashidrill.core.protocols import registry

    datacenter = LocalDatacenter(SPEC, root, {"consul": Path(consul)}, frozenset({"fsync"}))
    await datacenter.start()
    await datacenter.wait_ready()
    host, other = datacenter.host("consul-1"), datacenter.host("consul-2")
    [target] = await datacenter.select("host:consul-1")

    async def slow() -> bool:
        return (await host.canary_fsync()).seconds > 0.09

    async def cut() -> bool:
        return (await other.connect(host.address, 7007, 0.05)).errno != 0

    figures: dict[str, list[float]] = {}
    for kind, params, seen in (
        ("disk.latency", {"delay": "100ms"}, slow),
        ("network.partition", {"from": "all"}, cut),
        ("network.block", {"port": 7007}, cut),
    ):
        cls = registry.fault(kind)
        for n in range(TRIES):
            fault = cls(cls.Params.model_validate(params), datacenter)
            undo = fault.plan(target, fault_id=f"bench-{n}")
            for call, wanted in ((fault.apply, True), (fault.revert, False)):
                began = time.monotonic()
                await call(undo)
                while True:
                    looked = time.monotonic()
                    if await seen() == wanted:
                        break
                word = "inject" if wanted else "revert"
                figures.setdefault(f"{kind} {word}", []).append(looked - began)
    return figures


async def main() -> None:
    what, consul, root = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    if what == "by-hand":
        print(json.dumps({"ready_s": await ready_by_hand(consul, root)}))
    elif what == "ready":
        datacenter = LocalDatacenter(SPEC, root, {"consul": Path(consul)})
        began = time.monotonic()
        await datacenter.start()
        await datacenter.wait_ready()
        print(json.dumps({"ready_s": time.monotonic() - began}))
    elif what == "throughput":
        print(json.dumps(await throughput(consul, root, sys.argv[4])))
    else:
        print(json.dumps(await reaction(consul, root)))


anyio.run(main)
