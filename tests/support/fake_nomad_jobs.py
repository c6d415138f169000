"""A Nomad whose clients run jobs of ours, in memory and in virtual time: placement, logs, signals, exec, removal.

What a job's program would do on the host, `FakeHostOfNomad` does by what the program is told: it says `ready`, applies
at the first SIGUSR1, and reverts at SIGTERM or when the lease is over. `plant` has the defects that a test wants.
"""

import asyncio
import base64
import json
import re
import zlib
from contextlib import asynccontextmanager
from functools import partial

import anyio
import httpx2

from carried_hosts import FakeShell, argument
from hashidrill.core.errors import FaultError
from hashidrill.staging.attach.http import Wire
from hashidrill.staging.carriers.nomad import by_nomad

CAPABILITIES = (
    "list-jobs",
    "read-job",
    "submit-job",
    "alloc-lifecycle",
    "read-logs",
    "alloc-exec",
    "alloc-node-exec",
)


def now_s():
    return asyncio.get_running_loop().time()


class FakeAllocation:
    """One job of ours on its client."""

    def __init__(self, number, job, node, host, plant):
        self.id, self.job, self.node, self.host, self.plant = f"alloc-{number}", job, node, host, plant
        packed = re.search(r"b64decode\('([^']*)'\)", job["TaskGroups"][0]["Tasks"][0]["Config"]["args"][1]).group(1)
        self.program = zlib.decompress(base64.b64decode(packed)).decode()
        self.told = argument(self.program)
        self.status, self.events, self.printed = "running", [], b""
        self.signals, self.asked_s, self.began_s = [], None, now_s()
        self.say(event="ready")

    @property
    def holds(self):
        return "kind" in self.told

    def say(self, **line):
        self.printed += json.dumps(line).encode() + b"\n"

    def log(self, offset):
        self.tick()
        printed = self.printed
        if "log truncated" in self.plant and b"applied" in printed:
            printed = printed.replace(b'"applied"', b'"appl')
        return printed[offset:]

    def tick(self):
        """What the program did by itself meanwhile."""
        last = self.began_s if self.asked_s is None else self.asked_s
        if self.status == "running" and now_s() - last >= self.told["lease_s"]:
            self.end("lease")

    def signal(self, name):
        self.tick()
        if self.status != "running":
            return httpx2.Response(500, text="Task not running")
        if f"{name} lost" in self.plant:
            self.plant.discard(f"{name} lost")
            return httpx2.Response(200, json={})
        self.signals.append((now_s(), name))
        if name == "SIGTERM":
            self.end("SIGTERM")
        elif self.asked_s is None and self.holds:
            self.asked_s = now_s()
            self._apply()
        else:
            self.asked_s = now_s()
        return httpx2.Response(200, json={})

    def _apply(self):
        if self.host.refuses or not self.told["args"]:
            self.say(event="refused", name="x", why=self.host.refuses or "no arguments were handed over")
            self.status = "failed"
        else:
            self.host.in_force[self.told["id"]] = self.host.notes[self.told["id"]] = self.told
            self.say(event="applied", proof="read back", figures={})

    def end(self, why):
        if self.holds and self.asked_s is None:
            self.say(event="refused", name="unasked", why=f"the runner did not ask for it: {why}")
        elif self.holds:
            self.host.in_force.pop(self.told["id"], None)
            self.host.notes.pop(self.told["id"], None)
            self.say(event="reverted", why=why, by="agent", proof="gone")
        self.status = "complete"

    def vanish(self):
        """The client is gone: its servers call the allocation lost, and the host reverts by itself."""
        self.status = "lost"
        self.host.in_force.clear()
        self.host.notes.clear()

    def as_json(self):
        self.tick()
        events = [{"DisplayMessage": text} for text in self.events or ["Started"]]
        return {
            "ID": self.id,
            "NodeID": self.node["ID"],
            "NodeName": self.node["Name"],
            "ClientStatus": "running" if "client cut off" in self.plant else self.status,
            "TaskStates": {"carrier": {"Events": events}},
        }


