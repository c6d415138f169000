"""Compares each figure over the rounds of two sides, and all figures together.

Most figures are compared as ratios. Errors are compared as odds, because a share of errors is limited on both sides:
from 50 % to 74 % is three times the odds. 1 % is added to both failed and served operations, so that no errors against
one in a thousand is 1.1 times, and no errors on both sides is 1. Counts are only as exact as counting: two errors
against none may be chance.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hashidrill.core.compare.measured import IN_DOUBT_AT_MOST, Figure, Measured, Use
from hashidrill.core.compare.statistics import (
    ALARMS,
    CONFIDENCE,
    LAST_LOOK,
    MOST_ROUNDS,
    MOST_TRUSTED,
    Decision,
    Interval,
    Looks,
    Paired,
    Prior,
    decide,
    lower_median,
    of_intervals,
    ratio,
    rounds_needed,
)
from hashidrill.core.recording.columns import Floats

FEWEST_INTERVALS = 5
"""If both sides measured fewer common intervals than this, only the round's two numbers count."""
MOST_TIMES = 100.0
"""Beyond this, the exact ratio does not matter."""
_ROUGHLY = 1.1
"""A report shows two medians next to a ratio only if their quotient lies within the ratio's bounds, widened by this
factor."""
_MOST_LOG = 700.0
"""e to more than this is too large for a float."""
ABSENT_APART = 0.05
"""If agents were down for this much more of their time on one side, its cost looks smaller than it is.

In runs of raft/killed-leader, with four agents and a varying time until the leader is back, it was 0.10 and 0.13.
"""


def paired(figure: Figure, baseline: Measured, candidate: Measured, *, seed: int = 0) -> Paired | None:
    """One round; None if a side was not measured, or lacks what the other side has (`fair`).

    Uses the round's intervals if enough of them were measured on both sides, otherwise the two numbers.
    """
    baseline, candidate = fair(baseline, candidate)
    if math.isnan(baseline.number) or math.isnan(candidate.number):
        return None
    one, other = baseline.intervals, candidate.intervals
    longest = max(baseline.at_most, candidate.at_most)
    if one is not None and other is not None:
        count = min(len(one), len(other))
        logs = log_ratio(figure, one[:count], other[:count], longest)
        logs = logs[~np.isnan(logs)]
        if len(logs) >= FEWEST_INTERVALS:
            return of_intervals(logs, seed)
    log = log_ratio(figure, np.array([baseline.number]), np.array([candidate.number]), longest)
    return Paired(float(log[0]), counted=_counting_error(figure, baseline, candidate))


def fair(baseline: Measured, candidate: Measured) -> tuple[Measured, Measured]:
    """Both figures in comparable form. A figure that looks better only because parts of it are missing counts as not
    measured, and so do two figures that show nothing.

    A cost that lacks an agent that was down is a lower bound: it may show that this side costs more, never less. If
    a load was shed on both sides, it exceeded the generator's queue on both.
    """
    if math.isnan(baseline.number) or math.isnan(candidate.number):
        return baseline, candidate
    both, apart = min(baseline.shed, candidate.shed), abs(candidate.shed - baseline.shed)
    if both > IN_DOUBT_AT_MOST and apart <= IN_DOUBT_AT_MOST:
        return _unknown(_shed(baseline)), _unknown(_shed(candidate))
    gone = candidate.absent - baseline.absent
    worse = candidate.number > baseline.number
    if gone > ABSENT_APART and not worse:
        return baseline, _unknown(_gone(candidate))
    if gone < -ABSENT_APART and worse:
        return _unknown(_gone(baseline)), candidate
    return baseline, candidate


def _unknown(why: str) -> Measured:
    return Measured(math.nan, why=why)


def _shed(measured: Measured) -> str:
    share = f"{measured.shed:.0%} of its operations could not be started"
    return f"{share}, and about as many on the other side: lower the load's rate"


def _gone(measured: Measured) -> str:
    gone = f"its agents were gone for {measured.absent:.0%} of their time, {measured.who} the longest"
    return f"{gone}: their CPU use is missing from this figure"


