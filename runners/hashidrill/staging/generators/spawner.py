"""What every spawner of workers does, and how a worker introduces itself."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from typing import Protocol

from hashidrill.core.errors import DatacenterError
from hashidrill.core.util import foreign
from hashidrill.staging.generators.remote import Introduction
from hashidrill.staging.generators.worker import PROTOCOL


class SpawnError(DatacenterError):
    """Workers that could not be started; the message says where and why. None is left."""


class Spawner(Protocol):
    """Starts workers and takes them away."""

    async def spawn(self, runner: str, workers: int) -> Sequence[Introduction]:
        """All of them, or none: raises SpawnError. `runner` is the runner's certificate."""

    async def why_gone(self, worker: Introduction) -> str:
        """What the scheduler knows of one that is lost; "" for nothing."""

    async def take_away(self) -> None:
        """What is left of them. Idempotent; raises nothing that would hide why the run ended."""


def introduction(name: str, said: bytes | str, on: str = "") -> Introduction:
    """From the first line of a worker's output. Raises SpawnError where it is none, or of another version."""
    where = f"worker {name}" + (f" on {on}" if on else "")
    try:
        line = foreign.parse(said)
        version, protocol = line["hashidrill"], line["protocol"]
        found = Introduction(name, line["address"], int(line["port"]), line["session"], line["certificate"], on)
    except (ValueError, KeyError, TypeError):
        raise SpawnError(f"{where}: it said {said[:200]!r} and no introduction of a hashidrill worker") from None
    ours = metadata.version("hashidrill")
    if (version, protocol) != (ours, PROTOCOL):
        raise SpawnError(
            f"{where}: hashidrill {version} with protocol {protocol} is installed there, and this is {ours} with"
            f" protocol {PROTOCOL}: install the same version there"
        )
    return found
