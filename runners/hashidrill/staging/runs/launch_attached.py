"""Runs an experiment against an attached datacenter: discovers it, checks the interlocks, and starts an engine."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio

from hashidrill.core.engine.inject import open_faults
from hashidrill.core.errors import AttachError
from hashidrill.core.experiment.attached import attached_to, check_no_variants
from hashidrill.core.experiment.library import read_experiment
from hashidrill.core.experiment.resolved import ResolvedExperiment
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.events import Bus
from hashidrill.core.recording.journal import read_journal
from hashidrill.core.recording.signed_runs import forget_open, key_of, machine_key
from hashidrill.core.util.files import JOURNAL_NAME, private
from hashidrill.core.util.folders import state_folder
from hashidrill.core.util.processes import python_path
from hashidrill.core.util.redaction import without_secrets
from hashidrill.lab.runs.heal import Healed
from hashidrill.lab.runs.launch import RUNS_DIR, Engine, record
from hashidrill.lab.sandbox.sandbox import Sandbox, handed_over
from hashidrill.staging.attach.datacenter import attach, described
from hashidrill.staging.attach.discovery import Estate, troubles
from hashidrill.staging.attach.http import Wire
from hashidrill.staging.attach.interlocks import open_interlocks
from hashidrill.staging.attach.plan import Plan, plan_of
from hashidrill.staging.attach.product import in_kubernetes
from hashidrill.staging.attach.target import AttachTarget, read_target
from hashidrill.staging.carriers.open_carriers import Offers
from hashidrill.staging.generators.settings import engine_rights, fleet_of
from hashidrill.staging.generators.spawners import SpawnError, check_room
from hashidrill.staging.runs.attach_limits import check_attach_file, check_possible
from hashidrill.staging.runs.heal_attached import Confirm, heal_attached, unswept

_REVERTS_WITHIN_S = 600.0
"""How long an engine whose runner fails may take to revert; then it is left running."""


@dataclass(frozen=True)
class Attached:
    """A discovered datacenter, for commands that run, heal and plan against it."""

    target: AttachTarget
    estate: Estate
    offers: Offers = field(default_factory=dict)
    """What carriers can do on its hosts."""

    @classmethod
    def read(cls, path: Path, *said: str, undoing: bool = False) -> Attached:
        """`said`: options of the command line (AttachTarget.said).

        `undoing`: faults are only reverted. Raises ExperimentError, AttachError.
        """
        check_attach_file(path)
        return cls(*anyio.run(_looked, replace(read_target(path).saying(*said), undoing=undoing)))

    def over(self, path: Path) -> ResolvedExperiment:
        """The experiment in that file, resolved for this datacenter. Raises ExperimentError, AttachError."""
        document = read_experiment(path)
        check_no_variants(document, path)
        if told := troubles(self.target, self.estate):
            raise AttachError("\n".join(f"{self.target.path}: {text}" for text in told))
        unrouted = self.target.kubernetes.get("unrouted")
        if fleet_of(self.target.engine, self.target.logins, self.target.path) is not None and unrouted:
            raise AttachError(
                f"{self.target.path}: engine.nomad: pods of {', '.join(unrouted)} are forwarded to this machine alone,"
                " and the workers run elsewhere: leave out `engine`, or run hashidrill where pods can be reached"
            )
        check_possible(document, self.target, self.estate, path=path, offers=self.offers)
        return attached_to(document, self.estate.as_datacenter(), name=self.target.name, path=path)

    def plan(self, resolved: ResolvedExperiment) -> Plan:
        """What a run would touch, in order."""
        return plan_of(resolved.experiment, self.target, self.estate)

    def allowed(self, resolved: ResolvedExperiment) -> None:
        """Checks the interlocks, which only read. Raises InterlockError if they refuse the run."""
        anyio.run(_allowed, self.plan(resolved))

    def run(self, resolved: ResolvedExperiment, *, runs_dir: Path = RUNS_DIR, events: Bus | None = None) -> Path:
        """See run_attached."""
        return run_attached(resolved, self.target, self.estate, runs_dir=runs_dir, events=events)

    async def heal(
        self, runs: Sequence[Path], tell: Callable[[str], None], confirm: Confirm | None = None
    ) -> list[Healed | None]:
        """See heal_attached."""
        return await heal_attached(self.target, runs, tell, confirm=confirm)


async def _looked(target: AttachTarget) -> tuple[AttachTarget, Estate, Offers]:
    try:
        return await _looked_once(target)
    except AttachError:
        if not (target.undoing and target.kubernetes.get("pods")):
            raise
        return await _looked_once(target)  # through another pod: a fault may have just cut off the first one


async def _looked_once(target: AttachTarget) -> tuple[AttachTarget, Estate, Offers]:
    target = await in_kubernetes().located(target)
    async with AsyncExitStack() as stack:
        estate = (await attach(await stack.enter_async_context(in_kubernetes().reached(target)), stack))[0]
    return target, estate, await in_kubernetes().look(target, estate)


def run_attached(
    resolved: ResolvedExperiment,
    target: AttachTarget,
    estate: Estate,
    *,
    runs_dir: Path = RUNS_DIR,
    events: Bus | None = None,
) -> Path:
    """Like `run_experiment`, over the attached datacenter that `resolved` was made for.

    Raises InterlockError before there is a recording.
    """
    anyio.run(_allowed, plan_of(resolved.experiment, target, estate))
    machine_key()  # without it, heal would have to search for everything that a killed run leaves
    lifeline, other_end = os.pipe()
    ours = os.fdopen(other_end, "wb")
    info = {
        "attached": described(target, estate),
        "undos": str(_undos()),
        "versions": dict(estate.versions),
        "command": shlex.join(["hashidrill", "run", str(resolved.path), "--attach", target.path]),
    }
    given = {"target": target.handed_over(), "estate": estate.to_data(), "lifeline": lifeline}
    environment = {**without_secrets(os.environ), "PYTHONPATH": python_path()}

    @contextlib.contextmanager
    def start(
        command: Sequence[str], environment: Mapping[str, str], log: Path, *, given: Mapping[str, Any]
    ) -> Iterator[Sandbox]:
        with beside_us(command, environment, log, given=given, keep=lifeline) as process:
            try:
                yield process
            finally:
                ours.close()  # the engine reverts and ends, if it has not

    engine = Engine(
        "hashidrill.staging.runs.in_attached", start, environment, given, target.secrets(), info, outlives=True
    )
    try:
        recording = record(resolved, engine, runs_dir=runs_dir, events=events or Bus(), found={})
        if not unswept(recording, key_of(recording.name)) and not open_faults(read_journal(recording / JOURNAL_NAME)):
            forget_open(recording.name)
        return recording
    finally:
        ours.close()
        os.close(lifeline)


async def _allowed(plan: Plan) -> None:
    """Raises InterlockError; AttachError if the datacenter has vanished, or has no room for the `engine`'s workers."""
    async with AsyncExitStack() as stack:
        estate, wires = await attach(await stack.enter_async_context(in_kubernetes().reached(plan.target)), stack)
        await open_interlocks(plan.target, estate, wires).check(plan)
        await _check_workers(plan.target, wires)


