"""A scenario with a seed's choices: one hidden truth, one choice of each list, and the experiment that plays it.

The same scenario with the same seed is the same game. A person acts during the method of its experiment
(hashidrill.core.engine.steps): faults in force when the last hidden fault begins stay in force until the trainee is
done. Then a mark, `watch`, lasts for the time in which users must be well again, before any fault is reverted.
"""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hashidrill.core.errors import ExperimentError
from hashidrill.core.experiment.documents import Document
from hashidrill.core.experiment.library import KIND as EXPERIMENT
from hashidrill.core.experiment.loader import resolve_document
from hashidrill.core.experiment.model import API_VERSION
from hashidrill.core.experiment.resolved import ResolvedExperiment
from hashidrill.core.units import Duration
from hashidrill.gamedays.training.scenario import Pager, Places, Truth, Written

WATCH, WATCH_S = "watch", 15.0
"""The time after `say done` in which users must be back, with nothing reverted."""
_FAR_S = 600.0
"""The nominal length of faults: the method's clock stands still while the trainee works, so any value works."""
_RECOVERY_S = 5.0
_DISK = "512MB"
_KV_WRITES = "consul.kv.write"


@dataclass(frozen=True)
class Choice:
    """The choices of a seed."""

    seed: int
    truth: str
    values: Mapping[str, Any]
    herring: int | None
    """The index into `herrings`; None without any."""


@dataclass(frozen=True)
class Course:
    """A game that can be played."""

    name: str
    title: str
    level: int
    choice: Choice
    truth: Truth
    pager: Pager
    hand_over: str
    limit_s: float
    quiet_s: float
    """The longest time that the trainee looks around before anything breaks."""
    resolved: ResolvedExperiment
    hidden: tuple[int, ...]
    """The method's steps that are the hidden truth, counted from 0."""
    act_s: float
    """The time of the method at which its clock stops for the trainee."""
    back: tuple[int, ...]
    """The expectations about users, as indices into `expect`; all other expectations are about losses."""


def chosen(written: Written, seed: int) -> Choice:
    """The seed's choices, which are the same on every machine."""
    scenario = written.scenario
    picks = random.Random(f"{scenario.metadata.name}:{seed}")
    truth = picks.choice(list(scenario.truths))
    values = {name: picks.choice(values) for name, values in scenario.choose.items()}
    herring = picks.randrange(len(scenario.herrings)) if scenario.herrings else None
    return Choice(seed, truth, values, herring)


def each_choice(written: Written) -> list[Choice]:
    """Enough choices to include each truth with each value and each red herring."""
    scenario = written.scenario
    herrings = range(len(scenario.herrings)) or [None]
    longest = max([len(herrings), *map(len, scenario.choose.values())])
    return [
        Choice(
            number,
            truth,
            {name: values[number % len(values)] for name, values in scenario.choose.items()},
            herrings[number % len(herrings)],
        )
        for truth in scenario.truths
        for number in range(longest)
    ]


