"""Reads a file of `kind: Scenario`: every mistake in it with its place."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hashidrill.core.experiment.library import read_document
from hashidrill.core.experiment.model import API_VERSION
from hashidrill.core.experiment.pydantic_messages import validated
from hashidrill.core.protocols.registry import near
from hashidrill.core.units import Duration
from hashidrill.gamedays.training.model import KIND, Scenario

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hashidrill.core.experiment.documents import Document, Loc

_CHOSEN = re.compile(r"\$\{([^}]*)\}")
_LATER = "host"
"""${host} is filled in by the debrief, once it is known; in a step it means nothing."""


@dataclass(frozen=True)
class Written:
    """A scenario, and the plain data of its file, in which the seed's choices are put."""

    scenario: Scenario
    data: dict[str, Any]
    path: Path
    document: Document


def is_scenario(document: Document) -> bool:
    """Whether its `kind` says so."""
    return isinstance(document.data, dict) and document.data.get("kind") == KIND


def read_scenario(path: Path) -> Written:
    """Raises ExperimentError: one message with the place of each problem."""
    return scenario_of(read_document(path), path)


def scenario_of(document: Document, path: Path) -> Written:
    """As `read_scenario`, of a document that was read already."""
    if not is_scenario(document):
        place = ("kind",) if isinstance(document.data, dict) and "kind" in document.data else ()
        document.problem(place, f"not a scenario: it begins with `apiVersion: {API_VERSION}` and `kind: {KIND}`")
        document.raise_problems()
    scenario = validated(document, Scenario)
    if path.stem != scenario.metadata.name:
        document.problem(("metadata", "name"), f"must be the name of the file, {path.stem}")
    _check_chosen(document, scenario)
    _check_steps(document, scenario)
    _check_traffic(document, scenario)
    document.raise_problems()
    return Written(scenario, document.data, path, document)


def _check_chosen(document: Document, scenario: Scenario) -> None:
    """Each ${name} is one that the seed chooses."""
    for loc, text in _texts(document.data, ()):
        for name in _CHOSEN.findall(text):
            if name in scenario.choose or (name == _LATER and not _is_played(loc)):
                continue
            known = f": {near(name, scenario.choose)}" if scenario.choose else ""
            document.problem(loc, f"${{{name}}} is nothing that `choose` has{known}")


def _is_played(loc: Loc) -> bool:
    """Whether it is part of the experiment that is played; the rest are words for people."""
    return loc[0] in {"datacenter", "load", "clients", "steady_state", "before", "herrings"} or (
        len(loc) > 2 and loc[0] == "truths" and loc[2] in {"method", "repaired", "kept"}
    )


def _texts(value: Any, loc: Loc) -> Iterator[tuple[Loc, str]]:
    """Every text, and where it is."""
    if isinstance(value, str):
        yield loc, value
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in children:
        yield from _texts(each, (*loc, key))


def _check_steps(document: Document, scenario: Scenario) -> None:
    for number, step in enumerate(scenario.before):
        if "for" not in step:
            document.problem(("before", number), "for is missing: what is set up ends before the hidden fault begins")
    for name, truth in scenario.truths.items():
        if not any("fault" in step for step in truth.method):
            document.problem(("truths", name, "method"), "has no fault: nothing would be hidden, and no pager would go")
    times = [((*loc, key), step.get(key, "0s")) for loc, step in _steps(scenario) for key in ("at", "for")]
    for name, truth in scenario.truths.items():
        times.append((("truths", name, "diagnosis", "around"), truth.diagnosis.around or "0s"))
    for place, time in times:
        for value in _values(time, scenario):
            try:
                Duration(value if isinstance(value, str) else "")
            except ValueError:
                document.problem(place, f"{value!r} is not a duration; write it with its unit, like 10s")


def _values(value: Any, scenario: Scenario) -> list[Any]:
    """All that the seed may make of it; of a text around a ${name}, nothing is known."""
    names = _CHOSEN.findall(value) if isinstance(value, str) else []
    if not names:
        return [value]
    return list(scenario.choose.get(names[0], [])) if value == f"${{{names[0]}}}" else []


def _steps(scenario: Scenario) -> Iterator[tuple[Loc, dict[str, Any]]]:
    yield from ((("before", number), step) for number, step in enumerate(scenario.before))
    for name, truth in scenario.truths.items():
        yield from ((("truths", name, "method", number), step) for number, step in enumerate(truth.method))
    for at, herring in enumerate(scenario.herrings):
        yield from ((("herrings", at, number), step) for number, step in enumerate(herring or []))


def _check_traffic(document: Document, scenario: Scenario) -> None:
    """Users are those of a load or of a client."""
    traffic = [*scenario.load, *scenario.clients]
    for name, truth in scenario.truths.items():
        for number, back in enumerate(truth.back):
            if back.load not in traffic:
                place = ("truths", name, "back", number, "load")
                document.problem(place, f"there is no load or client {back.load!r}: {near(back.load, traffic)}")
