"""The reasons that make a whole run INVALID. The module `doubts` finds reasons that make only some seconds INVALID.

`Validity` holds both, for one recording. Every command that judges uses it, so no command can leave out a doubt.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hashidrill.core.errors import NOT_READY, HypothesisInvalidError
from hashidrill.core.experiment.model import ATTEMPTS, ClientSpec, Experiment, Mark, Step
from hashidrill.core.judging import measure
from hashidrill.core.judging.doubts import Doubt, doubts, generator_doubts, readable
from hashidrill.core.recording.columns import NOT_ITS_OWN
from hashidrill.core.recording.reader import FaultWindow, MarkWindow, Recording
from hashidrill.core.recording.seal import damage

_OUTCOMES = {
    "died": "the run died: its journal has no end (was it killed?)",
    "crashed": "the run crashed",
    "interrupted": "the run was interrupted",
    "steady-state": "the steady state never held, so no fault was applied",
    "unfit": "this machine cannot carry the experiment",
    "fault": "a fault could not be put in force",
    "revert": "a fault could not be reverted",
}
_WHOLE = 0.8
"""A step that lasted for this share of its time counts as complete: agents' turns and clocks may cost some time."""


@dataclass(frozen=True)
class Validity:
    """`invalid`: why the whole run is INVALID; `doubts`: which seconds were not measured validly.

    `damaged` is part of `invalid`: nothing in a damaged recording counts. `generator` is part of `doubts` and says that
    the generator, not the datacenter, was the bottleneck; a run that never reached its method has it too.
    """

    invalid: Sequence[str]
    doubts: Sequence[Doubt] = ()
    damaged: Sequence[str] = ()
    generator: Sequence[Doubt] = ()

    @classmethod
    def of(cls, recording: Recording, experiment: Experiment | None = None) -> Validity:
        """Judges the validity against the recorded experiment, or against the given one. Raises RecordingError for a
        newer format.
        """
        recording.check_format()
        if damaged := damage(recording):
            return cls(damaged, damaged=damaged)
        experiment = experiment or recording.experiment
        found = doubts(recording, experiment) if "method" in recording.phases else []
        return cls(
            list(invalid_reasons(recording, experiment)), found, generator=list(generator_doubts(recording, experiment))
        )


def invalid_reasons(recording: Recording, experiment: Experiment) -> Iterator[str]:
    """Why the whole run is INVALID, whatever was measured."""
    outcome = recording.outcome
    if outcome not in {"complete", "guardrail"}:
        yield _outcome_reason(recording, outcome)
    elif any(entry.data.get("held") is False for entry in recording.events("steady")):
        yield _OUTCOMES["steady-state"]
    if "method" not in recording.phases:
        if outcome in {"complete", "guardrail"}:
            yield "the run never reached its method: no fault was applied"
        return
    yield from _fault_reasons(recording, experiment)
    if outcome == "complete":
        yield from _steps_left_out(recording, experiment)
        yield from _steps_cut_short(recording, experiment)
    for load in experiment.load:
        yield from _load_reasons(recording, load)
    for name, client in experiment.clients.items():
        yield from _client_reasons(recording, name, client)


def _outcome_reason(recording: Recording, outcome: str) -> str:
    reason = _OUTCOMES.get(outcome, f"the run ended as {outcome!r}")
    if outcome == "steady-state":
        unsteady = [entry.data.get("evidence") for entry in recording.events("steady") if not entry.data.get("held")]
        detail = unsteady[-1] if unsteady else None
    else:
        ends = recording.events("end")
        detail = ends[-1].data.get("error") if ends else None
        if outcome == "crashed" and NOT_READY in str(detail):
            reason = "the datacenter never got ready"
    return f"{reason}: {readable(detail)}" if detail else reason


def _fault_reasons(recording: Recording, experiment: Experiment) -> Iterator[str]:
    if not recording.faults and experiment.faults:
        yield "no fault was applied, so the run proves nothing"
    for window in recording.faults:
        if not window.proven and not _followed_elsewhere(recording, window):
            yield f"fault {measure.named(recording, window)} {_not_proven(window)}"
        if window.applied_ns is not None and window.gone_ns is None and window.proven:
            detail = window.error or (
                "it was never reverted" if window.reverted_ns is None else "its observer never saw it gone"
            )
            yield f"fault {measure.named(recording, window)} was not proven gone: {detail}"