def log_ratio(figure: Figure, baseline: Floats, candidate: Floats, longest: float = math.inf) -> Floats:
    """The logarithms of candidate over baseline, as the figure compares them; NaN where one was not measured.

    An event that never came (infinity) counts as longer than both runs could have measured (`longest`), and as
    MOST_TIMES the other side's time, so that it ranks after every measured time. If it never came on either side, the
    sides are equal.
    """
    one, other = (np.where(np.isinf(each), each, np.minimum(each, longest)) for each in (baseline, candidate))
    return np.asarray(_log(figure, other, one, longest) - _log(figure, one, other, longest), np.float64)


def _log(figure: Figure, mine: Floats, others: Floats, longest: float) -> Floats:
    never = np.isinf(mine)
    logs = figure.log(np.where(never, 1.0, mine))
    beyond = figure.log(np.where(np.isinf(others), 1.0, others)) + math.log(MOST_TIMES)
    if not math.isinf(longest):
        beyond = np.maximum(beyond, figure.log(np.array(longest)))
    return np.where(never, np.where(np.isinf(others), logs, beyond), logs)


def _counting_error(figure: Figure, baseline: Measured, candidate: Measured) -> float:
    """The standard error of a round's counts, from counting alone; 0 for measured figures.

    For error shares it is the binomial error of the pooled share, by the delta method. Bursts of errors make the real
    error larger; the scatter between rounds shows that. Without any error on either side, the rule of three (Hanley and
    Lippman-Hand, JAMA 1983): with fewer than 3 / 1 % = 300 operations, an error share that matters could show no error
    at all. For losses it is the Poisson error.
    """
    if figure.odds:
        counts = (baseline.of, candidate.of)
        if not all(counts):
            return 0.0
        failed = baseline.number * counts[0] + candidate.number * counts[1]
        if failed < 0.5:
            failed = 0.0 if min(counts) * figure.floor >= 3 else 0.5
        share = failed / sum(counts)
        slope = 1 / (share + figure.floor) + 1 / (1 - share + figure.floor)
        return math.sqrt(sum(share * (1 - share) / each for each in counts)) * slope
    if figure.unit == "":
        return math.sqrt(sum(each.number / (each.number + figure.floor) ** 2 for each in (baseline, candidate)))
    return 0.0


def difference(
    figure: Figure, baseline: float, candidate: float, ratio: float, bounds: tuple[float, float] | None = None
) -> tuple[str, str]:
    """For a person: (`1.53 times`, `1.41 to 1.66`). `ratio` and `bounds` are as compared.

    ("", "") if a ratio means nothing: a recovery that never came is not a multiple of another one, and 200 losses are
    not a multiple of zero.
    """
    if math.isnan(ratio) or math.isinf(baseline) or math.isinf(candidate):
        return "", ""
    if figure.odds:
        low, high = (_points(figure, baseline, each) for each in bounds or (math.nan, math.nan))
        between = f"{low:+.1f} to {high:+.1f}" if bounds else ""
        return f"{_points(figure, baseline, ratio):+.1f} percentage points", between
    if figure.unit == "" and 0 in {baseline, candidate}:
        return "", ""
    return f"{_times(ratio)} times", f"{_times(bounds[0])} to {_times(bounds[1])}" if bounds else ""


