"""The engine's process for an attached datacenter: `python -m hashidrill.staging.runs.in_attached`.

The process runs outside of any sandbox. It reads its specification, including tokens, from standard input, and writes
events to standard output. SIGINT, SIGTERM, and the end of the pipe that its runner holds open cancel the run, which
reverts what is in force: a runner that was killed leaves nothing behind.
"""

import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

from hashidrill.core.engine import run as engine
from hashidrill.core.engine.load_generator import LoadGenerator
from hashidrill.core.engine.run_state import Teller
from hashidrill.core.errors import InterlockError
from hashidrill.core.experiment.resolved import ResolvedExperiment
from hashidrill.core.protocols.events import Bus
from hashidrill.core.recording.journal import Clock
from hashidrill.core.recording.signed_runs import received_key
from hashidrill.core.util.redaction import Redactor
from hashidrill.lab.runs.engine_process import cancelled_when_told, exit_of, to_runner
from hashidrill.lab.sandbox.sandbox import read_given
from hashidrill.staging.attach.datacenter import AttachedDatacenter, attach
from hashidrill.staging.attach.discovery import Estate
from hashidrill.staging.attach.http import Wire
from hashidrill.staging.attach.interlocks import Interlocks, open_interlocks, who
from hashidrill.staging.attach.leftovers import leaving_nothing
from hashidrill.staging.attach.plan import plan_of
from hashidrill.staging.attach.product import in_kubernetes
from hashidrill.staging.attach.target import AttachTarget
from hashidrill.staging.generators.settings import fleet_of
from hashidrill.staging.generators.spawners import job_id

Attach = Callable[[AttachTarget, AsyncExitStack], Awaitable[tuple[Estate, dict[str, Wire]]]]
Open = Callable[[AttachTarget, Estate, Mapping[str, Wire]], Interlocks]
Carry = Callable[..., AbstractAsyncContextManager[dict[str, dict[type[Any], Any]]]]
_LONGER_S = 120.0
"""How much longer than its step a fault may be in force on an unreachable host: its two proofs take time."""


def main() -> None:
    """Exits like hashidrill.lab.runs.in_sandbox."""
    spec = read_given()
    sys.exit(exit_of(partial(run_given, spec)))


async def run_given(
    spec: dict[str, Any],
    *,
    look: Attach = attach,
    interlocks: Open = open_interlocks,
    run: Callable[..., Awaitable[str]] = engine.run,
    datacenter: Callable[..., AttachedDatacenter] = AttachedDatacenter,
    carry: Carry | None = None,
) -> str:
    """Returns how the run ended.

    A cancelled run has reverted and closed by then. Raises InterlockError before anything is touched.
    """
    recording, run_id = Path(spec["recording"]), str(spec["info"]["id"])
    experiment = ResolvedExperiment.from_data(spec["resolved"]).experiment
    target, expected = AttachTarget.received(spec["target"]), Estate.from_data(spec["estate"])
    redactor = Redactor([*spec["secrets"], *target.secrets()])
    fleet = fleet_of(target.engine, target.logins, target.path)
    events = Bus(to_runner)
    async with cancelled_when_told(spec.get("lifeline")), AsyncExitStack() as stack:
        say = Teller(events, redactor)
        target = await stack.enter_async_context(in_kubernetes().reached(target, say))
        found, wires = await look(target, stack)
        check_same(expected, found)
        plan = plan_of(experiment, target, found, run_id=run_id)
        held = await stack.enter_async_context(
            interlocks(target, found, wires).hold(plan, say, recording, received_key(spec))
        )
        await stack.enter_async_context(leaving_nothing(experiment, wires, run_id, held.note, say, mine=held.mine))
        if fleet is not None:
            where = f"{fleet['workers']} clients"
            held.note("workers", "nomad job", where, note=job_id(run_id))
        longest_s = max((one.for_s for one in plan.actions if one.verb == "apply"), default=0.0)
        parts = await stack.enter_async_context(
            (carry or in_kubernetes().held)(
                target,
                found,
                wires,
                deadline_s=longest_s + _LONGER_S,
                tell=say,
                who=who(),
                run=run_id,
                armed=held.armed,
            )
        )
        pods = await stack.enter_async_context(in_kubernetes().watched(target))
        made = await stack.enter_async_context(
            datacenter(
                experiment.datacenter,
                target,
                found,
                wires,
                artifacts=recording / "artifacts",
                run=run_id,
                carried=parts,
                pods=pods,
            )
        )
        return await run(
            experiment,
            made,
            recording,
            spec["info"],
            clock=Clock(spec["origin_ns"]),
            events=events,
            redactor=redactor,
            load_generator=partial(LoadGenerator, entrances=made.entrances, fleet=fleet),
            stop=held.stopped,
            admits=held.admits,
            teller=say,
            key=received_key(spec),
            probe_secrets=spec.get("probe_secrets", {}),
        )
    return "interrupted"


def check_same(expected: Estate, found: Estate) -> None:
    """Raises InterlockError if hosts came, went or changed roles since the experiment was checked against them."""
    shape = [
        {(name, one.address, *sorted(one.roles.items())) for name, one in each.hosts.items()}
        for each in (expected, found)
    ]
    if shape[0] != shape[1]:
        changed = ", ".join(sorted({str(host[0]) for host in shape[0] ^ shape[1]}))
        raise InterlockError(f"{found.name} has changed since the experiment was checked: {changed}; run it again")


if __name__ == "__main__":
    main()