class FakeNomad:
    """`plant`: never placed, two allocations, other node, start fails, log truncated, SIGUSR1 lost, SIGTERM lost,
    client cut off (from the servers: neither signals nor programs get there), restarts (from the second look at its
    nodes on), over at once (its program ended before Nomad told of it), down at once (a client goes down after it was
    looked at and before the job was evaluated).

    A job for a client that is not ready is placed nowhere, and not when the client comes back either: only when it is
    evaluated once more, as Nomad 1.10.5 has it for system batch jobs."""

    def __init__(self, *hosts, lacking=()):
        """`hosts`: (name, address) of clients."""
        self.nodes = {address: self._node(name, address) for name, address in hosts}
        self.hosts = {address: FakeShell() for address in self.nodes}
        self.jobs, self.allocations, self.requests, self.plant = {}, [], [], set()
        self.submitted = []
        self.lacking, self.silent = set(lacking), False
        self.exec_refuses = ""
        """Why the host refuses what is handed to a job."""
        self.looks = 0
        """How often its nodes were listed."""

    @staticmethod
    def _node(name, address):
        return {
            "ID": f"node-{name}",
            "Name": name,
            "Address": address,
            "Status": "ready",
            "Datacenter": "dc1",
            "SchedulingEligibility": "eligible",
            "Drain": False,
            "CreateIndex": 7,
            "Drivers": {"raw_exec": {"Detected": True, "Healthy": True, "HealthDescription": "Healthy"}},
        }

    def faults(self):
        return [one for one in self.allocations if one.holds]

    def transport(self):
        return httpx2.MockTransport(self._answer)

    def reaching(self):
        """In the place of `by_nomad`."""
        return partial(
            by_nomad, wired=lambda login: Wire(login, transport=self.transport()), dialled=lambda _: self._dialler()
        )

    @asynccontextmanager
    async def _dialler(self):
        yield self.dial

    async def dial(self, allocation, command):
        if "client cut off" in self.plant:
            raise FaultError("Nomad's exec is not available: No path to node")
        one = next(one for one in self.allocations if one.id == allocation)
        if one.status != "running":
            raise FaultError("Nomad's exec is not available: task is not running")
        return FakeStream(one, self.exec_refuses)

    def _answer(self, request):
        self.requests.append(request)
        if self.silent:
            raise httpx2.ConnectError("connection refused", request=request)
        path, method = request.url.path, request.method
        last = path.rpartition("/")[2]
        if path.startswith("/v1/client/"):
            return self._on_client(request, path, last)
        if path.startswith("/v1/acl/"):
            return self._allowed(path)
        if method == "POST" and path == "/v1/jobs":
            return self._submit(json.loads(request.content)["Job"])
        if method == "POST" and last == "evaluate":
            self._evaluate(self.jobs[path.split("/")[3]])
            return httpx2.Response(200, json={"EvalID": "e"})
        if method == "DELETE":
            job = self.jobs.pop(last, None)
            for one in self.allocations:
                if one.job is job and one.status == "running":
                    one.end("SIGTERM")
            return httpx2.Response(404 if job is None else 200, json={})
        return httpx2.Response(200, json=self._looked(path, last, request.url.params))

    def _on_client(self, request, path, last):
        if "client cut off" in self.plant:
            return httpx2.Response(404, text="No path to node")
        if path.endswith("/signal"):
            one = next(one for one in self.allocations if one.id == path.split("/")[4])
            return one.signal(json.loads(request.content)["Signal"])
        one = next(one for one in self.allocations if one.id == last)
        return httpx2.Response(200, content=one.log(int(request.url.params["offset"])))

    def _allowed(self, path):
        if path == "/v1/acl/token/self":
            return httpx2.Response(200, json={"Type": "client", "Policies": ["carrier"]})
        may = [one for one in CAPABILITIES if one not in self.lacking]
        rules = {"Namespaces": [{"Name": "default", "Capabilities": may}], "Node": {"Policy": "read"}}
        return httpx2.Response(200, json={"RulesJSON": rules})

    def _submit(self, job):
        [group] = job["TaskGroups"]
        if group["EphemeralDisk"]["SizeMB"] < 10:  # as Nomad 1.10.5
            return httpx2.Response(500, text="minimum DiskMB value is 10")
        self.jobs[job["ID"]] = job
        self.submitted.append(job)
        self._evaluate(job)
        return httpx2.Response(200, json={"EvalID": "e"})

    def _evaluate(self, job):
        if "down at once" in self.plant:
            self.plant.discard("down at once")
            self._node_of(job)["Status"] = "down"
        if "never placed" in self.plant or any(one.job is job for one in self.allocations):
            return
        if self._node_of(job)["Status"] == "ready":
            self.place(job)

    def _node_of(self, job):
        [constraint] = job["TaskGroups"][0]["Constraints"]
        return next(one for one in self.nodes.values() if one["ID"] == constraint["RTarget"])

    def place(self, job):
        node = self._node_of(job)
        if "other node" in self.plant:
            node = next(one for one in self.nodes.values() if one is not node)
        for _ in range(2 if "two allocations" in self.plant else 1):
            host = self.hosts[node["Address"]]
            one = FakeAllocation(len(self.allocations), job, node, host, self.plant)
            if "start fails" in self.plant:
                one.status, one.events = (
                    "failed",
                    ['Driver Failure: exec: "python3": executable file not found in $PATH'],
                )
            if "over at once" in self.plant:
                one.status = "complete"
            self.allocations.append(one)

    def _looked(self, path, last, params):
        if path.startswith("/v1/node/"):
            return next(one for one in self.nodes.values() if one["ID"] == last)
        if path.startswith("/v1/allocation/"):
            return next(one for one in self.allocations if one.id == last).as_json()
        if last == "allocations":
            return [one.as_json() for one in self.allocations if one.job["ID"] == path.split("/")[3]]
        nodes = list(self.nodes.values())
        if last == "nodes":
            self.looks += 1
            if "restarts" in self.plant and self.looks > 1:
                nodes = [one | {"Status": "initializing"} for one in nodes]
        known = {
            "nodes": nodes,
            "jobs": [{"ID": name} for name in self.jobs if name.startswith(params.get("prefix", ""))],
            "evaluations": [
                {
                    "Status": "blocked",
                    "FailedTGAllocs": {
                        "host": {"DimensionExhausted": {"memory": 1}},
                    },
                }
            ],
        }
        return known[last]


