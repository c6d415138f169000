"""The issue known to break an expectation, and how badly: anything worse is a failure.

    known_issue: hashicorp/consul#22064      # excuses any break; the verdict says that no bound is stated
    known_issue: {issue: boltdb/bolt#640, at_most: {times: 250}}
    known_issue: {issue: hashicorp/consul#12593, at_least: {refused_share: 40%}}

A bound names a figure of the hypothesis. The end of the figure's name gives the unit: `_s` a duration, `_share` a
percentage, `_per_s` a rate; otherwise it is a plain number. The bound `never` allows a time that never ends.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from hashidrill.core.units import Duration, Percent, Quantity, Rate, shown

ISSUE_PATTERN = r"^([A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+#[0-9]+|https://[^\s/]+\S*)$"
NEVER = "never"
FIGURE_PATTERN = r"^[a-z][a-z0-9_]*$"
_UNITS: tuple[tuple[str, type[Quantity]], ...] = (("_per_s", Rate), ("_s", Duration), ("_share", Percent))
_PLACE = "owner/repo#123 or an https URL"

Bound = Annotated[Any, WithJsonSchema({"type": ["string", "number"]})]
Bounds = dict[Annotated[str, Field(pattern=FIGURE_PATTERN, max_length=60)], Bound]


class KnownIssue(BaseModel):
    """An issue known to break an expectation, with bounds on how badly."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    issue: str = Field(pattern=ISSUE_PATTERN, description=f"{_PLACE}: what is known to break it")
    at_most: Bounds = Field(
        default={}, max_length=20, description="Figures of the hypothesis with their known upper bounds"
    )
    at_least: Bounds = Field(
        default={}, max_length=20, description="Figures of the hypothesis with their known lower bounds"
    )

    @model_validator(mode="after")
    def _bounds_are_read(self) -> Self:
        for figure, bound in [*self.at_most.items(), *self.at_least.items()]:
            _number(figure, bound)
        return self

    @property
    def bounded(self) -> bool:
        return bool(self.at_most or self.at_least)

    def beyond(self, figures: Mapping[str, Any]) -> tuple[list[str], list[str]]:
        """What exceeds the bounds, and what cannot be compared, as text; both empty when all is within bounds."""
        worse: list[str] = []
        unknown: list[str] = []
        for figure, words, bound, within in self._limits():
            measured = _measured(figures.get(figure))
            if math.isnan(measured):
                there = ", ".join(name for name, value in figures.items() if not math.isnan(_measured(value)))
                unknown.append(f"{figure} was not measured; the measured figures are: {there or 'none'}")
            elif not within(measured):
                worse.append(f"{figure} is {_words(figure, measured)}, allowed: {words} {bound}")
        return worse, unknown

    def _limits(self) -> Iterator[tuple[str, str, object, Any]]:
        for figure, bound in self.at_most.items():
            yield figure, "at most", bound, _number(figure, bound).__ge__
        for figure, bound in self.at_least.items():
            yield figure, "at least", bound, _number(figure, bound).__le__


def _unit(figure: str) -> type[Quantity] | None:
    return next((unit for ending, unit in _UNITS if figure.endswith(ending)), None)


def _number(figure: str, bound: object) -> float:
    """Raises ValueError that says how to write a bound of that figure."""
    unit = _unit(figure)
    if bound == NEVER and unit is Duration:
        return math.inf
    if unit is not None:
        if not isinstance(bound, str):
            raise ValueError(f"{figure}: {shown(bound)} has no unit; write {unit.how()}")
        try:
            return float(unit.parse(bound))
        except ValueError as error:
            raise ValueError(f"{figure}: {error}") from None
    if isinstance(bound, bool) or not isinstance(bound, (int, float)) or not math.isfinite(bound):
        raise ValueError(f"{figure}: expected a number, got {shown(bound)}")
    return float(bound)


def _measured(value: object) -> float:
    """A figure of a hypothesis as a number; NaN if it is none."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return math.inf if value == NEVER else math.nan


def _words(figure: str, value: float) -> str:
    unit = _unit(figure)
    if math.isinf(value):
        return NEVER
    return str(unit(round(value, 4))) if unit is not None and value >= 0 else f"{value:.6g}"


def _from_text(value: Any) -> Any:
    """`known_issue: owner/repo#1` is short for an issue without bounds."""
    if not isinstance(value, str):
        return value
    if not re.fullmatch(ISSUE_PATTERN, value):
        raise ValueError(f"expected {_PLACE}, got {shown(value)}")
    return {"issue": value}


KnownIssueField = Annotated[KnownIssue, BeforeValidator(_from_text)]
