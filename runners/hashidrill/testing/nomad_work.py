"""The work of a Nomad datacenter in memory: jobs, allocations, and the processes of their tasks on the nodes.

A killed task runs again until its restarts are used up; what is registered is placed at once, on the nodes in turn.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from hashidrill.core.util.foreign import parse
from hashidrill.core.util.raft_archive import unpack
from hashidrill.products.nomad.tasks import TaskProcess
from hashidrill.testing.snapshots import archived

RESTARTS = 2
_ENDS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGHUP")


class FakeWork:
    """What the servers know of work, and the processes that there are. `nodes` are the names and ids of the clients."""

    def __init__(self, nodes: Mapping[str, str]) -> None:
        self.nodes = dict(nodes)
        self.registered: dict[str, dict[str, Any]] = {}
        self.allocs: list[dict[str, Any]] = []
        self.processes: dict[str, tuple[str, TaskProcess]] = {}
        """The node, and the process, of each allocation that has one."""
        self.catches: frozenset[int] = frozenset()
        """The signals for which tasks that start from now on have a handler."""
        self._numbers = itertools.count(1)
        self._pids = itertools.count(100)
        self.index = 100

    def register(self, job: Mapping[str, Any]) -> None:
        """Its allocations run at once; those of an earlier version that still run are kept."""
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
        """Raises LookupError for a job that is not known."""
        self.registered[job]["Stop"] = True
        for alloc in self.live(job):
            alloc |= {"ClientStatus": "complete", "DesiredStatus": "stop"}
            self.processes.pop(alloc["ID"], None)
        if purge:
            del self.registered[job]

    def signalled(self, alloc_id: str, name: str) -> None:
        """Raises LookupError for an allocation that is not known, or does not run."""
        alloc = next((one for one in self.allocs if one["ID"] == alloc_id), None)
        if alloc is None or alloc_id not in self.processes:
            raise LookupError(f"allocation {alloc_id}")
        node, process = self.processes[alloc_id]
        alloc["TaskStates"]["task"]["Events"].append({"Type": "Signaling"})
        number = signal.Signals[name]
        if name in ("SIGSTOP", "SIGCONT"):
            state = "T" if name == "SIGSTOP" else "S"
            moved = TaskProcess(process.alloc, process.job, process.pid, process.start_time, state, process.catches)
            self.processes[alloc_id] = (node, moved)
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
        """A snapshot file of what the servers know."""
        state = json.dumps({"jobs": self.registered, "allocs": self.allocs}).encode()
        meta = json.dumps({"Version": 1, "Index": self.index, "Term": 2, "Size": len(state)}).encode()
        members = {"meta.json": meta, "state.bin": state}
        sums = "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in members.items())
        return archived({**members, "SHA256SUMS": sums.encode()})

    def restore(self, packed: bytes) -> None:
        """The processes of the nodes are what they were. Raises SnapshotError."""
        state = parse(unpack(packed, "Nomad").state)
        self.registered, self.allocs = state["jobs"], state["allocs"]
        self.index += 1
