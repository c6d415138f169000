"""Starts workers: the protocol of spawners, and the spawner that starts them as processes of this machine.

Workers as the allocations of one batch job of Nomad: spread over its clients, at most one on each.

A worker needs Python with hashidrill, of this version, on its client, because compiled libraries cannot be sent to
an unknown machine. The client's meta names that Python:

    nomad node meta apply -node-id NODE hashidrill_python=/opt/hashidrill/bin/python

The job holds no secrets: the runner's certificate is public, and all else goes over the stream. The job is never
restarted or placed again: a lost worker makes the run INVALID. Paths and fields of Nomad 1.10.5.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from hashidrill.core.errors import DatacenterError
from hashidrill.core.util import safe_json
from hashidrill.core.util.processes import python_path
from hashidrill.core.util.redaction import without_secrets
from hashidrill.staging.attach.http import Login, UnansweredError, Wire
from hashidrill.staging.carriers.nomad_jobs import ENDED, META_RUN, Jobs, refusals, told
from hashidrill.staging.generators.remote import Introduction
from hashidrill.staging.generators.worker import FOLDER, PROTOCOL

PREFIX = "hashidrill-generators-"
META_PYTHON = "hashidrill_python"
TASK = "worker"
PORT = "stream"
WITHIN_S = 60.0
"""Seconds for all workers to run and to introduce themselves."""
_LOOK_EVERY_S = 0.3
_CPU_MHZ, _MEMORY_MB = 500, 300
_LOG_MB = 10
_KILL_AFTER_NS = 20_000_000_000


def job_id(run_id: str) -> str:
    return f"{PREFIX}{run_id}"


def job_of(run_id: str, workers: int, runner: str, *, lease_s: float, datacenters: Sequence[str]) -> dict[str, Any]:
    """The job's specification, in the JSON of Nomad's API. The job holds nothing secret."""
    task = {
        "Name": TASK,
        "Driver": "raw_exec",
        "KillSignal": "SIGTERM",
        "KillTimeout": _KILL_AFTER_NS,
        "Config": {"command": f"${{meta.{META_PYTHON}}}", "args": ["-P", "-m", "hashidrill.staging.generators.worker"]},
        "Env": {"HASHIDRILL_RUNNER": runner, "HASHIDRILL_LEASE_S": f"{lease_s:g}"},
        "Resources": {"CPU": _CPU_MHZ, "MemoryMB": _MEMORY_MB},
        "LogConfig": {"MaxFiles": 1, "MaxFileSizeMB": _LOG_MB},
        "RestartPolicy": {"Attempts": 0, "Mode": "fail"},
    }
    group = {
        "Name": "workers",
        "Count": workers,
        "Tasks": [task],
        "Networks": [{"Mode": "host", "DynamicPorts": [{"Label": PORT}]}],
        "RestartPolicy": {"Attempts": 0, "Mode": "fail"},
        "ReschedulePolicy": {"Attempts": 0, "Unlimited": False},
        "Constraints": [
            {"Operand": "distinct_hosts", "RTarget": "true"},
            {"LTarget": f"${{meta.{META_PYTHON}}}", "Operand": "is_set"},
        ],
        "Spreads": [{"Attribute": "${node.unique.id}", "Weight": 100}],
        "EphemeralDisk": {"SizeMB": 3 * _LOG_MB},
    }
    return {
        "ID": job_id(run_id),
        "Name": job_id(run_id),
        "Type": "batch",
        "Datacenters": list(datacenters),
        "Meta": {META_RUN: run_id},
        "TaskGroups": [group],
    }


class NomadSpawner:
    """The job of one run. `wire` calls Nomad's API with the attached datacenter's login."""

    def __init__(self, wire: Wire, run_id: str, *, lease_s: float, within_s: float = WITHIN_S) -> None:
        self._wire, self._jobs, self._name = wire, Jobs(wire, SpawnError), job_id(run_id)
        self._run_id, self._lease_s, self._within_s = run_id, lease_s, within_s
        self._submitted = False
        self._allocations: dict[str, str] = {}
        """Keyed by the worker's name."""

    @classmethod
    def of(cls, fleet: Mapping[str, Any], run_id: str) -> NomadSpawner:
        """Raises AttachError for TLS files that cannot be used."""
        return cls(Wire(Login.received(fleet["login"])), run_id, lease_s=fleet["lease_s"])

    async def spawn(self, runner: str, workers: int) -> Sequence[Introduction]:
        """Starts all workers, or none: raises SpawnError."""
        try:
            datacenters = await check_room(self._wire, workers)
            job = job_of(self._run_id, workers, runner, lease_s=self._lease_s, datacenters=datacenters)
            self._submitted = True  # even if no answer comes
            try:
                await self._jobs.submit(job)
            except SpawnError:
                self._submitted = False  # it was refused: an existing job of that name is foreign
                raise
            return await self._introduced(workers)
        except UnansweredError as error:
            raise SpawnError(str(error)) from None

    async def _introduced(self, workers: int) -> list[Introduction]:
        until_s = time.monotonic() + self._within_s
        found: dict[str, Introduction] = {}
        last = "no allocation was placed"
        while len(found) < workers:
            if time.monotonic() > until_s:
                why = refusals(await self._jobs.evaluations(self._name)) or {}
                counted = ", ".join(f"{what} ({n} clients)" for what, n in why.items())
                raise SpawnError(
                    f"{len(found)} of {workers} workers run within {self._within_s:g}s: {last}"
                    + (f"; Nomad could not place all: {counted}" if counted else "")
                )
            await asyncio.sleep(_LOOK_EVERY_S)
            for allocation in await self._jobs.allocations(self._name):
                if allocation["ID"] in self._allocations.values():
                    continue
                if allocation["ClientStatus"] in ENDED:
                    raise SpawnError(f"a worker on {allocation['NodeName']} did not start: {told(allocation)}")
                last = f"{allocation['NodeName']} is {allocation['ClientStatus']}"
                if allocation["ClientStatus"] == "running":
                    line, whole, _ = (await self._jobs.log(allocation["ID"], 0, TASK)).partition(b"\n")
                    if whole:
                        name = f"w{len(found) + 1}"
                        self._allocations[name] = allocation["ID"]
                        found[name] = introduction(name, line, allocation["NodeName"])
        return list(found.values())

    async def why_gone(self, worker: Introduction) -> str:
        """Nomad's information about the worker's allocation."""
        with contextlib.suppress(UnansweredError, SpawnError, KeyError):
            status, said = await self._jobs.status(self._allocations[worker.name])
            return f"its allocation is {status}: {said}"
        return ""

    async def take_away(self) -> None:
        """Stops the job and removes it. If that fails, the lease ends each worker, and heal removes the job."""
        if self._submitted:
            with contextlib.suppress(UnansweredError, SpawnError):
                await self._jobs.purge(self._name)
            self._submitted = False
        await self._wire.aclose()


