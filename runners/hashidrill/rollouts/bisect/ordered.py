"""Estimates where a list of candidates turns from good to bad, from runs that may be wrong.

Runs are noisy: a good candidate breaks now and then, and a bad one holds now and then. The rates of these errors are
learnt along with the answer: a belief is a joint distribution, on a grid, over the turn (the first bad candidate) and
over both rates. This is the noisy bisection of Burnashev and Zigangirov (1974), with unknown rates. It ends when all
other turns together are less likely than the chance of a wrong answer that the caller allows.

A clear run (`hashidrill.rollouts.bisect.trials.Trial`) is wrong less often than other runs. Clear runs have their own
error rates: assumed to be lower at first, then learnt like the others.

The smallest set of changes that breaks an experiment: delta debugging for noisy and expensive runs.

First comes a search over prefixes of the changes: the last change of the shortest prefix that breaks is needed. With
that change in place, the same search over the earlier changes finds the next one, until the found changes alone break
the datacenter. Each change of the answer costs about log2(n) candidates; changes that break only together are found
one after the other.

Then `ddmin` (Zeller and Hildebrandt, 2002) removes parts of the found set until no single change can be left out.
After a search over prefixes it seldom finds anything to remove; it matters if changes cure each other, or if the agent
refuses a set whose members need each other. Such a set is unresolved: neither good nor bad.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hashidrill.rollouts.bisect.trials import OutOfRunsError, Trials

Floats = NDArray[np.float64]

GOOD_BREAKS = np.array([0.003, 0.01, 0.03, 0.06, 0.1, 0.15, 0.2, 0.26, 0.33, 0.4])
"""Rates at which a good candidate may break."""
BAD_HOLDS = np.array([0.003, 0.01, 0.03, 0.06, 0.1, 0.15, 0.2, 0.26, 0.33, 0.4, 0.5, 0.6])
"""Rates at which a bad candidate may hold. They may be higher, because a race shows only in some runs."""
APART = 0.25
"""A bad candidate breaks at least this much more often than a good one; otherwise there is nothing to find."""
_PRIOR = 9.0
"""The prior of both rates is Beta(1, 9): one run in ten is wrong; a higher rate is unlikely but possible."""
_PRIOR_CLEAR = 199.0
"""The prior for clear runs is Beta(1, 199): one in two hundred is wrong."""
_CLEAR_AS_ANY = 0.1
"""How likely it is that clear runs are wrong as often as others; this dominates if clear runs contradict each other."""
ENDS_WRONG = 0.05
"""How likely it is, before any run, that an end that the user calls good or bad is not."""


def _grid() -> tuple[Floats, Floats, Floats, Floats]:
    """The rates at which a good and a bad candidate break, and the log of each pair's prior probability.

    Returns the prior twice: for ordinary runs, and for clear runs.
    """
    good, held = (axis.ravel() for axis in np.meshgrid(GOOD_BREAKS, BAD_HOLDS, indexing="ij"))
    possible = (1 - held) - good >= APART
    good, held = good[possible], held[possible]
    widths = np.log(_width(good, GOOD_BREAKS)) + np.log(_width(held, BAD_HOLDS))
    right = np.log1p(-good) + np.log1p(-held)
    any_run, rare = (_normal(widths + (prior - 1) * right) for prior in (_PRIOR, _PRIOR_CLEAR))
    clear = np.logaddexp(np.log(1 - _CLEAR_AS_ANY) + rare, np.log(_CLEAR_AS_ANY) + any_run)
    return good, 1 - held, any_run, _normal(clear)


def _width(values: Floats, axis: Floats) -> Floats:
    """The part of the range of rates that each point of an uneven grid represents."""
    edges = np.concatenate([[0.0], (axis[1:] + axis[:-1]) / 2, [axis[-1] + (axis[-1] - axis[-2]) / 2]])
    widths: Floats = np.diff(edges)[np.searchsorted(axis, values)]
    return widths


def _normal(log_weights: Floats) -> Floats:
    top = log_weights.max()
    normal: Floats = log_weights - (top + np.log(np.exp(log_weights - top).sum()))
    return normal


_GOOD, _BAD, _BEFOREHAND, _CLEAR_BEFOREHAND = _grid()


@dataclass(frozen=True)
class Noise:
    """The belief about both error rates: the log weight of each pair on the grid. `clear`: weights for clear runs."""

    log_weights: Floats
    clear: Floats = field(default_factory=lambda: _CLEAR_BEFOREHAND)

    @classmethod
    def unknown(cls) -> Noise:
        return cls(_BEFOREHAND)

    @property
    def good_breaks(self) -> float:
        """The estimated rate at which a good candidate breaks."""
        return float(np.exp(self.log_weights) @ _GOOD)

    @property
    def bad_breaks(self) -> float:
        return float(np.exp(self.log_weights) @ _BAD)

    @property
    def a_run_tells(self) -> float:
        """The average logarithm of the factor by which one more correct run changes the odds of a turn."""
        good, bad = self.good_breaks, self.bad_breaks
        forward = bad * np.log(bad / good) + (1 - bad) * np.log((1 - bad) / (1 - good))
        backward = good * np.log(good / bad) + (1 - good) * np.log((1 - good) / (1 - bad))
        return float(min(forward, backward))


class Belief:
    """The belief about the turn in a list of `count` candidates: turn t means that t and all later ones are bad.

    Turns go from 0 (all are bad) to `count` (all are good). `prior`: how likely each turn is before any run.
    """

    def __init__(self, count: int, prior: Iterable[float], noise: Noise) -> None:
        with np.errstate(divide="ignore"):
            self._prior = np.log(np.fromiter(prior, dtype=float))
        if len(self._prior) != count + 1:
            raise ValueError(f"{count} candidates have {count + 1} turns, not {len(self._prior)}")
        self.count = count
        # given the turn, the rates of clear runs and of other runs are independent
        self._log: Mapping[bool, Floats] = {
            clear: np.repeat(weights[None, :], count + 1, axis=0)
            for clear, weights in ((False, noise.log_weights), (True, noise.clear))
        }
        self._turns = np.exp(_normal(self._prior))

    def observe(self, candidate: int, *, broken: bool, clear: bool = False) -> None:
        good, bad = (_GOOD, _BAD) if broken else (1 - _GOOD, 1 - _BAD)
        is_bad = np.arange(self.count + 1)[:, None] <= candidate
        log = self._log[clear]
        log += np.where(is_bad, np.log(bad), np.log(good))
        self._turns = np.exp(_normal(self._prior + sum(_summed(each) for each in self._log.values())))

    @property
    def turns(self) -> Floats:
        return self._turns

    def bad(self, candidate: int) -> float:
        return float(self.turns[: candidate + 1].sum())

    def noise(self) -> Noise:
        """The current belief about the rates, over all possible places of the turn."""
        return Noise(self._rates(self._log[False]), self._rates(self._log[True]))

    def _rates(self, log: Floats) -> Floats:
        weights = (np.exp(log - _summed(log)[:, None]) * self._turns[:, None]).sum(axis=0)
        with np.errstate(divide="ignore"):
            return _normal(np.log(weights))


def _summed(log: Floats) -> Floats:
    top = log.max(axis=1)
    summed: Floats = top + np.log(np.exp(log - top[:, None]).sum(axis=1))
    return summed


WRONG_RUNS = 0.2
CHANGED = math.log(1000)
"""The odds above which an end counts as having changed sides."""
_VALID = "valid runs of it: its recordings say what made them INVALID"
_RUNNABLE = "another candidate in its place that can be run"
CONTRADICTIONS = 2
"""If a candidate held this often and broke this often, more than one run must be wrong."""
_LAST = 6
Answer = tuple[str, bool, bool]
"""A control run: its candidate, whether it broke, whether it is clear."""


class ChangedEndError(Exception):
    """A known end no longer answers as before. Says which end, and how it answered; `takes` says what is needed."""

    def __init__(
        self, why: str, takes: str = "a machine whose load does not change, and a new search (not --resume)"
    ) -> None:
        super().__init__(why)
        self.takes = takes


class Controls:
    """The two ends of a search, by name, and the results of their control runs."""

    def __init__(self, trials: Trials, good: str, bad: str) -> None:
        self._trials = trials
        self.good, self.bad = good, bad
        self._odds = {good: 0.0, bad: 0.0}
        self._said: dict[str, list[bool]] = {good: [], bad: []}

    def contradicts(self, candidate: str) -> bool:
        """Whether more than one run of the candidate must be wrong; for an end, whether any run must be wrong."""
        tally = self._trials.tally(candidate)
        fewest = 1 if candidate in {self.good, self.bad} else CONTRADICTIONS
        return min(tally.held, tally.broken) >= fewest

    def after(self, *, broken: bool, noise: Noise) -> list[Answer]:
        """Makes the control runs that are needed because a candidate broke, or held, against the current belief.

        Raises ChangedEndError, OutOfRunsError.
        """
        return self._check(self.good if broken else self.bad, noise)

    def confirm(self, noise: Noise) -> list[Answer]:
        """Checks before an answer whether the good end still holds. Returns and raises as `after` does."""
        return self._check(self.good, noise)

    def _check(self, end: str, noise: Noise) -> list[Answer]:
        same, changed = WRONG_RUNS, 1 - WRONG_RUNS
        if end == self.bad:
            same, changed = min(noise.bad_breaks, 1 - WRONG_RUNS), WRONG_RUNS
        runs: list[Answer] = []
        while not runs or self._odds[end] > 0:
            broken = self._trials.ask(end)
            if broken is None:
                why = f"{self._shown(end)} has no valid runs any more: it {self._trials.tally(end)}"
                raise ChangedEndError(why, _VALID)
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


WRONG_AT_MOST = 0.01
"""How likely a wrong answer of a whole search may be."""
TURN = 0.9
"""How sure both ends of the bracket must be before a new candidate is run."""
_ENDS = 0.95
"""How sure the ends must be before anything between them is run."""
_LEAST_TELLING = 0.05
_TOSSED = 8
"""A candidate counts as neither good nor bad only if it held at least this often and broke at least this often."""


@dataclass(frozen=True)
class Turn:
    """The answer: `first_bad` is bad and `last_good` good. The candidates between them cannot be run.

    If all are bad, `last_good` is -1; if all are good, `first_bad` is their number. `wrong`: how likely the answer is
    to be wrong.
    """

    last_good: int
    first_bad: int
    wrong: float


@dataclass(frozen=True)
class CannotTell:
    """Why there is no answer, and how to get one."""

    why: str
    takes: str


def changed_end(changed: ChangedEndError) -> CannotTell:
    """The result if an end answers differently than before."""
    return CannotTell(str(changed), changed.takes)


@dataclass
class Ordered:
    """One search. `known_ends`: earlier runs showed that the first candidate is good and the last one bad.

    `controls`: the controls of a larger search that this is part of, and that confirms the answer itself.
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
        """Runs candidates until the answer is certain, or no further run can help."""
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
                return None  # the ends are as the user calls them, or surely not
            doubtful = 0 if all_bad > none_bad else last
            if not self._ask(doubtful):
                return self._blind(doubtful)

    def _bracket(self) -> tuple[int, int]:
        """The last candidate that was run and seems good, or -1; and the first one after it that seems bad."""
        run = sorted(self._run)
        bad = [index for index in run if self.belief.bad(index) >= 0.5]
        high = bad[0] if bad else len(self.candidates)
        return max((index for index in run if index < high), default=-1), high

    def _between(self, low: int, high: int) -> list[int]:
        if low < 0 or high >= len(self.candidates):
            return []  # an end is not as the user calls it: nothing to search
        return [index for index in range(low + 1, high) if index not in self._unresolved]

    def _step(self, low: int, high: int, between: Sequence[int]) -> CannotTell | None:
        # how likely each end of the bracket is on the wrong side
        doubts = dict(self._doubts(low, high))
        doubtful = max(doubts, key=lambda index: doubts[index])
        if between and doubts[doubtful] <= 1 - self.turn:
            middle = (low + high) / 2
            new = min(between, key=lambda index: (abs(index - middle), index))
            self._ask(new)  # if it cannot be resolved, the next step takes another middle
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
        for name, broken, clear in controls:
            if name in self.candidates:
                self.belief.observe(self.candidates.index(name), broken=broken, clear=clear)

    def _blind(self, index: int) -> CannotTell:
        name = self.candidates[index]
        tally = self.trials.tally(name)
        return CannotTell(f"{self.trials.shown(name)} {tally}", _RUNNABLE if tally.refused else _VALID)

    def _tossed(self, name: str) -> bool:
        """Whether the runs look like coin tosses, so that more runs would not help."""
        tally = self.trials.tally(name)
        return min(tally.held, tally.broken) >= max(_TOSSED, (tally.held + tally.broken) / 3)

    def _out_of_runs(self) -> CannotTell:
        low, high = self._bracket()
        wrong = max(1 - float(self.belief.turns[low + 1 : high + 1].sum()), self.wrong)
        noise = self.belief.noise()
        left = len(self._between(low, high))
        names = [self.candidates[at] for at in (low, high) if 0 <= at < len(self.candidates)]
        why = "; ".join(f"{self.trials.shown(name)} {self.trials.tally(name)}" for name in names)
        if noise.a_run_tells < _LEAST_TELLING or any(map(self._tossed, names)):
            return CannotTell(
                f"good and bad are too alike: {why}", "an experiment, or a figure, that tells them better apart"
            )
        odds = math.log(wrong / (1 - wrong) * (1 - self.wrong) / self.wrong) if wrong < 1 else 0.0
        steps = math.ceil(math.log2(left + 1))
        more = math.ceil(3 * (odds + steps) / noise.a_run_tells) + steps  # both ends of the bracket, and steps back
        return CannotTell(
            f"after {self.trials.used}, the most allowed, the answer is not sure enough: {why}",
            f"about {more} more runs: resume with --tries {self.trials.at_most + more}",
        )


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
