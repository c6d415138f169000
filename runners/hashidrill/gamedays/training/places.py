"""Where in the file of a scenario something stands that the experiment of one of its games says.

A scenario is checked by the experiments that it makes. What is wrong in one of them is told at the place in the file
that a person wrote, with what the seed had chosen there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hashidrill.core.errors import ExperimentError

if TYPE_CHECKING:
    from hashidrill.core.experiment.documents import Loc, Problem
    from hashidrill.gamedays.training.scenario import Written

_PART = re.compile(r"\[(\d+)\]|([^.\[\]]+)")
_UNKNOWN_KEY = re.compile(r"unknown key '([^']+)'")
_CHOSEN = re.compile(r"\$\{([^}]*)\}")
_SAME = {"datacenter", "load", "clients", "steady_state"}
_PER_BACK = 2
"""Expectations that each entry of `back` becomes."""


@dataclass(frozen=True)
class Places:
    """Of one game, with that truth, those chosen values and that red herring (None without one).

    Its method is the steps of `before`, of the truth and of the red herring, in that order.
    """

    written: Written
    truth: str
    values: Mapping[str, Any]
    herring: int | None
    before: int
    method: int
    misleading: int

    def error(self, problems: Iterable[Problem], otherwise: ExperimentError) -> ExperimentError:
        """All problems of the experiment, each where it was written; what has no place is told as it is."""
        document = self.written.document.unmarked()
        for problem in problems:
            loc = self.of(located(problem.at))
            named = _UNKNOWN_KEY.match(problem.text)
            key = named is not None and named[1] in self._at(loc, {})
            document.problem((*loc, named[1]) if named and key else loc, problem.text + self._chosen(loc), key=key)
        if not document.problems:
            return ExperimentError(f"{self.written.path}: the truth {self.truth} is no experiment: {otherwise}")
        return ExperimentError(document.message())

    def of(self, loc: Loc) -> Loc:
        """From a place in the experiment to that in the scenario."""
        if not loc or loc[0] in _SAME:
            return loc
        if len(loc) > 1 and isinstance(loc[1], int) and loc[0] in {"method", "expect"}:
            return (self._of_step if loc[0] == "method" else self._of_expectation)(loc[1], loc[2:])
        return ("truths", self.truth)

    def _of_step(self, number: int, rest: Loc) -> Loc:
        truth = ("truths", self.truth)
        if number < self.before:
            return ("before", number, *rest)
        number -= self.before
        if number < self.method:
            return (*truth, "method", number, *rest)
        number -= self.method
        known = number < self.misleading and self.herring is not None
        return ("herrings", self.herring or 0, number, *rest) if known else truth

    def _of_expectation(self, number: int, rest: Loc) -> Loc:
        truth = ("truths", self.truth)
        told = self.written.scenario.truths[self.truth]
        scenario = self.written.scenario
        back = _PER_BACK * (len(told.back) or len(scenario.load) + len(scenario.clients))
        if number < back:
            return (*truth, "back", number // _PER_BACK) if told.back else truth
        number -= back
        if number < len(told.repaired):
            return (*truth, "repaired", number, *rest)
        return (*truth, "kept", number - len(told.repaired), *rest) if told.kept is not None else truth

    def _at(self, loc: Loc, otherwise: Any) -> Any:
        value: Any = self.written.data
        for part in loc:
            try:
                value = value[part]
            except (LookupError, TypeError):
                return otherwise
        return value if isinstance(value, (dict, str)) else otherwise

    def _chosen(self, loc: Loc) -> str:
        """` (delay is soon)`, where that is what the seed put there."""
        names = _CHOSEN.findall(str(self._at(loc, "")) if isinstance(self._at(loc, ""), str) else "")
        said = ", ".join(f"{name} is {self.values[name]}" for name in names if name in self.values)
        return f" ({said})" if said else ""


def located(text: str) -> Loc:
    """`method[0].with.delay` as a place: what hashidrill.core.experiment.documents.path_text wrote."""
    return tuple(int(number) if number else name for number, name in _PART.findall(text))
