"""The engine's process inside the sandbox: `python -m hashidrill.engine.in_sandbox ROOT`.

It reads its specification from standard input, written by hashidrill.engine.launch: the specification holds secrets,
and every user can read a command line. It writes events to standard output, one JSON object per line. SIGINT or
SIGTERM cancels the run, which reverts what is in force; a second signal changes nothing.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from hashidrill.datacenter.local.datacenter import LocalDatacenter
from hashidrill.engine import fitness
from hashidrill.engine import run as engine
from hashidrill.engine.closing import EXIT_CODES
from hashidrill.engine.required import required_by, sized
from hashidrill.engine.run_state import RunnableDatacenter
from hashidrill.errors import HashidrillError
from hashidrill.events import Bus, Event, encode
from hashidrill.experiment.resolved import ResolvedExperiment
from hashidrill.recording.journal import Clock
from hashidrill.sandbox.sandbox import read_given
from hashidrill.util.priority import ahead
from hashidrill.util.redaction import Redactor
from hashidrill.util.whereabouts import here


def main() -> None:
    """Exits with 0 if the recording is closed and the run counts, otherwise with a code from `closing`."""
    spec = read_given()
    ahead()
    sys.exit(exit_of(partial(run_given, spec, Path(sys.argv[1]))))


def exit_of(run: Callable[[], Awaitable[str]]) -> int | str:
    """Carries out a run. Returns what `sys.exit` takes: an exit code, or the error for the log."""
    try:
        return EXIT_CODES[anyio.run(run)]
    except HashidrillError as error:  # for a bug of ours, the log gets the traceback instead
        return f"hashidrill: {error}"


async def run_given(
    spec: dict[str, Any],
    root: Path,
    *,
    datacenter: Callable[..., RunnableDatacenter] = LocalDatacenter,
    run: Callable[..., Awaitable[str]] = engine.run,
) -> str:
    """Returns how the run ended. Cancellation stops here: by then the run has reverted and closed."""
    recording = Path(spec["recording"])
    experiment = ResolvedExperiment.from_data(spec["resolved"]).experiment
    redactor = Redactor(spec["secrets"])
    required = required_by(experiment)
    made = datacenter(
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
        return await run(
            experiment, made, recording, info, clock=clock, events=Bus(_to_runner), redactor=redactor
        )  # fmt: skip
    return "interrupted"


@contextlib.asynccontextmanager
async def _cancelled_by_signals() -> AsyncIterator[None]:
    """The first signal cancels the body. Later ones do nothing: the run is already reverting."""

    async def cancel(scope: anyio.CancelScope, signals: AsyncIterator[signal.Signals]) -> None:
        async for _ in signals:
            scope.cancel()

    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with anyio.create_task_group() as group:
            with anyio.CancelScope() as run:  # not the group's own scope: the receiver must outlive the run
                group.start_soon(cancel, run, signals)
                yield
            group.cancel_scope.cancel()


def _to_runner(event: Event) -> None:
    sys.stdout.write(encode(event) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
