"""The life of a run."""

import datetime as dt
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import anyio

from hashidrill.core.engine.inject import open_faults, settle
from hashidrill.core.engine.levels import GENERATOR_FULL, Steered
from hashidrill.core.engine.load_generator import LoadGenerator
from hashidrill.core.engine.monitor import Monitor, longest_window_s
from hashidrill.core.engine.profiler import Profiler
from hashidrill.core.engine.run_state import (
    Admits,
    Attendant,
    LooksAround,
    MethodClock,
    Run,
    RunnableDatacenter,
    Teller,
    admits_all,
    load_specifications,
)
from hashidrill.core.engine.steps import attended, carry_out, kept
from hashidrill.core.errors import (
    OTHER_WORK,
    FaultError,
    HashidrillError,
    InterlockError,
    RecordingError,
    RevertError,
    SelectorError,
    SteadyStateError,
    UnfitError,
    WaitTimeoutError,
)
from hashidrill.core.experiment.conditions import Condition, Reading
from hashidrill.core.experiment.model import Experiment
from hashidrill.core.probes.base import run_probes
from hashidrill.core.protocols.abc import Probe
from hashidrill.core.protocols.events import Bus, Tick, decode
from hashidrill.core.recording.journal import Clock, Entry, Journal, LineKey, read_journal
from hashidrill.core.recording.seal import seal
from hashidrill.core.recording.writer import FORMAT, RecordingWriter
from hashidrill.core.util.addresses import Addresses
from hashidrill.core.util.files import JOURNAL_NAME
from hashidrill.core.util.redaction import Redactor
from hashidrill.core.util.wait import pause, wait_until

EXIT_CODES = {
    "complete": 0,
    "guardrail": 0,
    "steady-state": 3,
    "unfit": 3,
    "fault": 3,
    "revert": 4,
    "crashed": 1,
    "interrupted": 130,
}
"""Exit codes of the engine's process, by the outcome in `end`. 0 means that the recording is complete and counts."""
_LOOK_EVERY_S = 0.25


async def watch_writer(writer: RecordingWriter) -> None:
    """Raises RecordingError as soon as a write fails: a run that is not recorded must not break anything."""
    while True:
        writer.raise_failure()
        await pause(_LOOK_EVERY_S)


async def close_recording(
    writer: RecordingWriter, journal: Journal, info: Mapping[str, Any], outcome: str, error: str
) -> tuple[str, str]:
    """Flushes the recording, writes run.json, seals both, and writes `end` last. Returns the final (outcome, error).

    A run whose recording could not be written has crashed, whatever its outcome was; only a fault that stays in
    force is worse. Raises RecordingError if `end` itself could not be written: then the recording looks as if the run
    had died.
    """
    try:
        await anyio.to_thread.run_sync(writer.close)
        ended_at = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        writer.write_run({**info, "outcome": outcome, "error": error, "ended_at": ended_at})
    except (RecordingError, OSError) as failure:
        outcome, error = _unrecorded(outcome, error, str(failure))
    try:
        sealed = await anyio.to_thread.run_sync(seal, writer.path)
        journal.write("end", sync=True, outcome=outcome, error=error, written=dict(writer.written), sealed=sealed)
    except OSError as failure:
        raise RecordingError(f"{writer.path}: the journal could not be closed: {failure}") from None
    return outcome, error


def _unrecorded(outcome: str, error: str, failure: str) -> tuple[str, str]:
    if outcome in {"revert", "crashed"}:
        return outcome, f"{error}; {failure}" if failure not in error else error
    return "crashed", failure


async def revert_again(running: Run, journal: Path, error: str) -> tuple[str, str]:
    """Tries again after a revert failed. Returns the run's (outcome, error): `fault` if all faults that were left are
    proven gone now, otherwise `revert`.

    The loads have stopped. Every fault of the journal that was not proven gone is reverted, the latest first. A
    failure here does not stop the run from being closed: a fault that the journal does not call gone counts as in
    force.
    """
    try:
        left = open_faults(read_journal(journal))
    except (OSError, HashidrillError):
        return "revert", error
    if not left:
        return "revert", error
    with suppress(OSError):
        running.journal.write(
            "note", text="the loads have stopped; faults that could not be reverted are reverted again"
        )
    settled = [await _settled(undo, running) for undo in left]
    if not all(settled):
        return "revert", error
    return "fault", f"{error}; without load it was reverted, and proven gone"