async def _check_workers(target: AttachTarget, wires: Mapping[str, Wire]) -> None:
    """Checks that Nomad can run the workers of the target's `engine`, if it has any. Only reads. Raises AttachError."""
    fleet = fleet_of(target.engine, target.logins, target.path)
    if fleet is None:
        return
    where, nomad = f"{target.path}: engine.nomad", registry.services()["nomad"]
    namespace = target.logins["nomad"].params.get("namespace", "default")
    if lacks := await nomad(nomad.Spec()).lacking(wires["nomad"], engine_rights(namespace)):
        raise AttachError(f"{where}: the token of Nomad lacks {'; '.join(map(str, lacks))}")
    try:
        await check_room(wires["nomad"], fleet["workers"])
    except SpawnError as error:
        raise AttachError(f"{where}: {error}") from None


def _undos() -> Path:
    """The folder of undos with secrets, until their faults are gone: a recording may be given to others."""
    return state_folder() / "undos" / os.urandom(8).hex()


@contextlib.contextmanager
def beside_us(
    command: Sequence[str], environment: Mapping[str, str], log: Path, *, given: Mapping[str, Any], keep: int
) -> Iterator[Sandbox]:
    """An engine in a process and session of its own, which inherits the file descriptor `keep`.

    The process is never killed, because nothing else would revert its faults.
    """
    with handed_over(given) as stdin, private(log, "ab") as errors:
        process = subprocess.Popen(
            [part for part in command if part != "{root}"],
            env=dict(environment),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            pass_fds=(keep,),
        )
    try:
        yield Sandbox(Path(), process)
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_REVERTS_WITHIN_S)
        if process.stdout is not None:
            process.stdout.close()
