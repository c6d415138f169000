"""Runs that cost nothing: candidates whose truth is planted, with runs that are wrong at given rates."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from hashidrill.rollouts.bisect.broken import CLEARLY
from hashidrill.rollouts.bisect.ordered import Ordered, Turn
from hashidrill.rollouts.bisect.trials import Outcome, Trial, Trials


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


GOOD_TIMES, BAD_TIMES = (0.99, 1.09, 0.96, 1.03, 0.95, 0.94), (2.02, 2.93, 2.13, 2.51, 2.42, 2.31, 2.40)
"""The p99 over that of the good end beside it, in the 13 runs of a bisection of uber-m3-2019 on two busy cores."""


@dataclass
class Recorded:
    """Duets as noisy as those, with heavier tails: a recorded ratio, times e to the power of Student's t over 10."""

    is_bad: Callable[[str], bool]
    seed: int = 1

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)

    def __call__(self, candidate: str) -> Trial:
        noise = self._chance.gauss(0, 1) / math.sqrt(self._chance.gammavariate(1.5, 2) / 3)  # t of 3 degrees
        ratio = self._chance.choice(BAD_TIMES if self.is_bad(candidate) else GOOD_TIMES) * math.exp(noise / 10)
        clear = abs(math.log(ratio / 1.5)) > math.log(CLEARLY)
        return Trial(Outcome.BROKEN if ratio > 1.5 else Outcome.HELD, value=ratio, clear=clear)


def searches(count: int, good_breaks: float, bad_holds: float, *, clear: float) -> tuple[int, float, int]:
    """Of so many searches of 64 commits: how many were not right, the runs of one, and the most builds of one."""
    return searches_of(count, lambda is_bad, seed: Planted(is_bad, good_breaks, bad_holds, seed=seed, clear=clear))


Runs = Callable[[str], Trial]


def searches_of(count: int, make: Callable[[Callable[[str], bool], int], Runs]) -> tuple[int, float, int]:
    """The same of any runs, made from the truth and a seed."""
    chance, wrong, runs, builds = random.Random(19), 0, 0, 0
    for seed in range(count):
        first_bad = chance.randrange(1, 65)
        trials = Trials(make(lambda name, at=first_bad: int(name) >= at, seed), at_most=150)
        answer = Ordered([str(index) for index in range(65)], trials, turn=0.99).search()
        wrong += not isinstance(answer, Turn) or answer.first_bad != first_bad
        runs, builds = runs + trials.runs, max(builds, len(trials.candidates))
    return wrong, runs / count, builds
