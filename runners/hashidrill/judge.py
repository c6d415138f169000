"""Judges a recording: whether the run counts at all, and what each expectation came to.

A pure function of the recording: no clock, no network. The same recording gives the same verdict today and in a year.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from hashidrill import hypothesis, measure
from hashidrill.errors import HashidrillError, HypothesisInvalidError, RecordingError
from hashidrill.files import write_whole
from hashidrill.loads.schedule import OVERLOADED
from hashidrill.loads.services import ENDED
from hashidrill.measure import longest_run
from hashidrill.model import ATTEMPTS
from hashidrill.recording_seal import damage
from hashidrill.verdict import Finding, Judgement, RunVerdict

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hashidrill.model import ClientSpec, Expectation, Experiment
    from hashidrill.recording import FaultWindow, Operations, Recording

VERDICT_NAME = "verdict.json"
GUARDRAIL = "guardrail"
"""The `hypothesis` of a judgement that stands for a guardrail that tripped."""

LATE_S = 0.05
LATE_SHARE_MAX = 0.10
LAG_P99_MAX_S = 0.25
SATURATED_CORES = 0.9
SATURATED_SAMPLES = 3

_OUTCOMES = {
    "died": "the run died: its journal has no end (was it killed?)",
    "crashed": "the run crashed",
    "interrupted": "the run was interrupted",
    "steady-state": "the steady state never held, so no fault was applied",
    "fault": "a fault could not be put in force",
    "revert": "a fault could not be reverted",
}


def judge(recording: Recording, experiment: Experiment | None = None, *, near_to: Path | None = None) -> RunVerdict:
    """The verdict of a run, by the expectations it was recorded with, or by those of another `experiment`.

    The run is INVALID, whatever its expectations say, when it did not end as planned, the steady state never held, a
    fault was not proven in force (or there was none), one could not be reverted, a load had no successful operation,
    or the generator was behind its own schedule. Expectations of such a run are INVALID, but for those that
    mean the same in any run (`needs_valid_run=False`). A guardrail that tripped is a BROKEN judgement of its own: it
    is the datacenter that went past the limit that was set for it. A recording that is damaged
    (hashidrill.recording_seal) is INVALID in all of its parts. `near_to` is the experiment's own file, where a user's
    `hypotheses/` folder is looked for.

    Raises RecordingError for a recording of a newer hashidrill.
    """
    recording.check_format()
    try:
        experiment = experiment or recording.experiment
    except (HashidrillError, OSError) as error:
        return RunVerdict([f"the experiment of this recording cannot be read: {error}", *damage(recording)], [])
    if damaged := damage(recording):
        return RunVerdict(damaged, [_unjudged(expectation, damaged[0]) for expectation in experiment.expect])
    try:
        return _judged(recording, experiment, near_to)
    except RecordingError as error:  # one without a seal, of which only what is asked for is read
        return RunVerdict([str(error)], [_unjudged(expectation, str(error)) for expectation in experiment.expect])


def _unjudged(expectation: Expectation, why: str) -> Judgement:
    """Not even an expectation that means the same in any run means anything where the recording itself is not whole."""
    text = f"not judged: {why}"
    return Judgement(expectation.title, expectation.hypothesis, Finding.INVALID, text, {}, expectation.known_issue)


def _judged(recording: Recording, experiment: Experiment, near_to: Path | None) -> RunVerdict:
    invalid = list(_invalid_reasons(recording, experiment))
    judgements = [
        _judge(recording, expectation, invalid, near_to or recording.path) for expectation in experiment.expect
    ]
    if not judgements:
        invalid.append("there is nothing to check: the experiment expects nothing")
    return RunVerdict(invalid, [*judgements, *_guardrails(recording)])


def write_verdict(recording: Recording, *, near_to: Path | None = None) -> RunVerdict:
    """Judge, and leave the verdict in the recording as verdict.json."""
    verdict = judge(recording, near_to=near_to)
    document = {"verdict": verdict.verdict, **dataclasses.asdict(verdict)}
    write_whole(recording.path / VERDICT_NAME, json.dumps(document, indent=2, allow_nan=False) + "\n")
    return verdict


def read_verdict(path: Path) -> RunVerdict:
    """The verdict that was left in a recording's directory. Raises RecordingError when there is none that reads."""
    file = path / VERDICT_NAME
    try:
        document = json.loads(file.read_text())
        judgements = [Judgement(**{**each, "finding": Finding(each["finding"])}) for each in document["judgements"]]
        return RunVerdict(list(document["invalid"]), judgements)
    except FileNotFoundError:
        raise RecordingError(f"{file}: not judged yet; `hashidrill check {path}` does it") from None
    except (ValueError, KeyError, TypeError) as error:
        raise RecordingError(f"{file}: not readable ({error}); `hashidrill check {path}` writes it again") from None