def _times(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio <= MOST_TIMES else f"over {MOST_TIMES:g}"


def _points(figure: Figure, share: float, ratio: float) -> float:
    """How many percentage points the share rises if its odds, counted as in `Figure.log`, are multiplied by `ratio`."""
    odds = ratio * (share + figure.floor) / (1 - share + figure.floor)
    there = 1 + figure.floor if math.isinf(odds) else (odds * (1 + figure.floor) - figure.floor) / (1 + odds)
    return 100 * (min(max(there, 0.0), 1.0) - share)


@dataclass(frozen=True)
class Played:
    """One run of one side. `invalid`: why it does not count; `unsteady`: it never reached its method."""

    side: str
    recording: Path
    measured: Mapping[str, Measured] = field(repr=False)
    invalid: str = ""
    unsteady: bool = False
    use: Use | None = None
    """How much of the machine the run used."""

    @property
    def disturbed(self) -> bool:
        """Whether other work on the machine disturbed the run, which may explain what broke."""
        return self.use is not None and bool(self.use.why)


@dataclass(frozen=True)
class Round:
    """One run of each side, in the order in which they were played; a spoilt round may have only one."""

    number: int
    runs: Sequence[Played]
    names: tuple[str, str]
    """The baseline's name and the candidate's."""

    @property
    def counts(self) -> bool:
        return len(self.runs) == len(self.names) and not any(run.invalid for run in self.runs)

    @property
    def sides(self) -> tuple[Played, Played]:
        """The baseline's run and the candidate's. Only for a round that counts."""
        by_name = {run.side: run for run in self.runs}
        return by_name[self.names[0]], by_name[self.names[1]]


LACKS, LACKS_TIMES, LACKS_SHARE = 2, 3, 0.25
"""One side lacks a figure too often for chance: in this many rounds, this many times as often as the other side, and in
this share of all rounds.
"""


class Pair(NamedTuple):
    """One figure in one round, measured on both sides."""

    round: int
    baseline: float
    candidate: float
    ratio: float
    """Candidate over baseline, as compared."""


@dataclass(frozen=True)
class Compared:
    """One figure over all rounds. `baseline` and `candidate` are the medians of its numbers in `pairs`."""

    figure: Figure
    decision: Decision
    interval: Interval
    margin: float
    baseline: float
    candidate: float
    more_rounds: int
    """How many more rounds a decision would probably take; 0 if it is made, MOST_ROUNDS for that many or more."""
    why: str = ""
    """Why the figure was not measured, or was too often missing on one side."""
    of: int = 0
    """The number of rounds that count; `interval.rounds` counts those in which both sides measured the figure."""
    pairs: Sequence[Pair] = ()
    """The rounds from which the interval and both medians come."""

    @property
    def is_open(self) -> bool:
        """Whether this figure keeps the whole comparison undecided.

        True for an undecided figure that is one of the deciding ones, or looks worse by its margin. Otherwise a p99
        three times as high could pass in the few rounds that settle a p50.
        """
        return self.decision is Decision.CANNOT_TELL and (self.figure.decides or self._looks_worse)

    @property
    def may_be_better(self) -> bool:
        """Whether this deciding figure looks better by its margin, but not yet surely."""
        return self.figure.decides and self.decision is Decision.NO_WORSE and self._times_worse <= 1 / self.margin

    @property
    def _looks_worse(self) -> bool:
        return self._times_worse >= self.margin

    @property
    def _times_worse(self) -> float:
        times_worse = self.interval.ratio
        if not self.figure.lower_is_better and times_worse:
            times_worse = 1 / times_worse
        return times_worse

    def __str__(self) -> str:
        """For a person: `kv-writes.latency.p50: worse: 612ms, was 401ms (1.53 times, 1.41 to 1.66)`."""
        if self.why:
            return f"{self.figure.name}: {self.decision}: {self.why}"
        was = f"{self.figure.shown(self.candidate)}, was {self.figure.shown(self.baseline)}"
        text = f"{self.figure.name}: {self.decision}: {was}" + (f" ({self.differs})" if self.differs else "")
        return f"{text}; {_more(self.more_rounds)}" if self.decision is Decision.CANNOT_TELL else text

    @property
    def difference(self) -> tuple[str, str]:
        """The difference between the sides and its bounds, as text; ("", "") if a ratio means nothing.

        It is also empty if it would contradict the two medians: some rounds have a "never", the figure's floor is
        larger than what was measured, or the seconds of the rounds differ by more than their medians.
        """
        return ("", "") if self._nevers or not self._as_shown else self._unchecked

    @property
    def _unchecked(self) -> tuple[str, str]:
        bounds = None if math.isinf(self.interval.high) else (self.interval.low, self.interval.high)
        return difference(self.figure, self.baseline, self.candidate, self.interval.ratio, bounds)

    @property
    def _as_shown(self) -> bool:
        """Whether the two medians agree with the ratio or its interval."""
        if math.isinf(self.baseline) or math.isinf(self.candidate):
            return False
        if self.figure.odds:
            one, other = self.figure.log(np.array([self.baseline, self.candidate]))
            shown = math.exp(other - one)
        elif self.baseline:
            shown = self.candidate / self.baseline
        else:
            shown = math.inf if self.candidate else 1.0
        known = not math.isinf(self.interval.high)
        low, high = (self.interval.low, self.interval.high) if known else (self.interval.ratio,) * 2
        return low / _ROUGHLY <= shown <= high * _ROUGHLY

    @property
    def _nevers(self) -> str:
        """`never in 1 of 2 rounds of the baseline`, if the median of that side hides it."""
        said = []
        for side, median in (("baseline", self.baseline), ("candidate", self.candidate)):
            count = sum(math.isinf(getattr(each, side)) for each in self.pairs)
            if count and not math.isinf(median):
                said.append(f"never in {count} of {len(self.pairs)} rounds of the {side}")
        return ", ".join(said)

    @property
    def differs(self) -> str:
        """`1.53 times, 1.41 to 1.66`; if a ratio would mean nothing, says what is known instead."""
        much, bounds = self.difference
        rounds = self.interval.rounds
        sure = self.decision in {Decision.WORSE, Decision.BETTER}
        if sure and math.isinf(self.interval.high):
            bounds = f"in each of {rounds} rounds far outside of any noise"
        elif math.isinf(self.interval.high) and rounds and not self._nevers:
            much, bounds = "", f"{rounds} round{'' if rounds == 1 else 's'}: too few for bounds"
        elif sure and not bounds and not self._nevers and self._unchecked[1]:
            much, bounds = f"round by round {self._unchecked[0]}", self._unchecked[1]
        return ", ".join(part for part in (self._nevers, much, bounds) if part)

    def as_dict(self) -> dict[str, Any]:
        """The value for JSON: null if not measured, `"never"` for infinity."""
        return {
            "figure": self.figure.name,
            "unit": self.figure.unit,
            "decides": self.figure.decides,
            "decision": str(self.decision),
            "margin": self.margin,
            "rounds": self.interval.rounds,
            "baseline": _json(self.baseline),
            "candidate": _json(self.candidate),
            "ratio": _json(self.interval.ratio),
            "low": _json(self.interval.low),
            "high": _json(self.interval.high),
            "more_rounds": self.more_rounds,
            "why": self.why,
            "pairs": [
                {
                    "round": each.round,
                    "baseline": _json(each.baseline),
                    "candidate": _json(each.candidate),
                    "ratio": _json(each.ratio),
                }
                for each in self.pairs
            ],
        }


def compared(
    rounds: Sequence[Round],
    figures: Sequence[Figure],
    *,
    at_most: int = LAST_LOOK,
    margins: Mapping[str, float] | None = None,
    priors: Mapping[str, Prior] | None = None,
    confidence: float = CONFIDENCE,
    alarms: float = ALARMS,
) -> list[Compared]:
    """Each figure over the rounds that count. `at_most`: the number of rounds that was planned.

    `margins` and `priors` are by the names of figures; a figure that `margins` does not name uses its own margin. All
    figures together share the rate of false alarms.
    """
    return [
        _compared(
            rounds,
            figure,
            at_most=at_most,
            margin=(margins or {}).get(figure.name, figure.margin),
            prior=(priors or {}).get(figure.name),
            confidence=confidence,
            alarms=alarms / max(1, len(figures)),
        )
        for figure in figures
    ]


def together(all_compared: Sequence[Compared]) -> Decision:
    """WORSE if any figure is WORSE; CANNOT_TELL if a figure is open (`Compared.is_open`), or if no figure decides."""
    found = [each.decision for each in all_compared]
    deciding = [each.decision for each in all_compared if each.figure.decides]
    if Decision.WORSE in found:
        return Decision.WORSE
    if not deciding or any(each.is_open for each in all_compared):
        return Decision.CANNOT_TELL
    return Decision.BETTER if Decision.BETTER in deciding else Decision.NO_WORSE


def is_sure(all_compared: Sequence[Compared]) -> bool:
    """Whether more rounds cannot change the result; for the parameter `enough` of `play`.

    A figure needs fewer rounds to be surely not worse than to be surely better, so the rounds continue for a figure
    that looks better.
    """
    if any(each.may_be_better for each in all_compared):
        return False
    return together(all_compared) is not Decision.CANNOT_TELL


def _compared(
    rounds: Sequence[Round],
    figure: Figure,
    *,
    at_most: int,
    margin: float,
    prior: Prior | None,
    confidence: float,
    alarms: float,
) -> Compared:
    sides = [
        fair(one.measured[figure.name], other.measured[figure.name]) for one, other in (each.sides for each in rounds)
    ]
    rows = [
        (pair, Pair(each.number, one.number, other.number, math.exp(min(pair.log, _MOST_LOG))))
        for number, (each, (one, other)) in enumerate(zip(rounds, sides, strict=True))
        if (pair := paired(figure, one, other, seed=number))
    ]
    pairs = [pair for pair, _ in rows]
    looks = Looks.of(at_most, prior)
    if prior is None and figure.usual:  # measured on other machines, so no reason to look earlier
        prior = Prior(figure.usual, MOST_TRUSTED)
    interval = ratio(pairs, confidence=confidence, alarms=alarms, looks=looks, prior=prior, noise=figure.noise)
    decision = decide(interval, margin, lower_is_better=figure.lower_is_better)
    why = _unmeasured(sides) if sides and not pairs else ""
    if why := why or _unmeasured_alone(sides, decision):
        decision = Decision.CANNOT_TELL
    more = 0
    if decision is Decision.CANNOT_TELL:
        more = max(1, rounds_needed(interval, margin, alarms=alarms, confidence=confidence))
    shown = [row for _, row in rows]
    was, now = lower_median([row.baseline for row in shown]), lower_median([row.candidate for row in shown])
    return Compared(figure, decision, interval, margin, was, now, more, why, len(sides), shown)


def _unmeasured(sides: Sequence[tuple[Measured, Measured]]) -> str:
    reasons = dict.fromkeys(each.why for pair in sides for each in pair if each.why)
    any_ = "the one round" if len(sides) == 1 else f"any of {len(sides)} rounds"
    return f"not measured on both sides in {any_}: {next(iter(reasons), 'no reason was given')}"


def _unmeasured_alone(sides: Sequence[tuple[Measured, Measured]], decision: Decision) -> str:
    """Why the measured rounds do not represent all rounds: only one side lacks the figure, and too often for chance.

    The missing rounds of a side may be its worst ones, so the measured ones alone do not let it pass. A candidate
    that was measured to be worse stays worse.
    """
    lacks = [tuple(math.isnan(each.number) for each in pair) for pair in sides]
    for name, index in (("baseline", 0), ("candidate", 1)):
        reasons = [
            pair[index].why
            for pair, missing in zip(sides, lacks, strict=True)
            if missing[index] and not missing[1 - index]
        ]
        others = sum(missing[1 - index] and not missing[index] for missing in lacks)
        if len(reasons) < max(LACKS, LACKS_TIMES * others) or len(reasons) < LACKS_SHARE * len(sides):
            continue
        if name == "baseline" or decision is not Decision.WORSE:
            return f"missing for the {name} alone in {len(reasons)} of {len(sides)} rounds: {reasons[0]}"
    return ""


def _more(count: int) -> str:
    if count >= MOST_ROUNDS:
        return f"this would take more than {MOST_ROUNDS} rounds: the noise is too large"
    return f"about {count} more {'round' if count == 1 else 'rounds'} would tell"


def _json(value: float) -> float | str | None:
    if math.isnan(value):
        return None
    return "never" if math.isinf(value) else round(value, 9)
