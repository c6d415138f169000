"""What rounds of two sides say about each figure, and about all of them together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hashidrill.core.compare.pairing import fair, paired
from hashidrill.core.compare.statistics import (
    ALARMS,
    CONFIDENCE,
    LAST_LOOK,
    MOST_ROUNDS,
    MOST_TRUSTED,
    Decision,
    Interval,
    Looks,
    Prior,
    decide,
    lower_median,
    ratio,
    rounds_needed,
)
from hashidrill.core.compare.words import difference

if TYPE_CHECKING:
    from hashidrill.core.compare.measured import Figure, Measured
    from hashidrill.core.compare.played import Round


LACKS, LACKS_TIMES, LACKS_SHARE = 2, 3, 0.25
"""One side lacks a figure too often for chance: in this many rounds, this many times as often as the other side, and in
this share of all rounds."""


@dataclass(frozen=True)
class Compared:
    """One figure over all rounds. `baseline` and `candidate` are the medians of its numbers on each side."""

    figure: Figure
    decision: Decision
    interval: Interval
    margin: float
    baseline: float
    candidate: float
    more_rounds: int
    """How many more it would probably take; 0 when it is decided, MOST_ROUNDS for that or more."""
    why: str = ""
    """Why it was not measured, where it was not, or too often not on one side."""
    of: int = 0
    """How many rounds count; `interval.rounds` are those in which it was measured on both sides."""

    @property
    def is_open(self) -> bool:
        """Whether it keeps the whole from an answer.

        It is undecided, and it decides, or looks worse by its margin. A p99 that was three times as high in the few
        rounds that it takes to be sure of a p50 must not pass because nobody waited for it.
        """
        return self.decision is Decision.CANNOT_TELL and (self.figure.decides or self._looks_worse)

    @property
    def may_be_better(self) -> bool:
        """Whether it decides, and looks better by its margin, without being surely so yet."""
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
        """By how much the sides differ and its bounds, for a person; ("", "") where that says nothing."""
        known = not math.isinf(self.interval.high)
        bounds = (self.interval.low, self.interval.high) if known else None
        return difference(self.figure, self.baseline, self.candidate, self.interval.ratio, bounds)

    @property
    def differs(self) -> str:
        """`1.53 times, 1.41 to 1.66`."""
        much, bounds = self.difference
        if not much:
            return ""
        rounds = self.interval.rounds
        far = self.decision in {Decision.WORSE, Decision.BETTER}
        few = (
            f"in each of {rounds} rounds far outside of any noise" if far else f"of {rounds} rounds: too few for bounds"
        )
        return f"{much}, {bounds or few}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON: null for what is not measured, `"never"` for infinity."""
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

    `margins` and `priors` are by the names of figures; a figure without a margin there has its own. The share of
    alarms is that of all figures together.
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
    """WORSE where any figure is; CANNOT_TELL where one is open (`Compared.is_open`), or where none decides."""
    found = [each.decision for each in all_compared]
    deciding = [each.decision for each in all_compared if each.figure.decides]
    if Decision.WORSE in found:
        return Decision.WORSE
    if not deciding or any(each.is_open for each in all_compared):
        return Decision.CANNOT_TELL
    return Decision.BETTER if Decision.BETTER in deciding else Decision.NO_WORSE


def is_sure(all_compared: Sequence[Compared]) -> bool:
    """Whether more rounds would change nothing: what `play` takes as `enough`.

    It takes fewer rounds to be sure that a figure is no worse than that it is better: one that looks so is played on.
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
    pairs = [pair for number, (one, other) in enumerate(sides) if (pair := paired(figure, one, other, seed=number))]
    looks = Looks.of(at_most, prior)
    if prior is None and figure.usual:  # of other machines: it is no reason to look earlier
        prior = Prior(figure.usual, MOST_TRUSTED)
    interval = ratio(pairs, confidence=confidence, alarms=alarms, looks=looks, prior=prior, noise=figure.noise)
    decision = decide(interval, margin, lower_is_better=figure.lower_is_better)
    why = _unmeasured(sides) if sides and not pairs else ""
    if why := why or _unmeasured_alone(sides, decision):
        decision = Decision.CANNOT_TELL
    more = 0
    if decision is Decision.CANNOT_TELL:
        more = max(1, rounds_needed(interval, margin, alarms=alarms, confidence=confidence))
    was, now = (lower_median([pair[side].number for pair in sides]) for side in (0, 1))
    return Compared(
        figure,
        decision,
        interval,
        margin,
        was,
        now,
        more,
        why,
        len(sides),
    )


def _unmeasured(sides: Sequence[tuple[Measured, Measured]]) -> str:
    reasons = dict.fromkeys(each.why for pair in sides for each in pair if each.why)
    return f"not measured on both sides in any of {len(sides)} rounds: {next(iter(reasons), 'no reason was given')}"


def _unmeasured_alone(sides: Sequence[tuple[Measured, Measured]], decision: Decision) -> str:
    """Why the rounds that were measured do not speak for all: one side alone lacks the figure too often for chance.

    The rounds that a side lacks may be its worst ones: it does not pass by the others. What a candidate shows to be
    worse where it was measured stays worse.
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
            return f"not measured of the {name} alone in {len(reasons)} of {len(sides)} rounds: {reasons[0]}"
    return ""


def _more(count: int) -> str:
    if count >= MOST_ROUNDS:
        return f"this would take more than {MOST_ROUNDS} rounds: the noise is too large"
    return f"about {count} more {'round' if count == 1 else 'rounds'} would tell"


def _json(value: float) -> float | str | None:
    if math.isnan(value):
        return None
    return "never" if math.isinf(value) else round(value, 9)
