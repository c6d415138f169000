"""Known ends that run again while a search goes on: do they still answer as they did at its begin?

A machine that gets busier makes good candidates break, and the search follows them to a culprit that is none, or goes
round in circles where the answers of one candidate contradict each other. So when they do, the end whose side it should
be on by what was believed of it runs again: the good end where it broke, the bad one where it held.

Each answer of an end moves the odds that it has changed sides, from none on (a CUSUM test, Page 1954); while they are
above none, the end runs again. The odds are those of one wrong run in five, the most that bisect promises to stand:
what a search learns from its first runs is too little to rely on, and from later ones it learns the change. A bad end
that was seen to hold more often than that is given as much.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashidrill.rollouts.bisect.belief import Noise
    from hashidrill.rollouts.bisect.trials import Trials

WRONG_RUNS = 0.2
CHANGED = math.log(1000)
"""The odds from which on an end has changed sides."""
CONTRADICTIONS = 2
"""A candidate that held and broke this often each is more than one wrong run."""
_LAST = 6
Answer = tuple[str, bool, bool]
"""A control run: its candidate, whether it broke, whether it is clear."""


class ChangedEndError(Exception):
    """A known end no longer answers as it did. Its text says which, and how it answered."""


class Controls:
    """The two ends of a search, by name, and what their control runs say."""

    def __init__(self, trials: Trials, good: str, bad: str) -> None:
        self._trials = trials
        self.good, self.bad = good, bad
        self._odds = {good: 0.0, bad: 0.0}
        self._said: dict[str, list[bool]] = {good: [], bad: []}

    def contradicts(self, candidate: str) -> bool:
        """Whether the runs of a candidate contradict each other: more than a single wrong one would. Of an end, any."""
        tally = self._trials.tally(candidate)
        fewest = 1 if candidate in {self.good, self.bad} else CONTRADICTIONS
        return min(tally.held, tally.broken) >= fewest

    def after(self, *, broken: bool, noise: Noise) -> list[Answer]:
        """A candidate broke, or held, against what was believed of it: the runs of an end that this asks for.

        Raises ChangedEndError, OutOfRunsError.
        """
        return self._check(self.good if broken else self.bad, noise)

    def confirm(self, noise: Noise) -> list[Answer]:
        """Before an answer is given: does the good end still hold? As `after`."""
        return self._check(self.good, noise)

    def _check(self, end: str, noise: Noise) -> list[Answer]:
        same, changed = WRONG_RUNS, 1 - WRONG_RUNS
        if end == self.bad:
            same, changed = min(noise.bad_breaks, 1 - WRONG_RUNS), WRONG_RUNS
        runs: list[Answer] = []
        while not runs or self._odds[end] > 0:
            broken = self._trials.ask(end)
            if broken is None:
                raise ChangedEndError(f"{self._shown(end)} says nothing any more: it {self._trials.tally(end)}")
            runs.append((end, broken, self._trials.clear))
            self._said[end].append(broken)
            odds = math.log(changed / same) if broken else math.log((1 - changed) / (1 - same))
            self._odds[end] = max(0.0, self._odds[end] + odds)
            if self._odds[end] >= CHANGED:
                raise ChangedEndError(self._changed(end))
        return runs

    def _changed(self, end: str) -> str:
        said = self._said[end][-_LAST:]
        how = f"of its last {len(said)} control runs {sum(said)} broke and {len(said) - sum(said)} held"
        return f"{self._shown(end)} no longer answers {'good' if end == self.good else 'bad'}: {how}"

    def _shown(self, end: str) -> str:
        return f"the known {'good' if end == self.good else 'bad'} end ({self._trials.shown(end)})"
