"""The engine's process inside the sandbox: `python -m hashidrill.lab.runs.in_sandbox ROOT`.

It reads its specification from standard input, written by hashidrill.lab.runs.launch, because the specification
holds secrets, and every user can read a command line. It writes events to standard output, one JSON object per line.
SIGINT or SIGTERM cancels the run, which reverts all faults in force; a second signal changes nothing.
"""

import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from hashidrill.core.engine import machine_check
from hashidrill.core.engine import run as engine
from hashidrill.core.engine.requirements import required_by, sized
from hashidrill.core.engine.run_state import RunnableDatacenter
from hashidrill.core.experiment.resolved import ResolvedExperiment
from hashidrill.core.protocols.events import Bus
from hashidrill.core.recording.journal import Clock
from hashidrill.core.recording.signed_runs import received_key
from hashidrill.core.util.processes import ahead
from hashidrill.core.util.redaction import Redactor
from hashidrill.core.util.run_origin import here
from hashidrill.lab.local.datacenter import LocalDatacenter
from hashidrill.lab.runs.engine_process import cancelled_when_told, exit_of, to_runner
from hashidrill.lab.sandbox.sandbox import read_given


def main() -> None:
    """Exits with 0 if the recording is closed and the run counts, otherwise with a code of EXIT_CODES."""
    spec = read_given()
    ahead()
    sys.exit(exit_of(partial(run_given, spec, Path(sys.argv[1]))))


async def run_given(
    spec: dict[str, Any],
    root: Path,
    *,
    datacenter: Callable[..., RunnableDatacenter] = LocalDatacenter,
    run: Callable[..., Awaitable[str]] = engine.run,
) -> str:
    """Returns how the run ended; when cancelled, after it has reverted its faults and closed its recording."""
    recording = Path(spec["recording"])
    experiment = ResolvedExperiment.from_data(spec["resolved"]).experiment
    redactor = Redactor(spec["secrets"])
    required = required_by(ResolvedExperiment.from_data(spec["widest"]).experiment if "widest" in spec else experiment)
    made = datacenter(
        sized(experiment.datacenter) if required.sized_disk else experiment.datacenter,
        root,
        {name: Path(path) for name, path in spec["binaries"].items()},
        required.disk_operations,
        memory_groups=required.memory_groups,
        spare_servers=required.spare_servers,
        artifacts=recording / "artifacts",
        redactor=redactor,
        check_machine=partial(machine_check.require, experiment, required, root),
    )
    info = {**spec["info"], "root": str(root), "sandbox": here()["pid_namespace"]}
    async with cancelled_when_told():
        clock = Clock(spec["origin_ns"])
        return await run(
            experiment,
            made,
            recording,
            info,
            clock=clock,
            events=Bus(to_runner),
            redactor=redactor,
            key=received_key(spec),
            probe_secrets=spec.get("probe_secrets", {}),
        )
    return "interrupted"


if __name__ == "__main__":
    main()
