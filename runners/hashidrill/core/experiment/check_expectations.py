"""Checks expectations: they must name loads, clients and faults that exist, and leave time to be judged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hashidrill.core.experiment.draft import Side
from hashidrill.core.protocols.registry import near
from hashidrill.core.tap.catalogue import FAULTS
from hashidrill.core.units import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import BaseModel

    from hashidrill.core.experiment.draft import Draft, Note


def check_expectations(draft: Draft, note: Note) -> None:
    for index, expectation in enumerate(draft.expectations):
        if expectation is None:
            continue
        whole = Side(("expect", index, expectation.name), expectation.params, expectation.never)
        for each in (whole, *expectation.sides):
            check_named(each, draft, note)
            for key, text in each.never(each.params, draft) if each.never else ():
                note((*each.loc, key), text)


def check_named(side: Side, draft: Draft, note: Note) -> None:
    """Note what the parameters of a hypothesis name and the experiment does not have."""
    steps = [step for step in draft.steps if step is not None]
    marks = {mark.name for mark in draft.marks.values() if mark.name}
    kinds = sorted({step.kind for step in steps} | {step.name for step in steps if step.name} | marks)
    of_a_client = param(side.params, "client") is not None
    for key, noun, known in (
        ("load", "load", draft.load_names),
        ("client", "client", draft.clients),
        ("fault", "step of the method with the fault", kinds),
    ):
        for value in _named(side.params, key):
            if known is None or value in known or (key == "fault" and of_a_client and _befalls(value)):
                continue
            note((*side.loc, key), f"there is no {noun} {shown(value)}: {near(value, known)}")


def _befalls(name: str) -> bool:
    """Whether an attempt can fail this way: expectations about a client may name such a failure instead of a step."""
    return name in FAULTS or name == "no-reply" or name.isdecimal()


def _named(params: BaseModel, key: str) -> Iterator[str]:
    """What the parameter `key` names: one text, or each of a list; nothing if it was left out."""
    value = param(params, key)
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple)):
        yield from (each for each in value if isinstance(each, str))


def param(params: BaseModel | None, key: str) -> Any:
    """The parameter that YAML calls `key`, or None where there is none."""
    if params is None:
        return None
    fields = type(params).model_fields.items()
    return next((getattr(params, name) for name, spec in fields if key == (spec.alias or name)), None)