def _followed_elsewhere(recording: Recording, window: FaultWindow) -> bool:
    """Whether the fault was given up because its role had moved, and its step was proven on another holder of it."""
    if window.moved_ns is None or (window.applied_ns is not None and window.gone_ns is None):
        return False
    return any(other.proven for other in recording.faults if other.step == window.step)


def _not_proven(window: FaultWindow) -> str:
    if window.proof is not None:
        return f"was not proven in force: {readable(window.proof)}"
    if window.error:
        return f"could not be applied: {window.error}"
    return "was not proven in force: the run ended before its observer could measure it"


def _steps_left_out(recording: Recording, experiment: Experiment) -> Iterator[str]:
    """Steps of the method that the journal has no intent for, and marks that never began."""
    marked = {mark.step for mark in recording.marks}
    intents = recording.events("fault.intent")
    told = intents and all("step" in entry.data for entry in intents)  # the oldest recordings do not name steps
    done = {entry.data["step"] for entry in intents} if told else set()
    for index, step in enumerate(experiment.method):
        if isinstance(step, Mark):
            if index not in marked:
                yield f"the run never reached step {index + 1} of the method (mark {step.name})"
        elif told and index not in done:
            yield f"the run never carried out step {index + 1} of the method ({step.fault} on {step.on})"


def _steps_cut_short(recording: Recording, experiment: Experiment) -> Iterator[str]:
    """Faults and marks that ended well before their time.

    Two early ends are allowed: of a fault that follows a role, when the role moves; and after a person began to act.
    """
    acted_ns = min((entry.t_ns for entry in recording.events("attended.begins")), default=math.inf)
    proven = [window for window in recording.faults if window.proven]
    windows: list[FaultWindow | MarkWindow] = [*proven, *recording.marks]
    for window in windows:
        step = experiment.method[window.step] if 0 <= window.step < len(experiment.method) else None
        if step is None or (isinstance(step, Step) and step.follow):
            continue
        start_ns, end_ns = measure.in_force(recording, window)
        lasted_s = (end_ns - start_ns) / measure.SECOND
        if end_ns < acted_ns and lasted_s < _WHOLE * step.for_:
            yield (
                f"{measure.named(recording, window)} was in force for {measure.seconds(lasted_s)}, although step"
                f" {window.step + 1} of the method says {step.for_}"
            )


def _load_reasons(recording: Recording, load: str) -> Iterator[str]:
    try:
        ops = recording.operations(load)
    except HypothesisInvalidError:
        yield f"load {load} did not perform a single operation"
        return
    if not ops.ok.any():
        last = next((error for error in reversed(ops.errors) if error), "no error was recorded")
        yield f"load {load} had no successful operation out of {len(ops)}; the last error: {last}"


def _client_reasons(recording: Recording, client: str, spec: ClientSpec) -> Iterator[str]:
    """The reasons as for a load; also, the client's tap must have seen attempts. A service need not report operations.

    A service may start its operations late on purpose, for example because it limits how many are in flight.
    """
    try:
        attempts = recording.operations(f"{client}{ATTEMPTS}")
    except HypothesisInvalidError:
        yield (
            f"client {client} sent no request to its tap: write {{url}} where its command takes the address, or let it"
            " read CONSUL_HTTP_ADDR, NOMAD_ADDR, VAULT_ADDR or http_proxy"
        )
        return
    if not spec.service:
        yield from _load_reasons(recording, client)
        return
    if not attempts.ok.any():
        yield f"no attempt of client {client} succeeded out of {len(attempts)}"
    if client not in recording.loads:
        return
    ops = recording.operations(client)
    reported = measure.pick(ops, np.array([reason not in NOT_ITS_OWN for reason in ops.reasons], np.bool_))
    if len(reported) and not reported.ok.any():
        yield f"client {client} reported no successful operation out of {len(reported)}"
