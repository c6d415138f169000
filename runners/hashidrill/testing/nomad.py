"""A Nomad datacenter in memory, for tests of its faults: its servers act on requests, and observers see the results.

As on a real node, tasks fail if the node's folder of allocations, a directory on disk, is not writable. A killed
task restarts until its restarts are used up. A registered job is placed at once, on the nodes in turn.
"""

from __future__ import annotations

import copy
import itertools
import json
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio

from hashidrill.core.errors import FaultError, SelectorError
from hashidrill.core.protocols.abc import ApiAnswer, Host, Target
from hashidrill.core.protocols.capabilities import (
    AgentApi,
    AgentFiles,
    AgentProcess,
    Capable,
    PacketFilter,
    ProcessControl,
    Processes,
)
from hashidrill.core.protocols.packets import Block, PacketRule
from hashidrill.core.units import seconds
from hashidrill.core.util.raft_archive import SnapshotError, unpack
from hashidrill.core.util.safe_json import parse
from hashidrill.products.nomad.settings import RPC_PORT, data_dir
from hashidrill.products.nomad.tasks import TaskProcess, TaskProcesses
from hashidrill.products.nomad.trial_jobs import PREFIX
from hashidrill.testing.snapshots import archive_of

RESTARTS = 2
_ENDS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGHUP")


class FakeWork:
    """The work that the servers know, and the processes that run. `nodes` are the names and ids of the clients."""

    def __init__(self, nodes: Mapping[str, str]) -> None:
        self.nodes = dict(nodes)
        self.registered: dict[str, dict[str, Any]] = {}
        self.allocs: list[dict[str, Any]] = []
        self.processes: dict[str, tuple[str, TaskProcess]] = {}
        """The node and the process of each allocation that has a process."""
        self.catches: frozenset[int] = frozenset()
        """The signals for which tasks that start from now on have a handler."""
        self._numbers = itertools.count(1)
        self._pids = itertools.count(100)
        self.index = 100

    def register(self, job: Mapping[str, Any]) -> None:
        """Registers a job. Its allocations run at once; running allocations of an earlier version are kept."""
        known = self.registered.get(job["ID"])
        if known is not None and known == {**known, "Stop": False, **job}:
            return
        self.index += 1
        stub = {"Stop": False, "Type": "service", "Meta": None, "CreateIndex": self.index}
        self.registered[job["ID"]] = {**stub, **copy.deepcopy(dict(job)), "JobModifyIndex": self.index}
        if job.get("ParameterizedJob"):
            return
        live = {one["Name"] for one in self.live(job["ID"])}
        names = [f"{job['ID']}.group[{n}]" for n in range(sum(group["Count"] for group in job["TaskGroups"]))]
        for name in names:
            if name not in live:
                self._place(job["ID"], name)

    def _place(self, job: str, name: str) -> None:
        number = next(self._numbers)
        node = list(self.nodes)[number % len(self.nodes)]
        alloc = {
            "ID": f"alloc-{number}",
            "Name": name,
            "JobID": job,
            "NodeName": node,
            "NodeID": self.nodes[node],
            "ClientStatus": "running",
            "DesiredStatus": "run",
            "restarts": 0,
            "TaskStates": {"task": {"Events": []}},
        }
        self.allocs.append(alloc)
        self._start(alloc)

    def _start(self, alloc: Mapping[str, Any]) -> None:
        process = TaskProcess(alloc["ID"], alloc["JobID"], next(self._pids), 7, "S", self.catches)
        self.processes[alloc["ID"]] = (alloc["NodeName"], process)

    def live(self, job: str) -> list[dict[str, Any]]:
        return [one for one in self.allocs if one["JobID"] == job and one["ClientStatus"] == "running"]

    def of_job(self, job: str) -> list[dict[str, Any]]:
        if job not in self.registered:
            return []
        return [one for one in self.allocs if one["JobID"] == job]

    def stop(self, job: str, *, purge: bool) -> None:
        """Stops a job. Raises LookupError for an unknown job."""
        self.registered[job]["Stop"] = True
        for alloc in self.live(job):
            alloc |= {"ClientStatus": "complete", "DesiredStatus": "stop"}
            self.processes.pop(alloc["ID"], None)
        if purge:
            del self.registered[job]

    def signalled(self, alloc_id: str, name: str) -> None:
        """Signals a task. Raises LookupError for an allocation that is unknown or does not run."""
        alloc = next((one for one in self.allocs if one["ID"] == alloc_id), None)
        if alloc is None or alloc_id not in self.processes:
            raise LookupError(f"allocation {alloc_id}")
        node, process = self.processes[alloc_id]
        alloc["TaskStates"]["task"]["Events"].append({"Type": "Signaling"})
        number = signal.Signals[name]
        if name in ("SIGSTOP", "SIGCONT"):
            state = "T" if name == "SIGSTOP" else "S"
            self.processes[alloc_id] = (node, replace(process, state=state))
        elif name in _ENDS and number not in process.catches:
            self._killed(alloc)

    def _killed(self, alloc: dict[str, Any]) -> None:
        del self.processes[alloc["ID"]]
        alloc["restarts"] += 1
        if alloc["restarts"] <= RESTARTS:
            self._start(alloc)
        else:
            alloc |= {"ClientStatus": "failed"}
            self._place(alloc["JobID"], alloc["Name"])

    def on(self, node: str) -> Sequence[TaskProcess]:
        return [process for where, process in self.processes.values() if where == node]

    def saved(self) -> bytes:
        state = json.dumps({"jobs": self.registered, "allocs": self.allocs}).encode()
        return archive_of(state, index=self.index)

    def restore(self, packed: bytes) -> None:
        """Restores the servers' state; the nodes' processes stay unchanged. Raises SnapshotError."""
        state = parse(unpack(packed, "Nomad").state)
        self.registered, self.allocs = state["jobs"], state["allocs"]
        self.index += 1


