"""The engine's process of a game: `python -m hashidrill.gamedays.training.in_sandbox ROOT`.

It differs from hashidrill.lab.runs.in_sandbox to hide the fault from the trainee: every host's disk handles every
operation, whatever the faults need, and the datacenter publishes the places of its agents for the trainee's
shells.
"""

import json
import math
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from hashidrill.core.engine import run as engine
from hashidrill.core.engine.run_state import Run
from hashidrill.core.experiment.model import DatacenterSpec
from hashidrill.core.util.files import write_whole
from hashidrill.core.util.processes import ahead
from hashidrill.core.util.wait import pause, wait_until
from hashidrill.gamedays.training import links
from hashidrill.gamedays.training.course import WATCH, WATCH_S
from hashidrill.gamedays.training.games import HOSTS_NAME
from hashidrill.gamedays.training.links import GameHost, Slots
from hashidrill.gamedays.training.seal import Sealer
from hashidrill.gamedays.training.sealed_recording import SealedJournal, SealedWriter
from hashidrill.lab.local.datacenter import CONTROL_ADDRESS, LOAD_ADDRESS, LocalDatacenter
from hashidrill.lab.runs.engine_process import exit_of
from hashidrill.lab.runs.in_sandbox import run_given
from hashidrill.lab.sandbox.sandbox import read_given

_LOOK_EVERY_S = 0.25
_ALL_OPERATIONS = frozenset({"fsync", "write", "read"})


class GameDatacenter(LocalDatacenter):
    """A local datacenter for a trainee."""

    host_kind = GameHost
    _laid: Mapping[str, str]

    def _build_network(self, pids: Mapping[str, int]) -> None:
        super()._build_network(pids)
        self._laid = links.lay(pids, self._addresses)

    async def wait_ready(self) -> None:
        """Gives all traces of faults on a host neutral names."""
        await super().wait_ready()
        slots, program = Slots(), self.binaries.get("toxiproxy-server")
        everybody = [
            CONTROL_ADDRESS,
            LOAD_ADDRESS,
            *(each.address for each in self.hosts.values()),
        ]
        for host in self.hosts.values():
            assert isinstance(host, GameHost)
            host.slots = slots
            await host.look_alike()
            host.ballast_name = core_dump
            await host.join_cgroup()  # every host: a shell can see whether its host has a cgroup
            others = [address for address in everybody if address != host.address]
            host.wire = links.Wire(host, others, namespace=self._laid[host.name], root=self.root, program=program)
        write_whole(self.root / HOSTS_NAME, json.dumps(self.told()))

    def told(self) -> dict[str, Any]:
        """The agents' user, the products' programs, and for each host: its address, the process whose network namespace
        is the host's, its folder, its agents and their variables.
        """
        hosts = {
            name: {
                "address": host.address,
                "pid": host.pid,
                "folder": str(host.data.parent),
                "agents": dict(host.roles),
                "environment": self.environment(name),
            }
            for name, host in self.hosts.items()
        }
        programs = {one.name for service in self.services for one in service.binaries()}
        user = self.agent_user
        return {
            "hosts": hosts,
            "user": None if user is None else [user.uid, user.gid],
            "binaries": {name: str(path) for name, path in self.binaries.items() if name in programs},
        }


def core_dump(name: str) -> str:
    """A realistic file name for the file that fills a disk: the same for the same fault."""
    return f"core.{zlib.crc32(name.encode()) % 60_000 + 1_000}"


def game_datacenter(
    spec: DatacenterSpec, root: Path, binaries: Mapping[str, Path], _operations: Any, **more: Any
) -> Any:
    """The datacenter of a game: its disks handle all operations."""
    return GameDatacenter(spec, root, binaries, _ALL_OPERATIONS, **more)


@dataclass(frozen=True)
class AtWork:
    """The trainee, as the engine's attendant (hashidrill.core.engine.steps). The trainee is ready, and done, once the
    keeper writes these files.
    """

    at_s: float
    done: Path
    ready: Path
    quiet_s: float

    async def look_around(self) -> None:
        """Waits until the trainee is ready or gives up, at most for the scenario's quiet time."""
        with anyio.move_on_after(self.quiet_s):
            await wait_until("the trainee to be ready", self._is_ready, within_s=math.inf, gap_s=_LOOK_EVERY_S)

    async def _is_ready(self) -> tuple[bool | None, str]:
        return (True if self.ready.exists() or self.done.exists() else None), "they look around"

    async def attend(self, running: Run) -> None:
        """Waits until the trainee is done, and then for the time in which users are watched."""
        await wait_until("the trainee", self._is_done, within_s=math.inf, gap_s=_LOOK_EVERY_S)
        number = next(n for n, step in enumerate(running.experiment.method) if step.name == WATCH)
        running.journal.write("mark.begin", sync=True, mark=WATCH, step=number)
        await pause(WATCH_S)
        running.journal.write("mark.end", sync=True, mark=WATCH, step=number)

    async def _is_done(self) -> tuple[bool | None, str]:
        return (True if self.done.exists() else None), "they are not done"


def main() -> None:
    """Exits with the engine's code."""
    spec = read_given()
    ahead()
    trainee = AtWork(spec["act_s"], Path(spec["done"]), Path(spec["ready"]), spec["quiet_s"])
    sealer = Sealer(bytes.fromhex(spec["sealed_for"]))
    play = partial(
        engine.run,
        attendant=trainee,
        recording_writer=partial(SealedWriter, sealer=sealer),
        recording_journal=partial(SealedJournal, sealer=sealer),
    )
    sys.exit(exit_of(partial(run_given, spec, Path(sys.argv[1]), datacenter=game_datacenter, run=play)))


if __name__ == "__main__":
    main()
