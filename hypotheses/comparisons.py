"""Two variants of one experiment, side by side: is one no worse than the other, or better, and how sure is that?"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from hashidrill import Duration, Held, HypothesisInvalidError, Percent, Recording, Size, comparison, require
from hashidrill.core.compare.comparison import difference, fair, paired
from hashidrill.core.compare.figures import figure as figure_of
from hashidrill.core.compare.measured import Figure
from hashidrill.core.compare.statistics import (
    ALARMS,
    CONFIDENCE,
    Decision,
    Interval,
    Looks,
    Paired,
    decide,
    lower_median,
    ratio,
    t_quantile,
)
from hashidrill.core.errors import UsageError
from hashidrill.core.experiment.model import Experiment

_MOST = 50
"""The most rounds that an experiment may have."""
_ROUNDS = 3
"""Three rounds have an interval. Fewer do not show how much two equal runs differ, whatever their seconds say."""
_UNITS = {"s": Duration, "share": Percent, "bytes": Size}


def _too_few_rounds(params: Any, experiment: Experiment) -> Iterator[tuple[str, str]]:
    if experiment.rounds < _ROUNDS and getattr(params, "or_below", None) is None:
        yield "figure", f"`rounds: {experiment.rounds}` cannot tell a difference from luck; write {_ROUNDS} or more"


@comparison(rounds=True, never=_too_few_rounds)
def no_worse_than(
    candidate: Sequence[Recording],
    baseline: Sequence[Recording],
    *,
    figure: str,
    by: Percent | None = None,
    or_below: str | None = None,
) -> Held:
    """The candidate's figure is no worse than the baseline's, or worse by less than `by`.

    `figure` is a figure that both have: `LOAD.latency.p50` and `.p99` (during a mark that an expectation on that load
    names, otherwise under fault, or in a method without faults all the time), `LOAD.steady.p50` (before the method),
    `LOAD.errors`, `LOAD.recovery`, `LOAD.lost`, `ready` (from the start of the agents until all are alive and a leader
    is known), `cpu`, `memory`, `written`. Each has its own default for `by` (20 % for a p50). With `or_below`, like
    `300ms`, a candidate below that value in every round is not worse, whatever the baseline is; for this limit, seconds
    when the machine was busy count too.

    INVALID if the interval of the ratio over the rounds does not decide; the text says how many more rounds would.
    Fewer than three rounds have no interval, and can decide only `or_below`.
    """
    if or_below is not None and (under := _under(figure, candidate, or_below)):
        return under
    measured = _measured(figure, candidate, baseline)
    margin = 1 + by if by is not None else measured.figure.margin
    decision = measured.decided(margin)
    require(
        decision is not Decision.WORSE,
        f"{measured.said()}: worse by {_percent(measured.ratio)}, allowed: {_percent(margin)}",
        **measured.figures(),
    )
    if decision is Decision.CANNOT_TELL:
        raise HypothesisInvalidError(f"cannot tell: {measured.said()}; {measured.how_to_tell(margin)}")
    return Held(f"{measured.said()}: no worse by {_percent(margin)}", **measured.figures())


@comparison(rounds=True, never=_too_few_rounds)
def better_than(
    candidate: Sequence[Recording], baseline: Sequence[Recording], *, figure: str, by: Percent | None = None
) -> Held:
    """The candidate's figure is better than the baseline's by `by` or more.

    `figure`, `by` and the rounds that are needed are the same as for `no_worse_than`. With `by: 50%`, the baseline's
    figure is at least one and a half times the candidate's.
    """
    measured = _measured(figure, candidate, baseline)
    margin = 1 + by if by is not None else measured.figure.margin
    decision = measured.decided(margin)
    better = decision is Decision.BETTER
    require(
        better or not measured.surely_not_better(margin),
        f"{measured.said()}: not better by {_percent(margin)}",
        **measured.figures(),
    )
    if not better:
        raise HypothesisInvalidError(f"cannot tell: {measured.said()}; {measured.how_to_tell(margin)}")
    return Held(f"{measured.said()}: better by {_percent(margin)} or more", **measured.figures())


class _Measured:
    """One figure of both sides, in all rounds."""

    def __init__(self, figure: Figure, candidate: list[float], baseline: list[float], pairs: list[Paired]) -> None:
        self.figure, self.candidate, self.baseline, self.pairs = figure, candidate, baseline, pairs
        enough = len(pairs) >= _ROUNDS
        self.interval: Interval | None = ratio(pairs, looks=Looks(len(pairs), len(pairs))) if enough else None

    @property
    def ratio(self) -> float:
        """Candidate over baseline."""
        return math.exp(sum(each.log for each in self.pairs) / len(self.pairs))

    def decided(self, margin: float) -> Decision:
        if self.interval is not None:
            return decide(self.interval, margin, lower_is_better=self.figure.lower_is_better)
        return Decision.CANNOT_TELL

    def surely_not_better(self, margin: float) -> bool:
        if self.interval is None:
            return False
        if self.figure.lower_is_better:
            return self.interval.low > 1 / margin
        return self.interval.high < margin

    def how_to_tell(self, margin: float) -> str:
        if self.interval is None:
            return f"with `rounds: {_ROUNDS}` or more there is an interval"
        more = _more_rounds(self.interval, margin)
        return f"about {more} more rounds would tell" if more else f"over {_MOST} rounds would be needed to tell"

    def said(self) -> str:
        shown = self.figure.shown
        middles = lower_median(self.baseline), lower_median(self.candidate)
        bounds = None if self.interval is None else (self.interval.low, self.interval.high)
        much, sure = difference(self.figure, *middles, self.ratio, bounds)
        differs = f"{much}{f' ({sure})' if sure else ''} " if much else ""
        return (
            f"{self.figure.name} is {shown(middles[1])}, the baseline's is {shown(middles[0])}:"
            f" {differs}in {len(self.pairs)} round{'s' if len(self.pairs) > 1 else ''}"
        )

    def figures(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "candidate": self.figure.shown(lower_median(self.candidate)),
            "ratio": self.ratio,
            "baseline": self.figure.shown(lower_median(self.baseline)),
            "rounds": len(self.pairs),
        }
        if self.interval is not None:
            found |= {"ratio_low": self.interval.low, "ratio_high": self.interval.high}
        return found


def _measured(name: str, candidate: Sequence[Recording], baseline: Sequence[Recording]) -> _Measured:
    """Raises HypothesisInvalidError if the figure was not measured on both sides in each round."""
    found, _ = _known(name, candidate[0]), _known(name, baseline[0])
    numbers: tuple[list[float], list[float]] = ([], [])
    pairs = []
    for number, (one, other) in enumerate(zip(candidate, baseline, strict=True), start=1):
        theirs, ours = fair(found.of(other), found.of(one))
        pair = paired(found, theirs, ours)
        if pair is None:
            side, why = ("candidate", ours.why) if math.isnan(ours.number) else ("baseline", theirs.why)
            raise HypothesisInvalidError(f"{name} of the {side} was not measured in round {number}: {why}")
        pairs.append(pair)
        numbers[0].append(ours.number)
        numbers[1].append(theirs.number)
    return _Measured(found, *numbers, pairs)


def _under(name: str, candidate: Sequence[Recording], limit: str) -> Held | None:
    """The result if the candidate was under the limit in every round, even while the machine was busy."""
    found = _known(name, candidate[0])
    numbers = [found.of(recording, though_busy=True).number for recording in candidate]
    most = _limit(found, limit)
    if not all(number < most for number in numbers):  # NaN (not measured) is not under the limit
        return None
    middle = found.shown(lower_median(numbers))
    return Held(f"{name} is {middle}, under {limit} in every round", candidate=middle, rounds=len(numbers))


def _known(name: str, recording: Recording) -> Figure:
    try:
        return figure_of(name, recording.experiment)
    except UsageError as error:
        raise HypothesisInvalidError(str(error)) from None


def _limit(found: Figure, text: str) -> float:
    kind = _UNITS.get(found.unit)
    try:
        return float(kind(text) if kind is not None else text)
    except ValueError as error:
        raise HypothesisInvalidError(f"or_below is not a limit for {found.name}: {error}") from None


def _more_rounds(interval: Interval, margin: float) -> int:
    """How many more rounds would make the interval short enough, with ratio and noise as measured; 0: too many.

    The rounds are evaluated once, at the end, so no correction for repeated looks is needed.
    """
    away, limit = math.log(interval.ratio), math.log(margin)
    level, room = (ALARMS, abs(away)) if abs(away) >= limit else (1 - CONFIDENCE, limit - away)
    for count in range(interval.rounds + 1, _MOST + 1):
        if t_quantile(level, count - 1) * interval.sd / math.sqrt(count) < room:
            return count - interval.rounds
    return 0


def _percent(margin: float) -> str:
    return f"{(margin - 1) * 100:.0f} %"