_WRITABLE = 0o200


class FakeNomadHost(Capable):
    """A host with an agent of Nomad in that role."""

    def __init__(self, name: str, address: str, role: str, world: FakeNomad) -> None:
        super().__init__()
        self.parts |= dict.fromkeys((AgentApi, AgentFiles, PacketFilter, ProcessControl, Processes), self)
        if role == "client":
            self.parts[TaskProcesses] = self
        self.name, self.address, self.world = name, address, world
        self.roles["nomad"] = role
        self.data = world.root / name
        (data_dir(self.data) / "alloc").mkdir(parents=True)
        self.answers = True
        self.config: dict[str, Any] = {"name": name, "log_level": "INFO", "server": {"heartbeat_grace": "3s"}}
        self.running: AgentProcess | None = AgentProcess(7, 7, "S")
        self._read = dict(self.config)
        """The configuration that its process has read."""
        self.tables: dict[str, Sequence[PacketRule]] = {}

    @property
    def cut_off(self) -> bool:
        """Whether its packet rules drop what it sends to every server."""
        servers = {host.address for host in self.world.hosts.values() if host.roles["nomad"] == "server"}
        rules = [rule for table in self.tables.values() for rule in table if isinstance(rule, Block)]
        return any(
            rule.chain == "output" and rule.port in (None, RPC_PORT) and servers <= {*rule.addresses} for rule in rules
        )

    async def set_packet_rules(self, table: str, rules: Sequence[PacketRule]) -> None:
        self.tables[table] = rules

    async def clear_packet_rules(self, table: str) -> None:
        self.tables.pop(table, None)

    async def task_processes(self) -> Sequence[TaskProcess]:
        return self.world.work.on(self.name)

    async def agent_config(self, agent: str) -> dict[str, Any]:  # noqa: ARG002 - there is one agent a host
        return json.loads(json.dumps(self.config))  # type: ignore[no-any-return]

    async def set_agent_config(self, agent: str, config: Mapping[str, Any]) -> None:  # noqa: ARG002 - there is one
        self.config = dict(config)

    async def agent_process(self, agent: str) -> AgentProcess | None:  # noqa: ARG002 - there is one agent a host
        return self.running

    async def agent_answers(self, agent: str, timeout_s: float) -> bool:  # noqa: ARG002 - there is one agent a host
        return self.answers and self.running is not None

    async def stop_agent(self, agent: str, *, within_s: float = 15.0) -> None:  # noqa: ARG002 - it ends at once
        self.running = None
        if self.world.leading == self.name:
            others = [one.name for one in self.world.hosts.values() if one.running and one.roles["nomad"] == "server"]
            self.world.leading, self.world.term = others[0] if others else None, self.world.term + 1

    async def start_agent(self, agent: str) -> None:  # noqa: ARG002 - there is one agent a host
        if self.running is None:
            self.world.starts += 1
            self.running, self._read = AgentProcess(7, 7 + self.world.starts, "S"), dict(self.config)

    @property
    def shown(self) -> dict[str, Any]:
        """Its configuration, as Go has it: names in camel case, durations in nanoseconds."""
        grace = seconds(self._read["server"]["heartbeat_grace"])
        return {"LogLevel": self._read["log_level"], "Server": {"HeartbeatGrace": int((grace or 0) * 1e9)}}

    async def api(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        timeout_s: float = 5.0,  # noqa: ARG002 - no time passes here
        agent: str = "",  # noqa: ARG002 - there is one agent a host
    ) -> ApiAnswer:
        if not self.answers or self.running is None:
            raise FaultError(f"{self.name}: {method} {path}: no answer")
        if path == "/v1/operator/snapshot":
            return self.world.snapshot(method, body)
        return self.world.answer(self, method, path, dict(params or {}), json.loads(body) if body else None)


