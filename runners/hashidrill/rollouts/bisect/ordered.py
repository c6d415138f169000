"""The search for the turn in a list of candidates: the first of them that is bad.

Each new candidate is the middle of the bracket between the last one that seems good and the first one that seems bad,
so a list of n takes about log2(n) of them. Before the search goes on, the more doubtful end of its bracket runs again
until both are sure enough (`turn`); when nothing is left between them, until the answer is. A bracket that turns out
wrong opens again: what runs say moves the belief, never a decision that cannot be taken back.

The belief takes runs to be alike from first to last. Control runs of the ends (hashidrill.rollouts.bisect.controls)
notice when they are not: where a candidate answers against what is believed of it, and before an answer is given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from hashidrill.rollouts.bisect.belief import ENDS_WRONG, Belief, Noise
from hashidrill.rollouts.bisect.controls import Answer, ChangedEndError, Controls
from hashidrill.rollouts.bisect.trials import OutOfRunsError, Trials

WRONG_AT_MOST = 0.01
"""How likely a wrong turn may be over a whole search."""
TURN = 0.9
"""How sure both ends of the bracket must be before a new candidate is run."""
_ENDS = 0.95
"""How sure the ends must be before anything between them is run."""
_LEAST_TELLING = 0.05


@dataclass(frozen=True)
class Turn:
    """The answer: `first_bad` is bad and `last_good` good. What lies between them cannot be run.

    `last_good` is -1 when all are bad, `first_bad` their number when none is. `wrong`: how likely it is to be wrong.
    """

    last_good: int
    first_bad: int
    wrong: float


@dataclass(frozen=True)
class CannotTell:
    """Why there is no answer, and what it takes to get one."""

    why: str
    takes: str


def changed_end(changed: ChangedEndError) -> CannotTell:
    """What became of the search: runs before and after that cannot be told apart."""
    return CannotTell(str(changed), "a machine that stays as it is, and a new search (not --resume)")


@dataclass
class Ordered:
    """One search. `known_ends`: the first is known to be good and the last to be bad, by runs made before.

    `controls`: of the search that this is a part of, which confirms its answer itself.
    """

    candidates: Sequence[str]
    trials: Trials
    wrong: float = WRONG_AT_MOST / 2  # the model is not exact: half of it is a margin
    turn: float = TURN
    noise: Noise = field(default_factory=Noise.unknown)
    known_ends: bool = False
    controls: Controls | None = None

    def __post_init__(self) -> None:
        count = len(self.candidates)
        if count < 2:
            raise ValueError("a search needs two ends")
        inside = count - 1
        end = 0.0 if self.known_ends else ENDS_WRONG
        self.belief = Belief(count, [end, *[(1 - 2 * end) / inside] * inside, end], self.noise)
        self._run: set[int] = {0, count - 1} if self.known_ends else set()
        self._unresolved: set[int] = set()
        self._confirmed = self.controls is not None or self.known_ends
        self._controls = self.controls or Controls(self.trials, self.candidates[0], self.candidates[-1])
        self._ends_known = self.known_ends

    def search(self) -> Turn | CannotTell:
        """Runs candidates until the answer is sure, or nothing more can be told."""
        try:
            trouble = None if self.known_ends else self._run_ends()
            self._ends_known = True
            while trouble is None:
                low, high = self._bracket()
                wrong = 1 - float(self.belief.turns[low + 1 : high + 1].sum())
                between = self._between(low, high)
                if between or wrong > self.wrong:
                    trouble = self._step(low, high, between)
                elif self._confirmed or low < 0 or high >= len(self.candidates):
                    return Turn(low, high, wrong)
                else:
                    self._confirmed = True
                    self._learn(self._controls.confirm(self.belief.noise()))
        except ChangedEndError as changed:
            return changed_end(changed)
        except OutOfRunsError:
            return self._out_of_runs()
        finally:
            self.noise = self.belief.noise()
        return trouble

    def _run_ends(self) -> CannotTell | None:
        last = len(self.candidates) - 1
        for end in (0, last):
            if not self._ask(end):
                return self._blind(end)
        while True:
            turns = self.belief.turns
            all_bad, none_bad = float(turns[0]), float(turns[-1])
            if not 1 - _ENDS < max(all_bad, none_bad) < 1 - self.wrong:
                return None  # as they were called, or certainly not
            doubtful = 0 if all_bad > none_bad else last
            if not self._ask(doubtful):
                return self._blind(doubtful)

    def _bracket(self) -> tuple[int, int]:
        """The last candidate that was run and seems good, -1 where none does; and the first after it that seems bad."""
        run = sorted(self._run)
        bad = [index for index in run if self.belief.bad(index) >= 0.5]
        high = bad[0] if bad else len(self.candidates)
        return max((index for index in run if index < high), default=-1), high

    def _between(self, low: int, high: int) -> list[int]:
        if low < 0 or high >= len(self.candidates):
            return []  # an end is not what it was called: nothing to search
        return [index for index in range(low + 1, high) if index not in self._unresolved]

    def _step(self, low: int, high: int, between: Sequence[int]) -> CannotTell | None:
        # how likely each end of the bracket is on the wrong side
        doubts = dict(self._doubts(low, high))
        doubtful = max(doubts, key=lambda index: doubts[index])
        if between and doubts[doubtful] <= 1 - self.turn:
            middle = (low + high) / 2
            new = min(between, key=lambda index: (abs(index - middle), index))
            self._ask(new)  # where it cannot be resolved, another one is the middle the next time
            return None
        return None if self._ask(doubtful) else self._blind(doubtful)

    def _doubts(self, low: int, high: int) -> list[tuple[int, float]]:
        found = []
        if low >= 0:
            found.append((low, self.belief.bad(low)))
        if high < len(self.candidates):
            found.append((high, 1 - self.belief.bad(high)))
        return found

    def _ask(self, index: int) -> bool:
        """Whether a run of it said anything."""
        broken = self.trials.ask(self.candidates[index])
        if broken is None:
            self._unresolved.add(index)
            return False
        against = (self.belief.bad(index) >= 0.5) is not broken
        contradicts = self._ends_known and against and self._controls.contradicts(self.candidates[index])
        self._run.add(index)
        self.belief.observe(index, broken=broken, clear=self.trials.clear)
        if contradicts:
            self._learn(self._controls.after(broken=broken, noise=self.belief.noise()))
        return True

    def _learn(self, controls: Sequence[Answer]) -> None:
        """Control runs are runs of a candidate too, where this search has it."""
        for name, broken, clear in controls:
            if name in self.candidates:
                self.belief.observe(self.candidates.index(name), broken=broken, clear=clear)

    def _blind(self, index: int) -> CannotTell:
        name = self.candidates[index]
        return CannotTell(
            f"{self.trials.shown(name)} {self.trials.tally(name)}",
            "runs of it that are valid: its recordings say what made them INVALID",
        )

    def _out_of_runs(self) -> CannotTell:
        low, high = self._bracket()
        wrong = max(1 - float(self.belief.turns[low + 1 : high + 1].sum()), self.wrong)
        noise = self.belief.noise()
        left = len(self._between(low, high))
        names = [self.candidates[at] for at in (low, high) if 0 <= at < len(self.candidates)]
        why = "; ".join(f"{self.trials.shown(name)} {self.trials.tally(name)}" for name in names)
        if noise.a_run_tells < _LEAST_TELLING:
            return CannotTell(
                f"good and bad are too alike: {why}", "an experiment, or a figure, that tells them better apart"
            )
        odds = math.log(wrong / (1 - wrong) * (1 - self.wrong) / self.wrong) if wrong < 1 else 0.0
        steps = math.ceil(math.log2(left + 1))
        more = math.ceil(3 * (odds + steps) / noise.a_run_tells) + steps  # both ends of the bracket, and turns back
        return CannotTell(
            f"after {self.trials.runs} runs, the most that were allowed, it is not sure enough: {why}",
            f"about {more} more runs: resume it with --tries {self.trials.at_most + more}",
        )
