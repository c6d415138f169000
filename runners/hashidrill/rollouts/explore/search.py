"""One search: trials are chosen, played and logged; what breaks a promise is confirmed, shrunk and told once.

The search is a function of its question, its seed and the results of its trials, so a search that was killed goes on
by itself: it chooses the same candidates again, and takes the results of those that are in the log from there. A trial
counts once its line is in the log.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hashidrill.core.engine.steps import NEVER_CAME
from hashidrill.core.errors import UsageError
from hashidrill.rollouts.bisect import trials as bisect
from hashidrill.rollouts.bisect.ordered import Belief, Noise
from hashidrill.rollouts.bisect.trials import Outcome, OutOfRunsError
from hashidrill.rollouts.explore.guidance import Guided, Random, Seen, Strategy
from hashidrill.rollouts.explore.space import Arm, Candidate, Space, from_plain, plain

SURE, SHRUNK_SURE = 0.01, 0.1
"""How likely a finding may be none, and one step of shrinking may be wrong: the smallest one is confirmed again."""
REPEATS = 10
"""Valid trials of the smallest candidate that its reproduction rate is of."""
SHRINKS_WITHIN = 80
"""Trials that one finding may take."""
BASELINES = 2
"""Trials without any fault, which must all hold."""
LAST_STATES = 2
BEAT_S, BEATS_S = 1.0, (1.0, 4.0)
"""The length of a beat before any leader was lost, and its bounds, in seconds."""
_TRIAL = "trial"


@dataclass(frozen=True)
class Played:
    """One trial: its candidate (empty: no fault at all), the length of its beat, and what it showed."""

    candidate: Candidate
    beat_s: float
    seen: Seen


class TrialLog(bisect.Log):
    """The log of a search: its question, then a line for each trial."""

    command = "explore"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.trials: list[Played] = []

    def add(self, played: Played) -> None:
        said = {"moves": plain(played.candidate), "beat_s": played.beat_s, **asdict(played.seen)}
        self._write(_TRIAL, said)
        self.trials.append(played)

    def _take(self, number: int, line: Mapping[str, Any]) -> None:
        if line.get("kind") != _TRIAL:
            super()._take(number, line)
            return
        said = {key: value for key, value in line.items() if key not in {"kind", "moves", "beat_s"}}
        try:
            seen = Seen(**{**said, "outcome": Outcome(said["outcome"])})
            self.trials.append(Played(from_plain(line["moves"]), float(line["beat_s"]), seen))
        except (KeyError, ValueError, TypeError):
            raise bisect.damaged(self.path, number) from None


@dataclass(frozen=True)
class Found:
    """A finding: the smallest candidate known, and how often it broke in valid trials of it."""

    candidate: Candidate
    promise: str
    signature: str
    broke: int
    of: int
    beat_s: float
    best: str
    """The recording of a trial in which it broke."""
    first_trial: int
    """The trial that showed it first, from 1."""
    faults_first: int
    """How many faults that trial had."""


@dataclass
class Result:
    """All that a search knows. `stopped` says why it ended."""

    trials: list[Played] = field(default_factory=list)
    found: list[Found] = field(default_factory=list)
    unconfirmed: list[tuple[Candidate, str]] = field(default_factory=list)
    """What broke once, and not again often enough."""
    states: dict[str, int] = field(default_factory=dict)
    """Every state and effect, with the number of the trial that reached it first."""
    pairs: Counter[tuple[Arm, Arm]] = field(default_factory=Counter)
    again: Counter[str] = field(default_factory=Counter)
    """How often a later trial showed a finding again, by signature."""
    stopped: str = ""

    @property
    def spent_s(self) -> float:
        return sum(each.seen.total_s for each in self.trials)

    def count(self, played: Played) -> list[str]:
        """Adds a trial; returns the states and effects that it reached first."""
        self.trials.append(played)
        if not played.seen.valid:
            return []
        arms = [move.arm for move in played.candidate]
        self.pairs.update((one, other) for n, one in enumerate(arms) for other in arms[n + 1 :])
        new = [each for each in dict.fromkeys((*played.seen.states, *played.seen.effects)) if each not in self.states]
        self.states |= dict.fromkeys(new, len(self.trials))
        return new


class BaselineError(Exception):
    """Nothing is known of the promises without any fault: those trials are not valid."""


class BrokenWithoutFaultError(BaselineError):
    """The promises do not hold without any fault."""


class _EndError(Exception):
    """The budget is used up. The text says which."""


Run = Callable[[Candidate, float], Seen]
"""Plays a candidate with beats of that many seconds."""


@dataclass
class Search:
    """`most`: faults of a trial; `budget_s`: seconds that all trials together may take; `most_trials`: their number.

    `keep` gets each trial after its line is in the log, with whether its recording is of further use; `tell` gets each
    finding.
    """

    space: Space
    run: Run
    log: TrialLog
    most: int = 3
    seed: int = 0
    budget_s: float = math.inf
    most_trials: int | None = None
    strategy: str = "guided"
    given_beat_s: float | None = None
    """The length of a beat; None: as long as an election takes."""
    say: Callable[[str], None] = lambda _: None
    keep: Callable[[Played, bool], None] = lambda _played, _useful: None
    tell: Callable[[Found], None] = lambda _found: None

    def __post_init__(self) -> None:
        self.result = Result()
        self._strategy: Strategy
        self._replayed = len(self.log.trials)

    def search(self) -> Result:
        """Until the budget is used up. Raises BaselineError, UsageError, and what a run raises."""
        result = self.result
        if self._replayed:
            self.say(f"{self._replayed} trials are in {self.log.path}: the search goes on from there")
        try:
            usual = self._baseline()
            chance = random.Random(self.seed)
            self._strategy = (
                Random(self.space, self.most, chance)
                if self.strategy == "random"
                else Guided(self.space, self.most, chance, usual)
            )
            while True:
                candidate = self._strategy.next()
                number, new = len(result.trials) + 1, len(result.states)
                seen = self.play(candidate)
                self._strategy.learn(candidate, seen, list(result.states)[new:])
                for promise in seen.promises if seen.outcome is Outcome.BROKEN else ():
                    self._look_into(candidate, promise, number)
        except _EndError as end:
            result.stopped = str(end)
        return result

    # trials

    def _baseline(self) -> frozenset[str]:
        usual: set[str] = set()
        invalid = 0
        held = 0
        while held < BASELINES:
            seen = self.play(())
            if seen.outcome is Outcome.BROKEN:
                raise BrokenWithoutFaultError(f"without any fault {seen.promises[0]} broke: {seen.text}")
            if seen.outcome is Outcome.HELD:
                held += 1
                usual |= {*seen.effects}
                continue
            invalid += 1
            if invalid == BASELINES:
                raise BaselineError(f"trials without any fault are not valid: {seen.text}")
        return frozenset(usual)

    @property
    def beat_s(self) -> float:
        """As long as the datacenter was without a leader, by the median of the trials in which it was."""
        if self.given_beat_s is not None:
            return self.given_beat_s
        gaps = [each.seen.gap_s for each in self.result.trials if each.seen.valid and each.seen.gap_s]
        low, high = BEATS_S
        return BEAT_S if not gaps else round(min(max(statistics.median(gaps), low), high), 1)

    def play(self, candidate: Candidate) -> Seen:
        """The next trial: from the log, as long as that has it. Raises _EndError."""
        number = len(self.result.trials)
        if number < self._replayed:
            played = self.log.trials[number]
            if played.candidate != candidate:
                raise UsageError(
                    f"{self.log.path}: trial {number + 1} is not the one that this hashidrill chooses: go on with the"
                    " version that began the search, or start again"
                )
            new = self.result.count(played)
        else:
            self._check_budget()
            played = Played(candidate, self.beat_s, self.run(candidate, self.beat_s))
            self.log.add(played)
            new = self.result.count(played)
            self.say(self._line(played, new))
        self.keep(played, bool(new) or self._shows_unknown(played))
        return played.seen

    def _check_budget(self) -> None:
        trials = self.result.trials
        if self.most_trials is not None and len(trials) >= self.most_trials:
            raise _EndError(f"all {len(trials)} trials were played")
        typical_s = statistics.median([each.seen.total_s for each in trials]) if trials else 0.0
        if trials and self.result.spent_s + typical_s > self.budget_s:
            raise _EndError("the time was used up")

    def _line(self, played: Played, new: Sequence[str]) -> str:
        seen, result = played.seen, self.result
        what = "; ".join(map(str, played.candidate)) or "no fault"
        text = f"trial {len(result.trials)}: {what}: {seen.outcome}"
        text += f": {seen.text}" if seen.text and seen.outcome is not Outcome.HELD else ""
        text += f", {len(new)} new states" if new else ""
        if result.spent_s and len(result.trials) % 10 == 0:
            text += f" [{3600 * len(result.trials) / result.spent_s:.0f} trials an hour"
            left_s = self.budget_s - result.spent_s
            text += f", {left_s / 60:.0f} min left]" if math.isfinite(left_s) else "]"
        return text

    # findings

    def _known(self, candidate: Candidate, promise: str) -> Found | None:
        """The finding that a trial shows again: the same promise broke, and the finding's faults are among its own."""
        for found in self.result.found:
            if found.promise == promise and _includes(candidate, found.candidate):
                return found
        return None

    def _shows_unknown(self, played: Played) -> bool:
        seen = played.seen
        return seen.outcome is Outcome.BROKEN and any(not self._known(played.candidate, one) for one in seen.promises)

    def _look_into(self, candidate: Candidate, promise: str, number: int) -> None:
        """Confirms, shrinks and tells what broke. Raises _EndError."""
        known = self._known(candidate, promise)
        if known is not None:
            self.result.again[known.signature] += 1
            return
        case = _Case(self, promise)
        if not case.breaks(candidate, SURE):
            self.say(f"not seen again often enough: {case.tally(candidate)}")
            self.result.unconfirmed.append((candidate, promise))
            return
        smallest = case.smallest(candidate)
        if smallest != candidate and not case.breaks(smallest, SURE):
            smallest = candidate
        while case.tally(smallest).held + case.tally(smallest).broken < REPEATS and case.ask(smallest) is not None:
            pass
        last = case.last[smallest]
        signature = f"{promise} | {' > '.join(last.states[-LAST_STATES:])}"
        if any(found.signature == signature for found in self.result.found):
            self.result.again[signature] += 1
            return
        tally = case.tally(smallest)
        found = Found(
            smallest,
            promise,
            signature,
            tally.broken,
            tally.held + tally.broken,
            self.beat_s,
            last.recording,
            number,
            len(candidate),
        )
        self.result.found.append(found)
        self.tell(found)
        self.say(f"found: {'; '.join(map(str, smallest))}: {promise} {tally}")