def _judge(recording: Recording, expectation: Expectation, invalid: list[str], near_to: Path) -> Judgement:
    finding, text, figures = _find(recording, expectation, invalid, near_to)
    known = expectation.known_issue
    if known and finding is Finding.BROKEN:
        finding = Finding.KNOWN
    elif known and finding is Finding.HELD:
        finding = Finding.FIXED
        text = f"{text}\nit held, although known_issue says {known}: if that is mended, take the known_issue out"
    return Judgement(expectation.title, expectation.hypothesis, finding, text, figures, known)


def _find(
    recording: Recording, expectation: Expectation, invalid: list[str], near_to: Path
) -> tuple[Finding, str, dict[str, Any]]:
    try:
        found = hypothesis.get(expectation.hypothesis, near_to=near_to)
    except HashidrillError as error:
        return Finding.INVALID, str(error), {}
    if "method" not in recording.phases:
        return Finding.INVALID, f"not judged: {invalid[0] if invalid else 'the run never got to its method'}", {}
    finding, text, figures = _check(found, recording, expectation)
    if invalid and found.needs_valid_run and finding is not Finding.INVALID:
        text = f"not judged, because the run is INVALID: {invalid[0]}\n(measured all the same: {finding}: {text})"
        return Finding.INVALID, text, figures
    return finding, text, figures


def _check(
    found: hypothesis.Hypothesis, recording: Recording, expectation: Expectation
) -> tuple[Finding, str, dict[str, Any]]:
    try:
        held = found.check(recording, expectation.params)
    except hypothesis.Broken as broken:
        return Finding.BROKEN, broken.text, broken.figures
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc'])) or found.name}: {e['msg']}" for e in error.errors())
        return Finding.INVALID, f"its parameters do not fit: {wrong}", {}
    except HashidrillError as error:
        return Finding.INVALID, str(error), {}
    return Finding.HELD, held.text, held.figures


def _invalid_reasons(recording: Recording, experiment: Experiment) -> Iterator[str]:
    outcome = recording.outcome
    if outcome not in {"complete", "guardrail"}:
        yield _outcome_reason(recording, outcome)
    elif any(entry.data.get("held") is False for entry in recording.events("steady")):
        yield _OUTCOMES["steady-state"]
    if "method" not in recording.phases:
        if outcome in {"complete", "guardrail"}:
            yield "the run never got to its method: no fault was applied"
        return
    yield from _fault_reasons(recording)
    if outcome == "complete":
        yield from _steps_left_out(recording, experiment)
    yield from generator_reasons(recording, experiment)
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
    return f"{reason}: {_readable(detail)}" if detail else reason


def _readable(detail: Any) -> str:
    """Evidence as text, whether it was kept as text or as `{asked, measured}`."""
    if isinstance(detail, dict) and "measured" in detail:
        return f"asked for {detail.get('asked')}, measured {detail['measured']}"
    if isinstance(detail, dict):
        return ", ".join(f"{key}: {value}" for key, value in detail.items())
    if isinstance(detail, (list, tuple)):
        return "; ".join(map(_readable, detail))
    return str(detail)


def _fault_reasons(recording: Recording) -> Iterator[str]:
    if not recording.faults:
        yield "no fault was applied, so nothing was tried"
    for window in recording.faults:
        if not window.proven:
            yield f"fault {measure.named(recording, window)} {_not_proven(window)}"
        if window.applied_ns is not None and window.gone_ns is None and window.proven:
            detail = window.error or (
                "it was never reverted" if window.reverted_ns is None else "it was never seen gone"
            )
            yield f"fault {measure.named(recording, window)} was not proven gone: {detail}"


def _not_proven(window: FaultWindow) -> str:
    if window.proof is not None:
        return f"was not proven in force: {_readable(window.proof)}"
    if window.error:
        return f"could not be applied: {window.error}"
    return "was not proven in force: the run ended before it could be measured"