async def _settled(undo: dict[str, Any], running: Run) -> bool:
    try:
        return await settle(undo, running.datacenter, running.journal) != "stuck"
    except OSError:  # the journal cannot be written
        return False


Stop = Callable[[], Awaitable[str]]
_OTHERS = Condition.parse("machine.others > 0")
"""CPUs that processes outside of the run use."""
_TICK_EVERY_S = 0.5


async def run(
    experiment: Experiment,
    datacenter: RunnableDatacenter,
    path: Path,
    info: Mapping[str, Any],
    *,
    clock: Clock,
    events: Bus,
    redactor: Redactor | None = None,
    load_generator: Callable[[Clock, str], AbstractAsyncContextManager[LoadGenerator]] = LoadGenerator,
    recording_writer: Callable[[Path, Redactor], RecordingWriter] = RecordingWriter,
    recording_journal: Callable[..., Journal] = Journal,
    stop: Stop | None = None,
    admits: Admits = admits_all,
    attendant: Attendant | None = None,
    teller: Teller | None = None,
    key: LineKey | None = None,
    probe_secrets: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """One run, from start to closed recording. Returns how it ended (the journal's `end`).

    1. The caller has loaded and resolved the experiment, and opened the recording and its journal.
    2. Start the datacenter; wait until each service is ready (Consul: leader known, all members alive, a write
       accepted).
    3. Start loads and probes. Hold the steady state; if it never holds, no fault is applied.
    4. For each step of the method: resolve its targets, and inject (hashidrill.core.engine.inject): plan, journal the
       intent, apply, prove, hold, revert, prove it gone. Guardrails watch; one that trips reverts everything and ends
       the method.
    5. Recovery window: the loads go on.
    6. Stop the loads; final reads for the durability checks; collect logs.
    7. Close the recording, and write `end` last (`close_recording`). A separate step judges the recording later.

    Any failure of a run becomes its outcome; a run whose recording can no longer be written ends as `crashed`. On
    cancellation `run` reverts and closes, then passes the cancellation on. Raises RecordingError if not even `end`
    could be written.

    Everything that a run touches is a parameter, so that tests can pass their own: `load_generator` offers the loads
    (given the run's clock and id), `recording_writer` keeps operations and samples, `recording_journal` events.

    `stop` waits until the run must stop, and returns why: everything is reverted, and the outcome is `interrupted`.
    `admits` is entered around each fault. `attendant` acts while the faults last, and ends the method
    (hashidrill.core.engine.steps). The lines that `teller` receives become notes of the journal. `key` signs the
    journal. `probe_secrets` are the secrets of `probes:`, by their places.
    """
    redactor = redactor or Redactor()
    writer = recording_writer(path, redactor)
    monitor = Monitor(
        experiment.measured, longest_window_s(experiment), experiment.sampled(experiment.declared_signals)
    )
    outcome, error = "interrupted", ""
    details: dict[str, Any] = {}
    undos = Path(info.get("undos") or f"{info['root']}/undos") if info.get("undos") or info.get("root") else None
    with recording_journal(
        path / JOURNAL_NAME, clock, lambda entry: _publish(events, entry), redactor=redactor, undos=undos, key=key
    ) as journal:
        generator = load_generator(clock, info["id"])
        running = Run(
            experiment,
            datacenter,
            clock,
            journal,
            writer,
            monitor,
            events,
            generator,
            admits=admits,
            attendant=attendant,
            probe_secrets=probe_secrets,
        )
        journal.write(
            "run",
            sync=True,
            format=FORMAT,
            id=info["id"],
            experiment=experiment.metadata.name,
            root=info.get("root", ""),
            origin=info.get("origin", {}),
            sandbox=info.get("sandbox", ""),
            **{name: info[name] for name in ("attached", "resolved") if name in info},
        )
        try:
            with _told(teller, journal):
                outcome, error = await _guarded(running, details, stop)
        finally:
            with anyio.CancelScope(shield=True):
                if outcome == "revert":
                    with _told(teller, journal):
                        outcome, error = await revert_again(running, path / JOURNAL_NAME, error)
                await _collect(running, path)
                with suppress(OSError):  # close() reports write errors
                    for failure in events.failures:
                        journal.write("note", text=failure)
                described = {**info, **datacenter.describe(), **details}
                outcome, error = await close_recording(writer, journal, described, outcome, error)
    return outcome


def _told(teller: Teller | None, journal: Journal) -> AbstractContextManager[None]:
    return nullcontext() if teller is None else teller.kept_in(journal)


def _publish(events: Bus, entry: Entry) -> None:
    event = decode({**entry.data, "event": entry.event, "t_ns": entry.t_ns})
    if event is not None:
        events.publish(event)


async def _guarded(running: Run, details: dict[str, Any], stop: Stop | None) -> tuple[str, str]:
    try:
        tripped, stopped = await _unless_stopped(running, details, stop)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this run's outcome; the log has the traceback
        return _outcome(error)
    if stopped:
        return "interrupted", stopped
    return ("guardrail", tripped) if tripped else ("complete", "")


async def _unless_stopped(running: Run, details: dict[str, Any], stop: Stop | None) -> tuple[str, str]:
    if stop is None:
        return await _phases(running, details), ""
    tripped, why = "", ""

    async def watch() -> None:
        nonlocal why
        why = await stop()
        running.journal.write("note", sync=True, text=f"the run stops: {why}")
        phases.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        with anyio.CancelScope() as phases:
            tripped = await _phases(running, details)
        group.cancel_scope.cancel()
    return tripped, why


_OUTCOMES: tuple[tuple[type[Exception], str], ...] = (
    (RevertError, "revert"),
    (UnfitError, "unfit"),
    (SelectorError, "fault"),
    (FaultError, "fault"),
    (InterlockError, "fault"),
    (SteadyStateError, "steady-state"),
)


def _outcome(error: Exception) -> tuple[str, str]:
    leaves = list(_leaves(error))
    for kind, outcome in _OUTCOMES:
        for leaf in leaves:
            if isinstance(leaf, kind):
                return outcome, str(leaf)
    if not isinstance(leaves[0], HashidrillError):
        traceback.print_exception(error)
        return "crashed", f"{type(leaves[0]).__name__}: {leaves[0]}"
    return "crashed", str(leaves[0])


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


async def _phases(running: Run, details: dict[str, Any]) -> str:
    datacenter, experiment = running.datacenter, running.experiment
    running.enter("start")
    await datacenter.start()
    running.enter("ready")
    await datacenter.wait_ready()
    async with running.generator as loads, anyio.create_task_group() as watchers:
        watchers.start_soon(run_probes, [*datacenter.probes(), *_own_probes(running)], running.probed)
        watchers.start_soon(kept, running)
        watchers.start_soon(_ticks, running)
        profiler = Profiler(running)
        watchers.start_soon(profiler.watch)
        watchers.start_soon(watch_writer, running.writer)
        running.enter("load")
        specifications = await load_specifications(experiment, datacenter)
        await loads.start(specifications, running.operation, running.sample, running.monitor.waiting)
        if isinstance(running.attendant, LooksAround):
            await _hold_steady_state(running)
            await running.attendant.look_around()
        await _hold_steady_state(running)
        await profiler.settled()
        tripped = await _method(running, loads)
        running.enter("recovery", experiment.recovery.for_)
        await pause(experiment.recovery.for_)
        running.enter("quiesce")
        await loads.stop()
        for load, values in (await loads.final_reads()).items():
            running.writer.final_reads(load, values)
        details["final_read_errors"] = dict(loads.final_read_errors)
        watchers.cancel_scope.cancel()
    running.enter("closed")
    return tripped


def _own_probes(running: Run) -> Sequence[Probe]:
    """The probes of `probes:`. In the sandbox they run from the loads' address, which faults affect too."""
    if not running.experiment.probes:
        return []
    from hashidrill.core.probes.declared import ProbeContext, make_probes  # noqa: PLC0415 - few experiments have any

    datacenter = running.datacenter
    local_address = next(iter(datacenter.load_addresses()), None)
    return make_probes(
        running.experiment, ProbeContext(Addresses(datacenter.all_hosts()), running.probe_secrets, local_address)
    )


async def _ticks(running: Run) -> None:
    while True:
        now = running.clock.now_ns()
        running.events.publish(
            Tick(
                t_ns=now,
                phase=running.phase,
                phase_ends_ns=running.phase_ends_ns,
                leaders=(*running.monitor.leaders.items(), *running.monitor.asked.items()),
                faults=tuple(running.in_force.values()),
                marks=tuple(running.marks.values()),
                unmet=running.unmet if running.phase == "steady" else (),
                loads=running.monitor.tick(now),
                probes=tuple(running.monitor.probes(now).items()),
            )
        )
        await pause(_TICK_EVERY_S)


async def _hold_steady_state(running: Run) -> None:
    """Returns once all conditions held over the last `for`. Raises SteadyStateError after `within`."""
    steady = running.experiment.steady_state
    running.enter("steady", steady.within)
    began = running.clock.now_ns()
    for_s = max([float(steady.for_), *(c.window_s or 0.0 for c in steady.require)])

    async def held() -> tuple[str | None, str]:
        now = running.clock.now_ns()
        readings = {c: running.monitor.reading(c, now, c.window_s or steady.for_) for c in steady.require}
        lacking = {condition: reading for condition, reading in readings.items() if not reading.surely(condition)}
        shown = [f"{each} ({_measured(running, each, reading)})" for each, reading in (lacking or readings).items()]
        running.unmet = tuple(shown) if lacking else ()
        evidence = "; ".join(shown)
        if any(condition.source == _OTHERS.source for condition in lacking):
            others = running.monitor.reading(_OTHERS, now, steady.for_).figure
            evidence += f"; {OTHER_WORK} uses {others:.1f} of its CPUs"
        full = now - began >= for_s * 1e9
        return (evidence if full and not lacking else None), evidence

    try:
        evidence = await wait_until("the steady state", held, within_s=steady.within, gap_s=_LOOK_EVERY_S)
    except WaitTimeoutError as error:
        running.journal.write("steady", sync=True, held=False, evidence=str(error))
        raise SteadyStateError(f"the steady state did not hold; no fault was applied: {error}") from None
    running.journal.write("steady", sync=True, held=True, evidence=evidence)
    generator = running.monitor.reading(GENERATOR_FULL, running.clock.now_ns(), steady.for_)
    if generator.surely(GENERATOR_FULL):
        raise UnfitError(
            f"the generator already uses {generator.figure:.2f} of its one core in the steady state, which "
            "leaves nothing for the method: lower the rates of the loads"
        )


def _measured(running: Run, condition: Condition, reading: Reading) -> str:
    """What was measured; if the condition does not hold, with the reason that the experiment's own probe gave."""
    own = condition.source in running.experiment.probes and not reading.surely(condition)
    said = running.monitor.said(condition) if own else ""
    return f"{reading}; last look: {said}" if said else str(reading)


async def _method(running: Run, levels: LoadGenerator) -> str:
    steps = running.experiment.method
    running.enter("method", max(step.at + step.for_ for step in steps))
    running.method, running.levels = MethodClock(running.clock), levels
    await levels.begin(running.method.began_ns)
    tripped: list[str] = []
    async with anyio.create_task_group() as watcher:
        for load, spec in running.experiment.traffic.items():
            if spec.profile is not None:
                steered = Steered(load, running.monitor, running.clock, levels, running.journal, running.method)
                watcher.start_soon(steered.by, spec.profile)
        method = anyio.CancelScope()
        watcher.start_soon(_watch_guardrails, running, method, tripped)
        with method:
            async with anyio.create_task_group() as group:
                if running.attendant is not None:
                    watcher.start_soon(attended, running, running.attendant, method)
                for number, step in enumerate(steps):
                    group.start_soon(carry_out, running, number, step)
        watcher.cancel_scope.cancel()
    return tripped[0] if tripped else ""


async def _watch_guardrails(running: Run, method: anyio.CancelScope, tripped: list[str]) -> None:
    """Cancels the method once a guardrail's condition holds over its whole window.

    A guardrail also trips when its signal is unknown for that long, because harm that nothing shows must end too.
    """
    while True:
        now = running.clock.now_ns()
        running.monitor.faulted({one.host for one in running.in_force.values()}, now)
        for guardrail in running.experiment.guardrails:
            window = guardrail.window_s or guardrail.DEFAULT_WINDOW_S
            if now - running.method.began_ns < window * 1e9:
                continue
            reading = running.monitor.reading(guardrail, now, window)
            if reading.maybe(guardrail):
                evidence = str(reading)
                running.journal.write("guardrail", sync=True, condition=str(guardrail), evidence=evidence)
                tripped.append(f"guardrail {guardrail}: {evidence}")
                method.cancel()
                return
        await pause(_LOOK_EVERY_S)


async def _collect(running: Run, path: Path) -> None:
    """Collects the logs even after a failure: then they matter most."""
    try:
        await running.datacenter.collect_logs(path / "logs")
    except (OSError, HashidrillError) as error:
        running.journal.write("note", text=f"the logs could not be collected: {error}")
