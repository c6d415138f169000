"""The smallest set of changes that breaks an experiment: delta debugging for noisy and expensive runs.

First comes a search over prefixes of the changes: the last change of the shortest prefix that breaks is needed. With
that change in place, the same search over the earlier changes finds the next one, until the found changes alone break
the datacenter. Each change of the answer costs about log2(n) candidates; changes that break only together are found
one after the other.

Then `ddmin` (Zeller and Hildebrandt, 2002) removes parts of the found set until no single change can be left out.
After a search over prefixes it seldom finds anything to remove; it matters if changes cure each other, or if the agent
refuses a set whose members need each other. Such a set is unresolved: neither good nor bad.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hashidrill.rollouts.bisect.ordered import (
    WRONG_AT_MOST,
    Belief,
    CannotTell,
    ChangedEndError,
    Controls,
    Noise,
    Ordered,
    Turn,
    changed_end,
)
from hashidrill.rollouts.bisect.trials import OutOfRunsError, Trials

_TURN = 0.9
_DECISION = 6
"""About five runs decide on one set."""


def set_name(members: Sequence[int]) -> str:
    """The name of a set of changes in logs: their numbers from 1, as ranges: `1-6,9`. `none` for no change."""
    numbers, parts = sorted(members), list[str]()
    while numbers:
        end = next((at for at in range(1, len(numbers)) if numbers[at] != numbers[0] + at), len(numbers))
        first, last = numbers[0] + 1, numbers[end - 1] + 1
        parts.append(f"{first}" if first == last else f"{first}-{last}")
        numbers = numbers[end:]
    return ",".join(parts) or "none"


def members_of(name: str) -> list[int]:
    """The changes of a set by its name, numbered from 0."""
    found: list[int] = []
    for part in name.split(",") if name != "none" else ():
        first, _, last = part.partition("-")
        found += range(int(first) - 1, int(last or first))
    return found


@dataclass(frozen=True)
class Smallest:
    """The answer: the numbers of the changes, from 0. `apart`: whether each of these changes is known to be needed,
    which stays unknown if the agent refuses every smaller set. `wrong`: how likely the answer is to be wrong.

    """

    changes: tuple[int, ...]
    apart: bool
    wrong: float


@dataclass(frozen=True)
class WrongEnd:
    """The experiment breaks even without any change (`good`), or holds with all changes."""

    good: bool
    wrong: float


class _GaveUpError(Exception):
    def __init__(self, answer: CannotTell) -> None:
        self.answer = answer


@dataclass
class SmallestSet:
    count: int
    trials: Trials
    allowed: float = WRONG_AT_MOST
    noise: Noise = field(default_factory=Noise.unknown)
    _known: dict[str, bool | None] = field(default_factory=dict)
    _decisions: int = 0
    _wrong: float = 0.0

    def __post_init__(self) -> None:
        self._controls = Controls(self.trials, set_name([]), set_name(range(self.count)))

    def search(self) -> Smallest | WrongEnd | CannotTell:
        """Runs sets of changes until the answer is sure, or until more runs cannot help."""
        try:
            first = self._turn([], range(self.count), known_ends=False)
            if first.last_good < 0 or first.first_bad > self.count:
                return WrongEnd(good=first.last_good < 0, wrong=self._wrong)
            needed, before = list(range(first.last_good, first.first_bad)), list(range(first.last_good))
            while not self.bad(needed) and before:
                turn = self._turn(needed, before, known_ends=True)
                needed = [*before[turn.last_good : turn.first_bad], *needed]
                before = before[: turn.last_good]
            found, apart = self._ddmin(needed)
            if all(self.trials.answers[-_DECISION:]):  # if one of the last runs held, some candidates are still good
                self._controls.confirm(self.noise)
        except _GaveUpError as gave_up:
            return gave_up.answer
        except ChangedEndError as changed:
            return changed_end(changed)
        except OutOfRunsError:
            return self._out_of_runs(set_name([])).answer
        return Smallest(tuple(sorted(found)), apart, self._wrong)

    def _turn(self, base: Sequence[int], others: Sequence[int], *, known_ends: bool) -> Turn:
        """The shortest prefix of `others` that, added to `base`, breaks."""
        names = [set_name([*base, *others[:size]]) for size in range(len(others) + 1)]
        share = self._next_share()
        search = Ordered(names, self.trials, share, _TURN, self.noise, known_ends=known_ends, controls=self._controls)
        answer = search.search()
        self.noise = search.noise
        if isinstance(answer, CannotTell):
            raise _GaveUpError(answer)
        self._wrong += answer.wrong
        if answer.last_good >= 0 and answer.first_bad < len(names):
            self._known[names[answer.last_good]] = False
            self._known[names[answer.first_bad]] = True
        return answer

    def bad(self, members: Sequence[int]) -> bool | None:
        """Whether this set breaks; None if the agent refuses it. No set is decided twice."""
        name = set_name(members)
        if name not in self._known:
            self._known[name] = False if not members else self._decide(name)
        return self._known[name]

    def _decide(self, name: str) -> bool | None:
        """Wald's sequential test with the error rates learnt so far: runs the set until the answer is sure."""
        allowed, belief = self._next_share(), Belief(1, [0.5, 0.5], self.noise)
        try:
            while allowed < belief.bad(0) < 1 - allowed:
                broken = self.trials.ask(name)
                if broken is None:
                    return None
                contradicts = self._controls.contradicts(name) and (belief.bad(0) >= 0.5) is not broken
                belief.observe(0, broken=broken, clear=self.trials.clear)
                if contradicts:
                    self._controls.after(broken=broken, noise=belief.noise())
        except OutOfRunsError:
            raise self._out_of_runs(name) from None
        self.noise = belief.noise()
        self._wrong += min(belief.bad(0), 1 - belief.bad(0))
        return belief.bad(0) > 0.5

    def _out_of_runs(self, name: str) -> _GaveUpError:
        more = 5
        return _GaveUpError(
            CannotTell(
                f"after {self.trials.used}, the most allowed, the answer is not sure enough:"
                f" {self.trials.shown(name)} {self.trials.tally(name)}",
                f"at least {more} more runs: resume with --tries {self.trials.at_most + more}",
            )
        )

    def _next_share(self) -> float:
        """The next decision's part of the allowed chance of a wrong answer; the parts' sum never exceeds it."""
        self._decisions += 1
        return (
            self.allowed / 2 if self._decisions == 1 else self.allowed / 2 / (self._decisions * (self._decisions - 1))
        )

    def _ddmin(self, found: Sequence[int]) -> tuple[list[int], bool]:
        rest, parts = list(found), 2
        while len(rest) > 1:
            chunks = [part.tolist() for part in np.array_split(rest, parts)]
            smaller = self._smaller(rest, chunks)
            if smaller is not None:
                rest, parts = smaller
            elif parts < len(rest):
                parts = min(len(rest), 2 * parts)
            else:
                break
        apart = all(self._known.get(set_name(_without(rest, [one]))) is False for one in rest if len(rest) > 1)
        return rest, apart

    def _smaller(self, rest: Sequence[int], chunks: Sequence[Sequence[int]]) -> tuple[list[int], int] | None:
        """A chunk that breaks by itself, or the rest without a chunk if that breaks; and how many parts come next."""
        for chunk in chunks:
            if self.bad(chunk):
                return list(chunk), 2
        if len(chunks) > 2:  # with two chunks, each is the rest without the other
            for chunk in chunks:
                left = _without(rest, chunk)
                if self.bad(left):
                    return left, max(len(chunks) - 1, 2)
        return None


def _without(members: Sequence[int], others: Sequence[int]) -> list[int]:
    return [one for one in members if one not in set(others)]