class Said:
    """A program that says one line."""

    def __init__(self, line):
        self._lines = [json.dumps(line).encode() + b"\n"]

    async def receive(self):
        return self._lines.pop() if self._lines else b""

    async def close(self):
        pass


class FakeStream:
    """A program by exec, which a FakeShell runs; what is handed over goes to the job's own program."""

    def __init__(self, allocation, refuses=""):
        self._allocation, self._refuses = allocation, refuses
        self._host, self._came, self._session = allocation.host, b"", None
        self._there = anyio.Event()
        self._size = None

    async def send(self, message):
        said = message["stdin"]
        if said.get("close"):
            if self._session is not None:
                await self._session.close()
            return
        self._came += base64.b64decode(said["data"])
        if self._size is None and len(self._came) >= 9:
            self._size, self._came = int(self._came[:9]), self._came[9:]
        if self._session is None and self._size is not None and len(self._came) >= self._size:
            text, self._came = self._came[: self._size].decode(), self._came[self._size :]
            self._session = await (self._handed(text) if "args" in argument(text) else self._host.start(text))
            self._there.set()
        while self._session is not None and b"\n" in self._came:
            line, _, self._came = self._came.partition(b"\n")
            await self._session.send(line)

    async def _handed(self, text):
        if not self._refuses:
            self._allocation.told |= argument(text)
        return Said({"event": "refused", "why": self._refuses} if self._refuses else {"event": "handed"})

    async def receive(self):
        await self._there.wait()
        line = await self._session.receive()
        if not line:
            return {"exited": True, "result": {"exit_code": 0}}
        return {"stdout": {"data": base64.b64encode(line).decode()}}

    async def close(self):
        pass
