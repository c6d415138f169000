"""The agents of the full stack on loopback addresses, without hashidrill's sandbox, hosts and daemons.

python agents_by_hand.py FOLDER CONSUL NOMAD VAULT [UID]: the same configurations, one address of 127.0.1.0/24 each,
started in the same order. Prints one JSON line: seconds to ready, memory by program. UID: whom the agents run as, since
a Nomad client that is root mounts.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import anyio
import httpx2

from full_stack import sums
from hashidrill.core.errors import FaultError
from hashidrill.core.experiment.model import DatacenterSpec, services_of
from hashidrill.core.protocols.capabilities import ApiAnswer
from hashidrill.core.protocols.service import Site, Workspace

SPEC = {
    "consul": {"servers": 3, "clients": 2, "config": {"performance": {"raft_multiplier": 1}}},
    "nomad": {"servers": 3, "clients": 2},
    "vault": {"servers": 3},
    "ready_within": "120s",
}


class HandHost:
    """As much of a host as a service asks when it waits for its agents; its one capability is their HTTP API."""

    def __init__(self, name, address, roles):
        self.name, self.address, self.roles = name, address, roles
        self.urls = {}

    def use(self, _capability):
        return self

    async def api(self, method, path, *, params=None, body=None, timeout_s=5.0, agent=""):
        try:
            async with httpx2.AsyncClient(timeout=timeout_s, trust_env=False) as client:
                answer = await client.request(method, self.urls[agent] + path, params=params, content=body)
        except httpx2.HTTPError as error:
            raise FaultError(str(error)) from None
        return ApiAnswer(answer.status_code, answer.content, dict(answer.headers))


class ByHand:
    """As much of `hashidrill.core.protocols.abc.Hosts` as a service asks when it waits for its agents."""

    def __init__(self, folder, binaries, uid):
        self.spec = DatacenterSpec.model_validate(SPEC)
        self.services = services_of(self.spec)
        self.folder, self.binaries, self.uid = folder, binaries, uid
        self.agents = []
        roles = {}
        for service in self.services:
            for place in service.places():
                roles.setdefault(place.host, {})[service.name] = place.role
        placed = enumerate(roles.items(), 11)
        self.hosts = [HandHost(name, f"127.0.1.{n}", has) for n, (name, has) in placed]

    def all_hosts(self):
        return self.hosts

    async def run(self):
        began = time.monotonic()
        for service in self.services:
            mine = self.folder / "services" / service.name
            mine.mkdir(parents=True)
            service.open(Workspace(mine, lambda *_: None))
        async with anyio.create_task_group() as group:
            done = {service.name: anyio.Event() for service in self.services}
            for service in self.services:
                group.start_soon(self._ready, service, done)
        return time.monotonic() - began

    async def _ready(self, service, done):
        for name in done.keys() & {*service.after}:
            await done[name].wait()
        for place in service.places():
            self._start(service, place)
        await service.wait_ready(self, within_s=self.spec.ready_within, agents_run=self._run)
        done[service.name].set()

    def _start(self, service, place):
        [host] = [one for one in self.hosts if one.name == place.host]
        base = self.folder / host.name / service.name
        base.mkdir(parents=True)
        config_file = base / "config.json"
        addresses = {one.name: one.address for one in self.hosts}
        site = Site(
            host.name, place.role, host.address, base / "data", config_file, self.binaries, addresses, host.roles
        )
        plan = service.agent(site)
        host.urls[service.name] = plan.url
        text = json.dumps(plan.config).replace("0.0.0.0", host.address).replace("127.0.0.1", host.address)
        config_file.write_text(text.replace('"eth0"', '"lo"'))
        site.data.mkdir()
        for path in (base, config_file, site.data):
            os.chown(path, self.uid, self.uid)
        environment = {**os.environ, **plan.environment, "CONSUL_HTTP_ADDR": f"http://{host.address}:8500"}
        with (base / "log").open("wb") as log:
            agent = subprocess.Popen(
                plan.command,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=base,
                user=self.uid,
                group=self.uid,
                extra_groups=[],
            )
        self.agents.append((agent, base))

    async def _run(self):
        for agent, base in self.agents:
            assert agent.poll() is None, (base / "log").read_text()[-2000:]

    def end(self):
        for agent, _ in self.agents:
            agent.kill()
            agent.wait()


def main():
    folder, *paths = (Path(word) for word in sys.argv[1:5])
    binaries = {path.name: path for path in paths}
    stack = ByHand(folder, binaries, int(sys.argv[5]) if len(sys.argv) > 5 else os.getuid())
    try:
        ready_s = anyio.run(stack.run)
        memory = sums((agent.pid, str(agent.args[0])) for agent, _ in stack.agents)
    finally:
        stack.end()
    print(json.dumps({"ready_s": round(ready_s, 1), "memory_mb": memory}), flush=True)


if __name__ == "__main__":
    main()
