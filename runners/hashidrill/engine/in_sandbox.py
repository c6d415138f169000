"""The engine's process inside of the sandbox: `python -m hashidrill.engine.in_sandbox ROOT`.

Its specification comes on standard input, from hashidrill.engine.launch: it holds secrets, and every user can
read a command line. What happens is told on standard output, one JSON object a line. On
SIGINT or SIGTERM the run is cancelled, which reverts what is in force; a second one changes nothing.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from hashidrill.datacenter.local.datacenter import LocalDatacenter
from hashidrill.engine import fitness
from hashidrill.engine import run as engine
from hashidrill.engine.closing import EXIT_CODES
from hashidrill.engine.required import required_by, sized
from hashidrill.errors import HashidrillError
from hashidrill.events import Bus, Event, encode
from hashidrill.experiment.resolved import ResolvedExperiment
from hashidrill.recording.journal import Clock
from hashidrill.sandbox.sandbox import read_given
from hashidrill.util.priority import ahead
from hashidrill.util.redaction import Redactor
from hashidrill.util.whereabouts import here


def main() -> None:
    """Exits with 0 when the recording is closed and its run counts; else with what hashidrill.engine.closing says."""
    spec = read_given()
    ahead()
    try:
        outcome = anyio.run(_run, spec, Path(sys.argv[1]))
    except HashidrillError as error:  # of a mistake of ours, the log gets the traceback
        sys.exit(f"hashidrill: {error}")
    sys.exit(EXIT_CODES[outcome])


async def _run(spec: dict[str, Any], root: Path) -> str:
    """How the run ended. Cancellation ends here: the run has reverted and closed by then."""
    recording = Path(spec["recording"])
    experiment = ResolvedExperiment.from_data(spec["resolved"]).experiment
    redactor = Redactor(spec["secrets"])
    required = required_by(experiment)
    datacenter = LocalDatacenter(
        sized(experiment.datacenter) if required.sized_disk else experiment.datacenter,
        root,
        {name: Path(path) for name, path in spec["binaries"].items()},
        required.disk_operations,
        spare_servers=required.spare_servers,
        artifacts=recording / "artifacts",
        redactor=redactor,
        check_machine=partial(fitness.require, experiment, required, root),
    )
    info = {**spec["info"], "root": str(root), "sandbox": here()["pid_namespace"]}
    async with _cancelled_by_signals():
        clock = Clock(spec["origin_ns"])
        return await engine.run(
            experiment, datacenter, recording, info, clock=clock, events=Bus(_to_runner), redactor=redactor
        )  # fmt: skip
    return "interrupted"


@contextlib.asynccontextmanager
async def _cancelled_by_signals() -> AsyncIterator[None]:
    """The first signal cancels what is within. Those that follow do nothing: what is in force is being reverted."""

    async def cancel(scope: anyio.CancelScope, signals: AsyncIterator[signal.Signals]) -> None:
        async for _ in signals:
            scope.cancel()

    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with anyio.create_task_group() as group:
            with anyio.CancelScope() as run:  # not the group's own: the receiver stays until the run has ended
                group.start_soon(cancel, run, signals)
                yield
            group.cancel_scope.cancel()


def _to_runner(event: Event) -> None:
    sys.stdout.write(encode(event) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
