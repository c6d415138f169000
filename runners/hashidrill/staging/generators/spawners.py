"""Starts workers: the protocol of spawners, and the spawner that starts them as processes of this machine."""

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Protocol

from hashidrill.core.errors import DatacenterError
from hashidrill.core.util import safe_json
from hashidrill.core.util.processes import python_path
from hashidrill.core.util.redaction import without_secrets
from hashidrill.staging.generators.remote import Introduction
from hashidrill.staging.generators.worker import FOLDER, PROTOCOL


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
