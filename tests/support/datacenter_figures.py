"""Runs inside of a sandbox and prints how many KV writes a second a local datacenter takes, as JSON.

python datacenter_figures.py CONSUL ROOT (layer|bare)
"""

import json
import sys
import time
from pathlib import Path

import anyio

from hashidrill.core.experiment.model import DatacenterSpec
from hashidrill.core.loads.http_client import HttpClient
from hashidrill.lab.local.datacenter import LocalDatacenter
from hashidrill.products.consul.api import leader_of
from hashidrill.products.consul.model import Consul

SPEC = DatacenterSpec(consul=Consul(clients=0, config={"performance": {"raft_multiplier": 1}}))
WRITERS, SECONDS = 16, 6.0


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


async def main() -> None:
    consul, root, kind = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    print(json.dumps(await throughput(consul, root, kind)))


anyio.run(main)