async def check_room(wire: Wire, workers: int) -> list[str]:
    """The datacenters of the clients that can run a worker. Raises SpawnError if there are too few."""
    jobs = Jobs(wire, SpawnError)
    nodes = await jobs.ask("GET", "/v1/nodes", needs="node:read")
    lacks: dict[str, str] = {}
    able: dict[str, str] = {}
    for stub in nodes:
        if stub["Status"] != "ready" or stub["SchedulingEligibility"] != "eligible":
            lacks[stub["Name"]] = "is not ready and eligible"
            continue
        if not (stub.get("Drivers") or {}).get("raw_exec", {}).get("Healthy"):
            lacks[stub["Name"]] = "has no healthy driver raw_exec"
            continue
        node = await jobs.ask("GET", f"/v1/node/{stub['ID']}", needs="node:read")
        if not (node.get("Meta") or {}).get(META_PYTHON):
            lacks[stub["Name"]] = f"has no {META_PYTHON} in its meta"
            continue
        able[stub["Name"]] = stub["Datacenter"]
    if len(able) < workers:
        said = "; ".join(f"{name} {why}" for name, why in sorted(lacks.items()))
        raise SpawnError(
            f"{workers} workers need as many Nomad clients that can run one, but {len(able)} of {len(nodes)} can"
            f" ({said}): install hashidrill there, allow raw_exec, and set its path by"
            f" `nomad node meta apply -node-id NODE {META_PYTHON}=/opt/hashidrill/bin/python`, or use fewer workers"
        )
    return sorted(set(able.values()))


