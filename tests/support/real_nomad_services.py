"""Inside of a sandbox: a real Nomad registers services with a real Consul, and lies are planted behind their backs.

python real_nomad_services.py NOMAD CONSUL ROOT. One JSON line for each lie: what the load `nomad.services` saw of it,
and how long it lasted where somebody put it right.
"""

import json
import sys
import time
from pathlib import Path

import anyio

from hashidrill.core.errors import WaitTimeoutError
from hashidrill.core.experiment.model import DatacenterSpec
from hashidrill.core.loads.base import LoadContext
from hashidrill.core.loads.http_client import HttpClient
from hashidrill.core.util.wait import wait_until
from hashidrill.lab.local.datacenter import LocalDatacenter
from hashidrill.products.nomad.loads.services import ALLOC, KINDS_OF_WRONG, Services

COUNT = 4
SERVICE = "hashidrill-web-1"
_SPEC = {
    "consul": {"servers": 1, "clients": 1, "config": {"performance": {"raft_multiplier": 1}}},
    "nomad": {"servers": 1, "clients": 2},
    "ready_within": "60s",
}
_HEALED_WITHIN_S = 150.0


class World:
    """The load while it runs, and who is asked to lie."""

    def __init__(self, datacenter, client):
        self.datacenter, self.client = datacenter, client
        self.seen, self.operations = {}, []

    async def consul(self, host, method, path, body=None):
        url = f"http://{self.datacenter.hosts[host].address}:8500/v1/{path}"
        answer = await self.client.request(method, url, body=json.dumps(body).encode() if body else None, timeout_s=5)
        assert answer.status == 200, (url, answer)
        return json.loads(answer.body or b"null")

    async def entry(self):
        """One of the registrations, as the catalog has it."""
        return (await self.consul("consul-1", "GET", f"catalog/service/{SERVICE}"))[0]

    async def until(self, what, within_s=20.0, **signals):
        async def there():
            now = {name: self.seen.get(name) for name in signals}
            return (True if now == signals else None), str(self.seen)

        began = time.monotonic()
        await wait_until(what, there, within_s=within_s)
        return round(time.monotonic() - began, 1)

    async def well(self, within_s=_HEALED_WITHIN_S):
        none = dict.fromkeys(KINDS_OF_WRONG, 0.0)
        return await self.until("all to be right", within_s, registered=float(COUNT), running=float(COUNT), **none)


def external(entry, **other):
    """A registration that no agent makes: with the catalog, on a node of its own."""
    service = {"Service": SERVICE, "ID": "by-hand", "Meta": {ALLOC: entry["ServiceMeta"][ALLOC]}, **other}
    return {"Node": "by-hand", "Address": "10.73.0.99", "Service": service}


async def forgotten_by_the_agent(world):
    """Nobody but the Nomad client knows of it any more."""
    entry = await world.entry()
    await world.consul(entry["Node"], "PUT", f"agent/service/deregister/{entry['ServiceID']}")
    await world.until("it to be missing", missing=1.0)
    return {"healed_s": await world.well()}


async def forgotten_by_the_catalog(world):
    """The agent on the host has it, the servers lost it: as after the restore of an older snapshot."""
    entry = await world.entry()
    gone = {"Node": entry["Node"], "ServiceID": entry["ServiceID"]}
    await world.consul("consul-1", "PUT", "catalog/deregister", gone)
    await world.until("it to be missing", missing=1.0)
    return {"healed_s": await world.well()}


async def stays(world, registration, **signals):
    """It is seen, and nobody takes it away."""
    await world.consul("consul-1", "PUT", "catalog/register", registration)
    await world.until("it to be seen", **signals)
    try:
        gone_s = await world.well(within_s=5.0)
    except WaitTimeoutError:
        gone_s = None
    await world.consul("consul-1", "PUT", "catalog/deregister", {"Node": "by-hand"})
    await world.well()
    return {"gone_by_itself_s": gone_s}


async def twice(world):
    return await stays(world, external(await world.entry()), duplicate=1.0)


async def of_nobody(world):
    return await stays(world, external(await world.entry(), Meta={ALLOC: "long-gone"}), stale=1.0)


async def sick(world):
    entry = await world.entry()
    check = {"Node": entry["Node"], "CheckID": "by-hand", "Name": "by-hand", "Status": "critical"}
    where = {"Node": entry["Node"], "Address": entry["Address"], "SkipNodeUpdate": True}
    await world.consul("consul-1", "PUT", "catalog/register", {**where, "Check": check})
    on_it = [
        each
        for each in await world.consul("consul-1", "GET", f"catalog/service/{SERVICE}")
        if each["Node"] == entry["Node"]
    ]
    await world.until("those of the node to be critical", critical=float(len(on_it)))
    await world.consul("consul-1", "PUT", "catalog/deregister", {"Node": entry["Node"], "CheckID": "by-hand"})
    await world.well()
    return {"critical": len(on_it)}


LIES = (twice, of_nobody, sick, forgotten_by_the_agent, forgotten_by_the_catalog)


async def main():
    nomad, consul, root = (Path(word) for word in sys.argv[1:4])
    spec = DatacenterSpec.model_validate(_SPEC)
    datacenter = LocalDatacenter(spec, root, {"nomad": nomad, "consul": consul}, artifacts=root / "artifacts")
    await datacenter.start()
    await datacenter.wait_ready()
    async with HttpClient() as client, anyio.create_task_group() as group:
        world = World(datacenter, client)
        nomad_urls, consul_urls = [await datacenter.endpoints(f"{one}:servers") for one in ("nomad", "consul")]
        context = LoadContext(
            nomad_urls,
            others={"consul": consul_urls},
            emit_sample=lambda what, value, _text: world.seen.update({what: value}),
        )
        load = Services("web", Services.Params(count=COUNT), context)
        group.start_soon(load.run, world.operations.append)
        print(json.dumps({"began": await world.well()}), flush=True)
        for lie in LIES:
            try:
                line = {"lie": lie.__name__, **await lie(world)}
            except (WaitTimeoutError, AssertionError) as error:
                line = {"lie": lie.__name__, "error": str(error)}
            print(json.dumps(line), flush=True)
        group.cancel_scope.cancel()
    await load.clean_up()
    kinds = [operation.value for operation in world.operations]
    print(json.dumps({"operations": {kind: kinds.count(kind) for kind in KINDS_OF_WRONG}}), flush=True)


if __name__ == "__main__":
    anyio.run(main)