class FakeNomad:
    """Three servers and two clients (hashidrill.core.protocols.abc.Hosts). `running` counts the allocations of each
    node, by the node's id.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.artifacts = root / "artifacts"
        self.starts = 0
        names = [*(f"nomad-{n}" for n in (1, 2, 3)), "node-1", "node-2"]
        self.hosts = {
            name: FakeNomadHost(name, f"10.73.0.{11 + n}", "server" if "nomad" in name else "client", self)
            for n, name in enumerate(names)
        }
        self.term = 3
        self.leading: str | None = "nomad-1"
        self.nodes = {
            f"id-{name}": {
                "ID": f"id-{name}",
                "Name": name,
                "Status": "ready",
                "CreateIndex": 7,
                "SchedulingEligibility": "eligible",
            }
            for name in names[3:]
        }
        self.running = dict.fromkeys(self.nodes, 2)
        self.jobs: dict[str, list[dict[str, Any]]] = {}
        """The trial jobs of observers; `work` has all other jobs."""
        self.work = FakeWork({name: f"id-{name}" for name in names[3:]})

    # hashidrill.core.protocols.abc.Hosts

    def host(self, name: str) -> Host:
        try:
            return self.hosts[name]
        except KeyError:
            raise SelectorError(f"there is no host {name!r}") from None

    def all_hosts(self) -> Sequence[Host]:
        return list(self.hosts.values())

    def tap(self, client: str) -> Any:
        raise NotImplementedError

    def load_addresses(self) -> Sequence[str]:
        return []

    async def leader(self) -> str | None:
        return self.leading

    def turn(self, what: str) -> anyio.Lock:  # noqa: ARG002 - one fault at a time
        return anyio.Lock()

    def tool(self, name: str) -> Path:
        raise FaultError(f"there is no {name}")

    def target(self, name: str) -> Target:
        host = self.hosts[name]
        return Target(name, host.address, "nomad", "7@7")

    # Nomad's API

    def snapshot(self, method: str, body: bytes | None) -> ApiAnswer:
        if method == "GET":
            return ApiAnswer(200, self.work.saved())
        try:
            self.work.restore(body or b"")
        except SnapshotError as error:
            return ApiAnswer(500, str(error).encode())
        return ApiAnswer(200, b"")

    def _get_allocations(self, _host: Any, _parts: list[str], _params: Any, _body: Any) -> Any:
        return self.work.allocs

    def _get_status(self, _host: Any, _parts: list[str], _params: Any, _body: Any) -> Any:
        return f"{self.hosts[self.leading].address}:{RPC_PORT}" if self.leading else ""

    def answer(self, host: FakeNomadHost, method: str, path: str, params: dict[str, str], body: Any) -> ApiAnswer:
        parts = path.removeprefix("/v1/").split("/")
        if "stale" not in params and self.leading is None and parts[0] != "agent":
            return ApiAnswer(500, b"No cluster leader")
        known = {"x-nomad-knownleader": "false" if self.leading is None else "true"}
        try:
            found = getattr(self, f"_{method.lower()}_{parts[0]}")(host, parts[1:], params, body)
        except LookupError as error:
            return ApiAnswer(404, f"{error} not found".encode())
        return ApiAnswer(200, json.dumps(found).encode(), known)

    def _get_agent(self, host: FakeNomadHost, _parts: list[str], _params: Any, _body: Any) -> Any:
        if host.roles["nomad"] == "client":
            last = "12.5s" if host.cut_off else "300ms"
            return {"stats": {"client": {"last_heartbeat": last, "heartbeat_ttl": "2.4s"}}, "config": host.shown}
        state = "Leader" if host.name == self.leading else "Follower"
        return {"stats": {"raft": {"state": state, "term": str(self.term)}}, "config": host.shown}

    def _seen(self, node: Mapping[str, Any]) -> dict[str, Any]:
        """A node as the servers see it; a silent node is down."""
        return {**node, "Status": "down"} if self.hosts[node["Name"]].cut_off else dict(node)

    def _get_nodes(self, _host: Any, _parts: list[str], _params: Any, _body: Any) -> Any:
        return [self._seen(node) for node in self.nodes.values()]

    def _get_node(self, _host: Any, parts: list[str], _params: Any, _body: Any) -> Any:
        node = self._seen(self.nodes[parts[0]])
        return [{"ClientStatus": "running"}] * self.running[parts[0]] if parts[1:] == ["allocations"] else node

    def _post_node(self, _host: Any, parts: list[str], _params: Any, body: Any) -> Any:
        node, others = self.nodes[parts[0]], [each for each in self.nodes if each != parts[0]]
        if parts[1] == "eligibility":
            node["SchedulingEligibility"] = body["Eligibility"]
        elif body["DrainSpec"] is not None:
            node["SchedulingEligibility"] = "ineligible"
            self.running[others[0]] += self.running[parts[0]]
            self.running[parts[0]] = 0
        elif body["MarkEligible"]:
            node["SchedulingEligibility"] = "eligible"
        return {}

    def _get_operator(self, _host: Any, _parts: list[str], _params: Any, _body: Any) -> Any:
        servers = [host for host in self.hosts.values() if host.roles["nomad"] == "server"]
        return {
            "Servers": [
                {
                    "ID": f"raft-{host.name}",
                    "Node": f"{host.name}.global",
                    "Address": f"{host.address}:4647",
                    "Voter": True,
                }
                for host in servers
            ]
        }

    def _put_operator(self, _host: Any, _parts: list[str], params: dict[str, str], _body: Any) -> Any:
        self.leading = params["id"].removeprefix("raft-")
        self.term += 1
        return {}

    def _put_job(self, _host: Any, _parts: list[str], _params: Any, body: Any) -> Any:
        return {} if self._takes(body["Job"]) else {"FailedTGAllocs": {"trial": {}}}

    def _post_jobs(self, _host: Any, _parts: list[str], _params: Any, body: Any) -> Any:
        """A trial ends at once."""
        if not body["Job"]["ID"].startswith(PREFIX):
            return self.work.register(body["Job"])
        node = self._takes(body["Job"])
        writable = node and (data_dir(self.root / node) / "alloc").stat().st_mode & _WRITABLE
        self.jobs[body["Job"]["ID"]] = [{"ClientStatus": "complete" if writable else "failed"}] if node else []
        return {}

    def _get_jobs(self, _host: Any, _parts: list[str], params: dict[str, str], _body: Any) -> Any:
        return [one for name, one in self.work.registered.items() if name.startswith(params.get("prefix", ""))]

    def _get_job(self, _host: Any, parts: list[str], _params: Any, _body: Any) -> Any:
        if parts[0].startswith(PREFIX):
            return self.jobs[parts[0]]
        return self.work.of_job(parts[0]) if parts[1:] == ["allocations"] else self.work.registered[parts[0]]

    def _delete_job(self, _host: Any, parts: list[str], params: dict[str, str], _body: Any) -> Any:
        if parts[0].startswith(PREFIX):
            del self.jobs[parts[0]]
        else:
            self.work.stop(parts[0], purge=params.get("purge") == "true")
        return {}

    def _post_client(self, _host: Any, parts: list[str], _params: Any, body: Any) -> Any:
        self.work.signalled(parts[1], body["Signal"])
        return {}

    def _takes(self, job: Mapping[str, Any]) -> str:
        """The host of the job's only possible node; "" if that node accepts no jobs."""
        [only] = job["Constraints"]
        node = self.nodes[only["RTarget"]]
        return str(node["Name"]) if node["SchedulingEligibility"] == "eligible" and node["Status"] == "ready" else ""