async def remove_left(wire: Wire, run_id: str) -> list[str]:
    """Removes the worker jobs of a killed run, and returns their names; the workers have ended by themselves."""
    return await Jobs(wire).remove(job_id(run_id))


class SpawnError(DatacenterError):
    """Workers could not be started; the message says where and why. No worker is left."""


class Spawner(Protocol):
    """Starts workers and takes them away."""

    async def spawn(self, runner: str, workers: int) -> Sequence[Introduction]:
        """Starts all workers, or none: raises SpawnError. `runner` is the runner's certificate."""

    async def why_gone(self, worker: Introduction) -> str:
        """The scheduler's information about a lost worker; "" for none."""

    async def take_away(self) -> None:
        """Removes all that is left of the workers. Idempotent; raises nothing that would hide why the run ended."""


def introduction(name: str, said: bytes | str, on: str = "") -> Introduction:
    """Parses the first line of a worker's output. Raises SpawnError if it is not one, or is of another version."""
    where = f"worker {name}" + (f" on {on}" if on else "")
    try:
        line = safe_json.parse(said)
        version, protocol = line["hashidrill"], line["protocol"]
        found = Introduction(name, line["address"], int(line["port"]), line["session"], line["certificate"], on)
    except (ValueError, KeyError, TypeError):
        raise SpawnError(f"{where}: it printed {said[:200]!r} instead of a worker's introduction") from None
    ours = metadata.version("hashidrill")
    if (version, protocol) != (ours, PROTOCOL):
        raise SpawnError(
            f"{where}: hashidrill {version} with protocol {protocol} is installed there, but this is {ours} with"
            f" protocol {PROTOCOL}: install the same version there"
        )
    return found


_INTRODUCED_WITHIN_S = 30.0
_GONE_WITHIN_S = 15.0
"""Time for its loads to clean up the datacenter."""


class LocalSpawner:
    """Each worker is a process in a session of its own, and ends at the end of its lease at the latest."""

    def __init__(self, *, lease_s: float) -> None:
        self._lease_s = lease_s
        self._processes: dict[str, asyncio.subprocess.Process] = {}

    async def spawn(self, runner: str, workers: int) -> Sequence[Introduction]:
        environment = {
            **without_secrets(os.environ),
            "PYTHONPATH": python_path(),
            "HASHIDRILL_RUNNER": runner,
            "HASHIDRILL_LEASE_S": f"{self._lease_s:g}",
        }
        for number in range(1, workers + 1):
            self._processes[f"w{number}"] = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                "hashidrill.staging.generators.worker",
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        return [await self._introduced(name, process) for name, process in self._processes.items()]

    async def _introduced(self, name: str, process: asyncio.subprocess.Process) -> Introduction:
        line = b""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_INTRODUCED_WITHIN_S):
                line = await process.stdout.readline() if process.stdout is not None else b""
        return introduction(name, line, f"this machine (pid {process.pid})")

    async def why_gone(self, worker: Introduction) -> str:
        process = self._processes[worker.name]
        return "" if process.returncode is None else f"its process ended with exit code {process.returncode}"

    async def take_away(self) -> None:
        left = [process for process in self._processes.values() if process.returncode is None]
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        for process in left:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GONE_WITHIN_S):
                    await process.wait()
            if process.returncode is None:
                process.kill()
                await process.wait()
        for process in self._processes.values():
            _remove_folder(process.pid)


def _remove_folder(pid: int) -> None:
    """Removes the folder that a killed worker left."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER}{pid}-*"):
        shutil.rmtree(folder, ignore_errors=True)