def course_of(written: Written, choice: Choice) -> Course:
    """The game of that choice. Raises ExperimentError that names the choice if the game cannot be played."""
    scenario = written.scenario
    data = filled(written.data, choice.values)
    truth = Truth.model_validate_json(json.dumps(data["truths"][choice.truth]), strict=True)
    pager = Pager.model_validate_json(json.dumps(data["pager"]), strict=True)
    before = data.get("before") or []
    ready_s = max([0.0, *(_s(step.get("at", "0s")) + _s(step["for"]) for step in before)])
    act_s = max(ready_s + _s(step.get("at", "0s")) for step in truth.method)
    ends_s = act_s + _FAR_S
    misleading = data["herrings"][choice.herring] if choice.herring is not None else None
    steps = [
        *before,
        *(_held(step, ready_s, ends_s) for step in truth.method),
        *(_held(step, ready_s, ends_s) for step in misleading or []),
        {"mark": WATCH, "at": _seconds(ends_s), "for": _seconds(WATCH_S)},
    ]
    loads, datacenter = data.get("load") or {}, data.get("datacenter") or {}
    back = [*_back(truth, [*loads, *(data.get("clients") or {})]), *truth.repaired]
    kept = truth.kept
    if kept is None:
        kept = [
            {"no_acknowledged_write_lost": {"load": name}}
            for name, load in loads.items()
            if load.get("kind") == _KV_WRITES
        ]
    experiment = {
        "apiVersion": API_VERSION,
        "kind": EXPERIMENT,
        "metadata": {
            "name": "game",
            "title": "A game of training",
            "why": "A trainee learns the symptoms of this fault",
        },
        # every game has sized disks, so a size reveals nothing
        "datacenter": {**datacenter, "disk": {"size": _DISK, **(datacenter.get("disk") or {})}},
        **{key: data[key] for key in ("load", "clients") if data.get(key)},
        "steady_state": data.get("steady_state") or _steady([*loads, *(data.get("clients") or {})]),
        "method": steps,
        "recovery": {"for": _seconds(_RECOVERY_S)},
        "expect": [*back, *kept],
    }
    document = Document(str(written.path), json.dumps(experiment, indent=1))
    try:
        resolved = resolve_document(document, path=written.path)
    except ExperimentError as error:
        counts = len(before), len(truth.method), len(misleading or [])
        places = Places(written, choice.truth, choice.values, choice.herring, *counts)
        raise places.error(document.problems, error) from None
    hidden = [number for number, step in enumerate(truth.method, len(before)) if "fault" in step]
    return Course(
        scenario.metadata.name,
        scenario.metadata.title,
        scenario.metadata.level,
        choice,
        truth,
        pager,
        filled(scenario.hand_over, choice.values),
        float(scenario.metadata.limit),
        float(scenario.metadata.quiet),
        resolved,
        tuple(hidden),
        act_s,
        tuple(range(len(back))),
    )


def filled(value: Any, values: Mapping[str, Any]) -> Any:
    """Replaces ${name}; a text that is only ${name} becomes the value. Others stay: ${host} is replaced later."""
    if isinstance(value, str):
        for name, chosen_value in values.items():
            if value == f"${{{name}}}":
                return chosen_value
            value = value.replace(f"${{{name}}}", str(chosen_value))
        return value
    if isinstance(value, dict):
        return {key: filled(each, values) for key, each in value.items()}
    return [filled(each, values) for each in value] if isinstance(value, list) else value


def _held(step: Mapping[str, Any], ready_s: float, ends_s: float) -> dict[str, Any]:
    """A step whose `at` counts from the end of the set-up. It lasts until the game ends unless it says otherwise."""
    at_s = ready_s + _s(step.get("at", "0s"))
    lasts = step.get("for", _seconds(ends_s + WATCH_S - at_s))
    return {**step, "at": _seconds(at_s), "for": lasts}


def _back(truth: Truth, traffic: Sequence[str]) -> list[dict[str, Any]]:
    wanted = [(each.load, each.p50_below, float(each.errors_below)) for each in truth.back]
    wanted = wanted or [(name, Duration("300ms"), 0.01) for name in traffic]
    judged: list[dict[str, Any]] = []
    for load, p50, errors in wanted:
        judged += [
            {"available_during": {"load": load, "success": f"{(1 - errors) * 100:g}%", "fault": WATCH}},
            {"latency_stays": {"load": load, "p50_below": str(p50), "fault": WATCH, "window": "5s"}},
        ]
    return judged


def _steady(traffic: Sequence[str]) -> dict[str, Any]:
    return {"for": "8s", "within": "120s", "require": [f"{name}.errors < 1%" for name in traffic]}


def _seconds(value: float) -> str:
    return f"{value:g}s"


def _s(text: Any) -> float:
    try:
        return float(Duration(text))
    except (ValueError, TypeError):
        raise ExperimentError(f"{text!r} is not a time; write it like 10s") from None
