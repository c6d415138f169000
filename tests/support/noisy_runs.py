"""Runs that cost nothing: candidates whose truth is planted, with runs that are wrong at given rates."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from hashidrill.bisect.ordered import Ordered, Turn
from hashidrill.bisect.trials import Outcome, Trial, Trials


@dataclass
class Planted:
    """`is_bad` is the truth. `made` are the candidates in the order of their runs."""

    is_bad: Callable[[str], bool]
    good_breaks: float = 0.0
    bad_holds: float = 0.0
    invalid: float = 0.0
    refused: Callable[[str], bool] = lambda _: False
    seed: int = 1
    clear: float = 0.0
    """The share of runs that call themselves clear."""
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
        broken = self._chance.random() < rate
        clear = self.clear > 0 and self._chance.random() < self.clear
        return Trial(Outcome.BROKEN if broken else Outcome.HELD, clear=clear)


def searches(count: int, good_breaks: float, bad_holds: float, *, clear: float) -> tuple[int, float, int]:
    """Of so many searches of 64 commits: how many were not right, the runs of one, and the most builds of one."""
    chance, wrong, runs, builds = random.Random(19), 0, 0, 0
    for seed in range(count):
        first_bad = chance.randrange(1, 65)
        planted = Planted(lambda name, at=first_bad: int(name) >= at, good_breaks, bad_holds, seed=seed, clear=clear)
        trials = Trials(planted, at_most=150)
        answer = Ordered([str(index) for index in range(65)], trials, turn=0.99).search()
        wrong += not isinstance(answer, Turn) or answer.first_bad != first_bad
        runs, builds = runs + trials.runs, max(builds, len(trials.candidates))
    return wrong, runs / count, builds