def _steps_left_out(recording: Recording, experiment: Experiment) -> Iterator[str]:
    """Steps of the method that the journal has no intent for."""
    intents = recording.events("fault.intent")
    if not intents or any("step" not in entry.data for entry in intents):
        return
    done = {entry.data["step"] for entry in intents}
    for index, step in enumerate(experiment.method):
        if index not in done:
            yield f"step {index + 1} of the method ({step.fault} on {step.on}) was never carried out"


def _load_reasons(recording: Recording, load: str) -> Iterator[str]:
    try:
        ops = recording.operations(load)
    except HypothesisInvalidError:
        yield f"load {load} did no operation at all"
        return
    if not ops.ok.any():
        last = next((error for error in reversed(ops.errors) if error), "no error was recorded")
        yield f"load {load} had no successful operation out of {len(ops)}; the last error: {last}"


def generator_reasons(recording: Recording, experiment: Experiment) -> Iterator[str]:
    """Where the generator was the bottleneck, and not the datacenter."""
    if (saturated := _generator_saturated(recording)) is not None:
        yield saturated
    runs = [name for name, client in experiment.clients.items() if not client.service]
    for load in (*experiment.load, *runs):
        if load in recording.loads:
            ops = recording.operations(load)
            if ops.ok.any() and (late := _generator_behind(ops)) is not None:
                yield f"load {load}: {late}"


def _generator_saturated(recording: Recording) -> str | None:
    """What to say when the generator used up its core for a while: then it was its own queue that was measured.

    It is one process with one thread. Three samples in a row (a second each) are no burst any more, and over 90 % of a
    core, what is due waits ten times as long as it takes, by the usual rule of a single queue.
    """
    if "generator.cpu" not in recording.signals:
        return None
    series = recording.series("generator.cpu")
    first, last = longest_run(series.value > SATURATED_CORES)
    if last - first + 1 < SATURATED_SAMPLES:
        return None
    return (
        f"the generator used up its core: over {SATURATED_CORES:g} for {last - first + 1} s in a row, at most"
        f" {float(series.value[first : last + 1].max()):.2f}; ask for less load"
    )


def _client_reasons(recording: Recording, client: str, spec: ClientSpec) -> Iterator[str]:
    """As for a load, and its attempts were seen at its tap. A service need not report any operation.

    How late a service starts its operations is its own doing, as when it bounds how many are under way.
    """
    try:
        attempts = recording.operations(f"{client}{ATTEMPTS}")
    except HypothesisInvalidError:
        yield (
            f"client {client} made no request to its tap: put {{url}} where the address goes, or let it read"
            " CONSUL_HTTP_ADDR, NOMAD_ADDR, VAULT_ADDR or http_proxy"
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
    reported = measure.pick(ops, np.array([not error.startswith(ENDED) for error in ops.errors], np.bool_))
    if len(reported) and not reported.ok.any():
        yield f"client {client} reported no successful operation out of {len(reported)}"


def _generator_behind(ops: Operations) -> str | None:
    """What to say when the generator, not the datacenter, was slow; None when it kept its schedule.

    Both must be true. More than 10 % of the operations started over 50 ms late: fewer cannot move a median, and 50 ms
    is the sleep granularity of a busy two-core machine, several times over. And the lag's p99 is over 250 ms: just
    under 300 ms, the tightest published SLO for KV latency (Roblox, 2021), which the generator alone would then eat up.
    """
    if refused := sum(error.startswith(OVERLOADED) for error in ops.errors):
        return f"{refused} of {len(ops)} operations could not be started: the {OVERLOADED}; ask for a lower rate"
    late = float((ops.lag_s > LATE_S).mean())
    p99 = float(np.percentile(ops.lag_s, 99))
    if late <= LATE_SHARE_MAX or p99 <= LAG_P99_MAX_S:
        return None
    return (
        f"the generator fell behind its own schedule: {late:.0%} of the operations started over {LATE_S * 1e3:.0f}ms"
        f" late, p99 {p99 * 1e3:.0f}ms; ask for a lower rate, or give this machine more cores"
    )


def _guardrails(recording: Recording) -> list[Judgement]:
    return [
        Judgement(
            f"{GUARDRAIL}({entry.data.get('condition')})", GUARDRAIL, Finding.BROKEN,
            f"guardrail `{entry.data.get('condition')}` tripped {entry.t_ns / 1e9:.1f}s into the run"
            f" ({_readable(entry.data.get('evidence') or 'no evidence')}):"
            " all faults were reverted, the method ended early",
        )
        for entry in recording.events("guardrail")
    ]  # fmt: skip
