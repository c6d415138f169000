"""Refuses faults that cannot be in force at the same time, by what each declares: its claims, and what it restarts.

This module names no kind of fault: the faults themselves say what they cannot share (hashidrill.core.protocols.claims).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hashidrill.core.experiment.selectors import place_of
from hashidrill.core.protocols.claims import clash

if TYPE_CHECKING:
    from hashidrill.core.experiment.draft import Draft, Note, Step
    from hashidrill.core.protocols.abc import Place, Restarts


def placed(step: Step, draft: Draft) -> Place:
    """Where and when the step applies its fault, as far as that is known now."""
    return place_of(step.on, step.at, step.for_, draft.services, {"disk": draft.disk})


def check_clashes(draft: Draft, note: Note) -> None:
    """Note each step that clashes with an earlier one, and each restart of an agent that another fault holds down."""
    declared = [
        (number, step, fault, placed(step, draft))
        for number, step in enumerate(draft.steps)
        if step is not None and (fault := step.fault) is not None
    ]
    claimed = [(number, step, (place, fault.uses(place))) for number, step, fault, place in declared]
    for index, (number, step, claims) in enumerate(claimed):
        for before, earlier, others in claimed[:index]:
            if found := clash(others, claims):
                text = f"{step.kind} on {step.on} runs while method[{before}] ({earlier.kind} on {earlier.on})"
                note(("method", number), f"{text} {found.said}; {found.advice}")
                break
    for number, step, fault, place in declared:
        for other, holding, holder, there in declared if fault.restarts else ():
            if other != number and holder.holds_down and fault.restarts and _falls_into(fault.restarts, place, there):
                text = f"{step.kind} restarts {step.on} while method[{other}] ({holding.kind} on {holding.on})"
                note(
                    ("method", number, "fault"), f"{text} may still be in force; let it begin and end outside that time"
                )
                break


def _falls_into(restarts: Restarts, place: Place, down: Place) -> bool:
    """Whether it restarts an agent while another fault may hold that agent down."""
    if down.begins_s is None or down.ends_s is None or not place.hosts & down.hosts:
        return False
    return any(
        moment < down.ends_s and down.begins_s < moment + restarts.within_s for moment in restarts.moments(place)
    )
