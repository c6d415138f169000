"""What a rehearsal runs: an experiment up to the pager, without what would end its fault before the runbook."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hashidrill.core.errors import ExperimentError, UsageError
from hashidrill.core.experiment.library import find_experiment
from hashidrill.core.experiment.loader import resolve
from hashidrill.core.experiment.model import Experiment, Mark, Step
from hashidrill.core.experiment.resolved import ResolvedExperiment
from hashidrill.core.experiment.variants import variant_of
from hashidrill.gamedays.runbooks.model import HEALTHY, Against, Runbook

WATCH_S = 10.0
"""How long users must be seen to be well after the runbook, while the fault would still be in force."""
_MOST_WATCH_S = 40.0
_LEAD_S = 0.05
_HEALTHY_S = 60.0


@dataclass(frozen=True)
class Course:
    """One run of a rehearsal: `name` is the experiment's, or `healthy`."""

    name: str
    against: Against
    look_alike: bool
    resolved: ResolvedExperiment
    at_s: float
    watch_s: float

    def given(self, runbook: Runbook) -> dict[str, Any]:
        """For the engine's process."""
        return {
            "path": str(runbook.path),
            "text": runbook.text,
            "at_s": self.at_s,
            "after_s": float(self.against.after),
            "watch_s": self.watch_s,
        }

    def info(self, runbook: Runbook) -> dict[str, Any]:
        """For run.json: enough to judge the recording again, and what the run was."""
        only = (
            ["--experiment", "none", "--look-alike", self.name]
            if self.look_alike
            else ["--experiment", self.name, "--look-alike", "none"]
        )
        return {
            "title": f"{runbook.title}, rehearsed on {self.name}{' (a look-alike)' if self.look_alike else ''}",
            "command": shlex.join(["hashidrill", "rehearse", str(runbook.path), *only]),
            "rehearsal": {
                "runbook": runbook.front.runbook,
                "experiment": self.name,
                "look_alike": self.look_alike,
                "diagnosis": self.against.diagnosis,
                "users": self.against.users,
            },
            "followed": runbook.followed,
        }


def course_of(runbook: Runbook, name: str, against: Against, *, look_alike: bool) -> Course:
    """Raises UsageError, ExperimentError."""
    healthy = name == HEALTHY
    if healthy and not look_alike:
        raise UsageError("a healthy datacenter is a look-alike: there is nothing to repair in it")
    experiment = next(iter(runbook.front.experiments)) if healthy else name
    variant = runbook.front.experiments[experiment].variant if healthy else against.variant
    resolved = resolve(find_experiment(experiment).absolute())
    if variant is not None:
        resolved = variant_of(resolved, variant)
    elif resolved.experiment.variants:
        raise UsageError(f"{runbook.path}: {name}: has variants: name one ({', '.join(resolved.experiment.variants)})")
    if resolved.experiment.datacenter.stands:
        raise UsageError(f"{runbook.path}: {name}: is about an existing datacenter; a rehearsal starts one of ours")
    return _healthy(name, against, resolved) if healthy else _held(runbook, name, against, resolved, look_alike)


def _healthy(name: str, against: Against, resolved: ResolvedExperiment) -> Course:
    """The same without its faults."""
    method = [{"mark": HEALTHY, "for": f"{_HEALTHY_S:g}s"}]
    return Course(name, against, look_alike=True, resolved=_with(resolved, method, [{}]), at_s=0.0, watch_s=WATCH_S)


def _held(runbook: Runbook, name: str, against: Against, resolved: ResolvedExperiment, look_alike: bool) -> Course:
    steps = resolved.experiment.method
    at_s = float(against.at) if against.at is not None else max(float(step.at) for step in steps)
    where = f"{runbook.path}: {name}"
    for each in against.lets_go:
        if not any(each in _called(step) for step in steps):
            raise ExperimentError(f"{where}: lets_go: {each}: the method has no such step")
    if not any(step.at <= at_s < step.at + step.for_ and not _called(step) & {*against.lets_go} for step in steps):
        raise ExperimentError(f"{where}: at: {at_s:g}s: nothing of its method lasts then; choose another moment")
    method, parameters = [], []
    written = resolved.data["method"]
    for number, step in enumerate(steps):
        if step.at > at_s:
            continue
        kept = dict(written[number])
        if _called(step) & {*against.lets_go} and step.at + step.for_ > at_s:
            kept["for"] = f"{max(at_s - step.at - _LEAD_S, _LEAD_S):g}s"
        method.append(kept)
        parameters.append(resolved.parameters.steps[number] if number < len(resolved.parameters.steps) else {})
    changed = _with(resolved, method, parameters)
    return Course(name, against, look_alike, changed, at_s, _watch_s(changed.experiment))


def _called(step: Step | Mark) -> set[str]:
    return {step.mark} if isinstance(step, Mark) else {step.fault, *([step.name] if step.name else [])}


def _watch_s(experiment: Experiment) -> float:
    """As long as the experiment gives its loads to recover, within reason."""
    asked = [
        _seconds(each.params.get("within")) + _seconds(each.params.get("window"))
        for each in experiment.expect
        if "recover" in each.hypothesis
    ]
    return min(max([WATCH_S, float(experiment.steady_state.for_) + 2, *(one + 3 for one in asked)]), _MOST_WATCH_S)


def _seconds(text: object) -> float:
    from hashidrill.core.units import Duration  # noqa: PLC0415 - a name that shadows nothing

    try:
        value = float(Duration(str(text)))
    except ValueError:
        return 0.0
    return value if math.isfinite(value) else 0.0


def _with(resolved: ResolvedExperiment, method: list[dict[str, Any]], steps: list[Any]) -> ResolvedExperiment:
    """Without guardrails: they would end the fault before the runbook has."""
    data: dict[str, Any] = {**resolved.data, "method": method, "guardrails": []}
    parameters = resolved.parameters.model_copy(update={"steps": steps})
    changed = ResolvedExperiment.from_data(_plain(replace(resolved, data=data, parameters=parameters)))
    return replace(resolved, experiment=changed.experiment, data=data, parameters=parameters)


def _plain(resolved: ResolvedExperiment) -> Mapping[str, Any]:
    return resolved.to_data()
