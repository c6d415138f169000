"""The issue known to break an expectation, and how badly: anything worse is a failure.

    known_issue: hashicorp/consul#22064      # however badly it breaks, and the verdict says that no bound is stated
    known_issue: {issue: boltdb/bolt#640, at_most: {times: 250}}
    known_issue: {issue: hashicorp/consul#12593, at_least: {refused_share: 40%}}

A bound is of a figure of the hypothesis, by its name: of one that ends in `_s` a length of time, in `_share` a
percentage, in `_per_s` a rate; else a number. `never` bounds a time that may never end.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from hashidrill.units import Duration, Percent, Quantity, Rate, shown

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
        """What is worse than known, and what cannot be compared: both as text, both empty when all is as known."""
        worse: list[str] = []
        unknown: list[str] = []
        for figure, words, bound, within in self._limits():
            measured = _measured(figures.get(figure))
            if math.isnan(measured):
                there = ", ".join(name for name, value in figures.items() if not math.isnan(_measured(value)))
                unknown.append(f"{figure} was not measured; there are: {there or 'no figures'}")
            elif not within(measured):
                worse.append(f"{figure} is {_words(figure, measured)}, known is {words} {bound}")
        return worse, unknown

    def _limits(self) -> Iterator[tuple[str, str, object, Any]]:
        for figure, bound in self.at_most.items():
            yield figure, "at most", bound, _number(figure, bound).__ge__
        for figure, bound in self.at_least.items():
            yield figure, "at least", bound, _number(figure, bound).__le__


def _unit(figure: str) -> type[Quantity] | None:
    return next((unit for ending, unit in _UNITS if figure.endswith(ending)), None)


def _number(figure: str, bound: object) -> float:
    """Raises ValueError that says how a bound of that figure is written."""
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
    """A figure as hypotheses leave it; NaN for what is no number."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return math.inf if value == NEVER else math.nan


def _words(figure: str, value: float) -> str:
    unit = _unit(figure)
    if math.isinf(value):
        return NEVER
    return str(unit(round(value, 4))) if unit is not None and value >= 0 else f"{value:.6g}"


def _from_text(value: Any) -> Any:
    """`known_issue: owner/repo#1` is short for one without bounds."""
    if not isinstance(value, str):
        return value
    if not re.fullmatch(ISSUE_PATTERN, value):
        raise ValueError(f"expected {_PLACE}, got {shown(value)}")
    return {"issue": value}


KnownIssueField = Annotated[KnownIssue, BeforeValidator(_from_text)]