class _Case:
    """The repeats of one finding: what breaks the same promise, decided by the belief of bisect."""

    def __init__(self, search: Search, promise: str) -> None:
        self._search, self._promise = search, promise
        self._trials = bisect.Trials(self._run, at_most=SHRINKS_WITHIN)
        self._candidates: dict[str, Candidate] = {}
        self._known: dict[Candidate, bool] = {}
        self._noise = Noise.unknown()
        self.last: dict[Candidate, Seen] = {}
        """The last trial of each candidate in which the promise broke."""

    def _run(self, key: str) -> bisect.Trial:
        candidate = self._candidates[key]
        seen = self._search.play(candidate)
        if seen.outcome is Outcome.BROKEN and self._promise in seen.promises:
            self.last[candidate] = seen
            return bisect.Trial(Outcome.BROKEN, seen.text)
        if NEVER_CAME in seen.text:  # it will not come the next time either
            return bisect.Trial(Outcome.REFUSED, seen.text)
        judged = seen.valid and self._promise not in seen.unjudged
        return bisect.Trial(Outcome.HELD if judged else Outcome.INVALID, seen.text)

    def _key(self, candidate: Candidate) -> str:
        key = repr(candidate)
        self._candidates[key] = candidate
        return key

    def ask(self, candidate: Candidate) -> bool | None:
        """Whether the promise broke in one more valid trial; None if there is none."""
        try:
            return self._trials.ask(self._key(candidate))
        except OutOfRunsError:
            return None

    def tally(self, candidate: Candidate) -> bisect.Tally:
        return self._trials.tally(self._key(candidate))

    def breaks(self, candidate: Candidate, wrong: float) -> bool:
        """Whether it breaks the promise more often than chance: Wald's test with the belief of bisect.

        False as well if it cannot be told.
        """
        belief = Belief(1, [0.5, 0.5], self._noise)
        tally = self.tally(candidate)
        for broken in (*[True] * tally.broken, *[False] * tally.held):
            belief.observe(0, broken=broken)
        while wrong < belief.bad(0) < 1 - wrong:
            again = self.ask(candidate)
            if again is None:
                return False
            belief.observe(0, broken=again)
        return belief.bad(0) > 0.5

    def smallest(self, candidate: Candidate) -> Candidate:
        """Takes the first simpler candidate that still breaks, until there is none: delta debugging.

        A candidate that did not break is not tried again.
        """
        refused: set[Candidate] = set()
        while True:
            for simpler in self._search.space.simpler(candidate):
                if simpler in refused or not self._search.space.fits(simpler):
                    continue
                if self.breaks(simpler, SHRUNK_SURE):
                    candidate = simpler
                    break
                refused.add(simpler)
            else:
                return candidate


def _includes(candidate: Candidate, smaller: Candidate) -> bool:
    """Whether the arms of the smaller one are among the candidate's, in the same order."""
    arms = iter(move.arm for move in candidate)
    return all(any(arm == move.arm for arm in arms) for move in smaller)
