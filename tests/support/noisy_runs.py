"""Runs that cost nothing: candidates whose truth is planted, with runs that are wrong at given rates."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from hashidrill.bisect.trials import Outcome, Trial


@dataclass
class Planted:
    """`is_bad` is the truth. `made` are the candidates in the order of their runs."""

    is_bad: Callable[[str], bool]
    good_breaks: float = 0.0
    bad_holds: float = 0.0
    invalid: float = 0.0
    refused: Callable[[str], bool] = lambda _: False
    seed: int = 1
    made: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)

    def __call__(self, candidate: str) -> Trial:
        if self.refused(candidate):
            return Trial(Outcome.REFUSED, "the agent says no")
        self.made.append(candidate)
        if self._chance.random() < self.invalid:
            return Trial(Outcome.INVALID, "the machine was busy")
        rate = 1 - self.bad_holds if self.is_bad(candidate) else self.good_breaks
        return Trial(Outcome.BROKEN if self._chance.random() < rate else Outcome.HELD)
