"""Did a countermeasure help? For step-by-step replays of incidents.

A load can stay sick although the measure helped. So the p50 after a step is compared with the limit and, as a ratio,
with the p50 before the step. The ratio has a range, from the fastest to the slowest fifth of the operations judged
on each side: a claim that the range does not support is INVALID.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import inf, isinf

import numpy as np

from hashidrill import (
    Duration,
    FaultWindow,
    Held,
    HypothesisInvalidError,
    Percent,
    Recording,
    hypothesis,
    measure,
    require,
)
from hashidrill.core.judging.measure import SECOND, in_force, in_full_force, seconds, served_s, settled, when
from hashidrill.core.recording.reader import MarkWindow

ROBLOX_NORMAL = Duration("300ms")
_PARTS, _FEWEST_PARTS = 5, 3
"""If five parts of a time are independent, the true p50 is outside the range of their p50s in 1 of 16 cases."""


@hypothesis
def helps(
    recording: Recording,
    *,
    load: str,
    fault: str,
    p50_below: Duration = ROBLOX_NORMAL,
    over: Duration = Duration("3s"),
    after: Duration | None = None,
    since: str | None = None,
) -> Held:
    """A sick load recovers while this measure is in force.

    `fault` names the measure: a step of the method, by name or kind. INVALID if the load was not sick, which means a
    p50 of `p50_below` or more in the last `over` before the measure began. In the last `over` of the measure, its p50
    must be below `p50_below`. With `after`, it is judged that long after the measure took effect, not at the measure's
    end. If several steps together are the measure, `since` names the first one: the load must be sick before that step.
    """
    seen = _sick(_around(recording, load, fault, over, judged_after_s=after, since=since), p50_below)
    if seen.after.p50_s >= p50_below:
        what = f"helped {load}, but not enough" if seen.change.high < 1 else f"did not help {load}"
        require(False, f"{fault} {what}: {seen.told(recording)}; expected under {p50_below}", **seen.figures)
    if not seen.change.high < 1:
        raise HypothesisInvalidError(f"cannot tell whether {fault} helped: {seen.told(recording)}")
    return Held(f"{fault} helped {load}: {seen.told()}", **seen.figures)


@hypothesis
def stays_sick(
    recording: Recording,
    *,
    load: str,
    fault: str,
    p50_below: Duration = ROBLOX_NORMAL,
    over: Duration = Duration("3s"),
    after: Duration | None = None,
    since: str | None = None,
) -> Held:
    """A sick load stays sick while this measure is in force: whether or not it helped, it was not enough.

    Judged like `helps`, but here the p50 at the end is still `p50_below` or more. The text also says whether the load
    became faster or slower, or showed no difference.
    """
    seen = _sick(_around(recording, load, fault, over, judged_after_s=after, since=since), p50_below)
    require(
        seen.after.p50_s >= p50_below,
        f"{load} did not stay sick under {fault}: {seen.told(recording)}; expected it to stay over {p50_below}",
        **seen.figures,
    )
    return Held(f"{load} stayed sick under {fault}: {seen.told()}", **seen.figures)


@hypothesis
def does_not_help(
    recording: Recording,
    *,
    load: str,
    fault: str,
    p50_below: Duration = ROBLOX_NORMAL,
    over: Duration = Duration("3s"),
    after: Duration | None = None,
    since: str | None = None,
    by: Percent = Percent("50%"),
) -> Held:
    """A sick load stays as sick while this measure is in force: it was tried and made no difference.

    Judged like `helps`, but here the p50 at the end is still `p50_below` or more, and not faster than before by `by` or
    more (with 50 %: one and a half times). A measure that helps, but not enough, breaks this hypothesis; `stays_sick`
    allows it. INVALID if the range of the ratio does not decide.
    """
    seen = _sick(_around(recording, load, fault, over, judged_after_s=after, since=since), p50_below)
    wanted = f"expected it to stay over {p50_below}, and not faster by {by}"
    told = seen.told(recording)
    require(seen.after.p50_s >= p50_below, f"{fault} did help {load}: {told}; {wanted}", **seen.figures)
    require(seen.change.high > 1 / (1 + by), f"{fault} helped {load}, but not enough: {told}; {wanted}", **seen.figures)
    if seen.change.low <= 1 / (1 + by):
        raise HypothesisInvalidError(
            f"cannot tell whether {fault} helped: {told}; use `stays_sick` if the load only has to stay sick, or a"
            " longer `over` for a narrower range"
        )
    return Held(f"{fault} did not help {load}: {seen.told()}", **seen.figures)


@hypothesis
def makes_sick(
    recording: Recording,
    *,
    load: str,
    fault: str,
    p50_below: Duration = ROBLOX_NORMAL,
    over: Duration = Duration("3s"),
) -> Held:
    """A healthy load is sick by the end of this step: the start of the incident.

    Judged like `helps`, the other way round. If the load was sick before, this proves nothing: INVALID.
    """
    seen = _around(recording, load, fault, over)
    if not seen.before.p50_s < p50_below:
        raise HypothesisInvalidError(
            f"{load} was already slow before {fault} began (p50 {seconds(seen.before.p50_s)}), so {fault} need not be"
            " the cause"
        )
    if seen.after.p50_s < p50_below:
        what = f"made {load} slower, but not slow" if seen.change.low > 1 else f"did not make {load} slow"
        require(False, f"{fault} {what}: {seen.told(recording)}; expected over {p50_below}", **seen.figures)
    if not seen.change.low > 1:
        raise HypothesisInvalidError(f"cannot tell whether {fault} made {load} slow: {seen.told(recording)}")
    return Held(f"{fault} made {load} slow: {seen.told()}", **seen.figures)


@dataclass(frozen=True)
class _Level:
    """The p50 of a load over some time, and the lowest and the highest p50 among the parts of that time."""

    p50_s: float
    low_s: float
    high_s: float


@dataclass(frozen=True)
class _Change:
    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        """`8.4 times faster (6.1 to 11)`."""
        if self.low <= 1 <= self.high:
            return f"no difference shown ({self.ratio:.3g} times, {self.low:.3g} to {self.high:.3g})"
        if isinf(self.ratio) or not self.ratio:
            return "most operations fail now" if self.ratio else "most operations failed before it"
        if self.high < 1:
            return f"{_over(1, self.ratio):.3g} times faster ({_over(1, self.high):.3g} to {_over(1, self.low):.3g})"
        return f"{self.ratio:.3g} times slower ({self.low:.3g} to {self.high:.3g})"


@dataclass(frozen=True)
class _Around:
    """The p50 of a load before a step, and at the end of its time in force."""

    load: str
    begin: str
    before: _Level
    after: _Level
    end_ns: int
    where: str

    @property
    def change(self) -> _Change:
        before, after = self.before, self.after
        return _Change(
            _over(after.p50_s, before.p50_s), _over(after.low_s, before.high_s), _over(after.high_s, before.low_s)
        )

    @property
    def figures(self) -> dict[str, float]:
        change = self.change
        return {
            "p50_before_s": self.before.p50_s,
            "p50_after_s": self.after.p50_s,
            "ratio": change.ratio,
            "ratio_low": change.low,
            "ratio_high": change.high,
        }

    def told(self, recording: Recording | None = None) -> str:
        """The measured values and their meaning; with a recording, also the times."""
        at = "" if recording is None else f" ({when(self.end_ns)})"
        before, after = seconds(self.before.p50_s), seconds(self.after.p50_s)
        return f"p50 {before} before it, {after} {self.where}{at}: {self.change}"


def _sick(seen: _Around, limit: Duration) -> _Around:
    """Raises HypothesisInvalidError if the load was not sick before the step."""
    if seen.before.p50_s < limit:
        raise HypothesisInvalidError(
            f"{seen.load} was not slow before {seen.begin} began (p50 {seconds(seen.before.p50_s)}), so there was"
            " nothing to help"
        )
    return seen


def _over(one_s: float, other_s: float) -> float:
    if isinf(one_s) or isinf(other_s):
        return 1.0 if one_s == other_s else one_s if isinf(one_s) else 0.0
    return one_s / other_s if other_s else inf


def _around(
    recording: Recording,
    load: str,
    fault: str,
    over_s: float,
    *,
    judged_after_s: float | None = None,
    since: str | None = None,
) -> _Around:
    """Raises HypothesisInvalidError if nothing was due before the step or at its end, or if the step was too short."""
    windows = measure.windows(recording, fault)
    intended_ns = min(_began_ns(window) for window in measure.windows(recording, since or fault))
    start_ns = max(in_full_force(recording, window)[0] for window in windows)
    end_ns = min(in_force(recording, window)[1] for window in windows)
    over_ns = int(over_s * SECOND)
    wanted_ns = over_ns if judged_after_s is None else max(over_ns, int(judged_after_s * SECOND))
    if end_ns - start_ns < wanted_ns:
        raise HypothesisInvalidError(
            f"{fault} was in force for only {seconds((end_ns - start_ns) / SECOND)}, less than the"
            f" {seconds(wanted_ns / SECOND)} to judge: let it last longer"
        )
    where = "at its end"
    if judged_after_s is not None:
        end_ns, where = start_ns + wanted_ns, f"{seconds(judged_after_s)} into it"
    before = _level(recording, load, intended_ns - over_ns, intended_ns, f"before {since or fault}")
    after = _level(recording, load, end_ns - over_ns, end_ns, f"at the end of {fault}")
    return _Around(load, since or fault, before, after, end_ns, where)


def _began_ns(window: FaultWindow | MarkWindow) -> int:
    return window.intent_ns if isinstance(window, FaultWindow) else window.begin_ns


def _level(recording: Recording, load: str, start_ns: int, end_ns: int, where: str) -> _Level:
    """Raises HypothesisInvalidError if too few operations were due to estimate their variation."""
    due = settled(recording, recording.operations(load).between(start_ns, end_ns))
    if not len(due):
        raise HypothesisInvalidError(f"no operation of {load} was due {where}, so there is nothing to judge")
    edges = np.linspace(start_ns, end_ns, _PARTS + 1).astype(np.int64)
    parts = [due.between(int(begin), int(end)) for begin, end in pairwise(edges)]
    p50s = [measure.percentile(served_s(part), 50) for part in parts if len(part)]
    if len(p50s) < _FEWEST_PARTS:
        raise HypothesisInvalidError(
            f"only {len(due)} operations of {load} were due {where}: too few to say how much they vary; raise its rate,"
            " or judge a longer `over`"
        )
    return _Level(measure.percentile(served_s(due), 50), min(p50s), max(p50s))
