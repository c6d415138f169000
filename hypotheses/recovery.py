"""Does the service recover once the fault is gone, and stay recovered?"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from hashidrill import (
    Duration,
    Held,
    HypothesisInvalidError,
    Level,
    Operations,
    Percent,
    Recording,
    hypothesis,
    measure,
    require,
)
from hashidrill.core.hypothesis import room
from hashidrill.core.judging.measure import SECOND, Sliding, seconds, share, when

Since = Literal["end", "start"]
ROBLOX_NORMAL = Duration("300ms")
_ALL, _TENTH = Level("100%"), Level("10%")
_NEARLY = 1 - 1e-6
"""Levels are sums of steps, with rounding errors."""


@hypothesis(never=room())
def writes_recover(
    recording: Recording,
    *,
    load: str,
    within: Duration,
    p50_below: Duration = ROBLOX_NORMAL,
    window: Duration = Duration("1s"),
    errors_below: Percent = Percent("1%"),
    fault: str | None = None,
    since: Since = "end",
) -> Held:
    """Writes are fast again at most `within` after the last fault, and stay fast until the loads stop.

    Fast means: the p50 over each `window` is under `p50_below`, and the share of errors from then on is under
    `errors_below`. The time starts at the end of the last fault, or, with `fault`, of the last fault of that kind. With
    `since: start` it starts when the first fault is applied: use that for a failover, which must work under the fault.
    """
    return _recovers(_Span(recording, load, fault, window, since), p50_below, within, errors_below)


@hypothesis(never=room())
def reads_recover(
    recording: Recording,
    *,
    load: str,
    within: Duration,
    p50_below: Duration = ROBLOX_NORMAL,
    window: Duration = Duration("1s"),
    errors_below: Percent = Percent("1%"),
    fault: str | None = None,
    since: Since = "end",
) -> Held:
    """Reads are fast again at most `within` after the last fault, and stay fast until the loads stop.

    Judged like `writes_recover`, with the same source for `p50_below`.
    """
    return _recovers(_Span(recording, load, fault, window, since), p50_below, within, errors_below)


@hypothesis(never=room())
def returns_in_steps(
    recording: Recording,
    *,
    load: str,
    within: Duration,
    to: Level = _ALL,
    step: Level = _TENTH,
    p50_below: Duration = ROBLOX_NORMAL,
    fault: str | None = None,
) -> Held:
    """A load that was shut out returns in steps of at most `step`, and never rises while it is sick.

    Roblox let its players back in steps of about 10 % (October 2021). The level of the load must be at `to` again at
    most `within` after the end of the last fault (with `fault`, of that fault or mark), and stay there until the loads
    stop. At each step up, the p50 of the operations due since the previous step must be under `p50_below`.
    INVALID if the level was never below `to`.
    """
    since_ns, until_ns = measure.faults_end_ns(recording, fault), measure.loads_end_ns(recording)
    told = recording.series(f"{load}.level")
    turns = [(int(t_ns), float(level)) for t_ns, level in zip(told.t_ns, told.value, strict=True) if t_ns <= until_ns]
    levels = [level for _, level in turns]
    if not turns or min(levels) >= to * _NEARLY:
        raise HypothesisInvalidError(f"the level of {load} was never below {to}: it was not shut out")
    shut_out = levels.index(min(levels))
    ups, steps_back = 0, 0
    for (before_ns, before), (t_ns, level) in pairwise(turns[shut_out:]):
        steps_back += level < before
        if level <= before:
            continue
        ups += 1
        require(
            level - before <= step * (2 - _NEARLY),
            f"{load} was raised from {Level(before)} to {Level(level)} in one step ({when(t_ns)}),"
            f" expected steps of at most {step}",
            steps=ups,
        )
        due = recording.operations(load).between(before_ns, t_ns)
        p50_s = measure.percentile(measure.served_s(due), 50)
        require(
            not len(due) or p50_s < p50_below,
            f"{load} was raised to {Level(level)} while it was sick at {Level(before)}: its p50 was {seconds(p50_s)},"
            f" expected under {p50_below} ({when(t_ns)})",
            steps=ups,
        )
    below = [at for at, level in enumerate(levels) if level < to * _NEARLY]
    back_ns = turns[below[-1] + 1][0] if below[-1] + 1 < len(turns) else None
    back_s = float("inf") if back_ns is None else max(0.0, (back_ns - since_ns) / SECOND)
    figures = {"back_after_s": back_s, "steps": ups, "steps_back": steps_back, "level_at_end": levels[-1]}
    if back_ns is None and (until_ns - since_ns) / SECOND < within:
        raise HypothesisInvalidError(
            f"{load} was still at {Level(levels[-1])} when the loads stopped, after only"
            f" {seconds((until_ns - since_ns) / SECOND)} of the {within}: let the method last longer"
        )
    require(
        back_s <= within,
        f"{load} was not back at {to} within {within}: "
        + (f"it was at {Level(levels[-1])} at the end" if back_ns is None else f"that took {seconds(back_s)}")
        + f", after {ups} steps up and {steps_back} steps back\n"
        "hint: look at what its ramp waits for (`while`)",
        **figures,
    )
    return Held(
        f"{load} was back at {to} after {seconds(back_s)} (within {within}), in {ups} steps up and {steps_back} back",
        **figures,
    )


class _Span:
    """The operations of a load from the end (or the start) of the faults to the end of the loads."""

    def __init__(self, recording: Recording, load: str, fault: str | None, window: Duration, since: Since) -> None:
        """Raises HypothesisInvalidError if nothing, or too little, was measured in this time."""
        self.recording, self.load, self.window = recording, load, window
        self.start_ns = (
            measure.faults_end_ns(recording, fault)
            if since == "end"
            else min(measure.in_force(recording, one)[0] for one in measure.windows(recording, fault))
        )
        self.end_ns = measure.loads_end_ns(recording)
        which = "the last fault" if since == "end" else "the first fault"
        self.mark = f"{fault or which} {'ended' if since == 'end' else 'began'}"
        if self.length_s < window:
            raise HypothesisInvalidError(
                f"the loads ran for only {seconds(max(self.length_s, 0.0))} after {self.mark}, less than one window of"
                f" {window}: give the experiment a longer `recovery: {{for: ...}}`"
            )
        ops = recording.operations(load).between(self.start_ns, self.end_ns)
        self.ops: Operations = measure.settled(recording, ops, grace_s=window)
        quiet_s = (self.end_ns - (int(self.ops.intended_ns[-1]) if len(self.ops) else self.start_ns)) / SECOND
        if quiet_s > max(2.0, 2 * window):
            raise HypothesisInvalidError(
                f"load {load} was silent for the last {seconds(quiet_s)} before the loads stopped, so nothing shows"
                f" that it recovered"
            )

    @property
    def length_s(self) -> float:
        return (self.end_ns - self.start_ns) / SECOND


@dataclass(frozen=True)
class _Back:
    """Seconds after the end of the faults; infinity if not before the loads stopped."""

    p50_s: float
    errors_s: float

    @property
    def after_s(self) -> float:
        return max(self.p50_s, self.errors_s)


def _recovers(span: _Span, p50_below: Duration, within: Duration, errors_below: Percent) -> Held:
    p50 = measure.sliding(span.ops, span.start_ns, span.end_ns, width_s=span.window)
    worst_at, worst = p50.worst()
    back = _Back(_quick_after_s(p50, p50_below), _few_errors_after_s(span, p50, errors_below))
    if back.after_s > within and span.length_s < within + span.window:
        raise HypothesisInvalidError(
            f"{span.load} had not recovered {seconds(span.length_s)} after {span.mark}, but the loads stopped"
            f" before {within} had passed: give the experiment a longer `recovery: {{for: ...}}`"
        )
    figures = {
        "recovered_after_s": back.after_s,
        "p50_recovered_after_s": back.p50_s,
        "errors_recovered_after_s": back.errors_s,
        "worst_p50_s": worst,
        "p50_at_end_s": float(p50.value_s[~np.isnan(p50.value_s)][-1]),
        "errors_share": span.ops.error_share(),
        "operations": len(span.ops),
    }
    slowest = "no operation was served" if np.isinf(worst) else f"p50 {seconds(worst)}"
    worst_text = f"worst {span.window} since {span.mark}: {slowest}, {when(worst_at)}"
    if back.after_s > within:
        hint = measure.clue(span.recording, span.start_ns, span.end_ns)
        require(False, f"{_why(span, back, p50_below, within, errors_below)}\n{worst_text}\n{hint}", **figures)
    return Held(
        f"{span.load} recovered {seconds(back.after_s)} after {span.mark} (allowed: {within}) and stayed fast from then"
        f" on: p50 under {p50_below}, errors under {errors_below}; {worst_text}",
        **figures,
    )


def _why(span: _Span, back: _Back, p50_below: Duration, within: Duration, errors_below: Percent) -> str:
    wrong = []
    if back.p50_s > within:
        took = "it never got there" if np.isinf(back.p50_s) else f"it stayed there only from {seconds(back.p50_s)} on"
        wrong.append(f"p50 under {p50_below}: {took}")
    if back.errors_s > within:
        took = (
            "they never got there"
            if np.isinf(back.errors_s)
            else f"they stayed there only from {seconds(back.errors_s)} on"
        )
        wrong.append(f"errors under {errors_below}: {took} ({share(span.ops.error_share())} of all since then)")
    return (
        f"{span.load} did not recover within {within} after {span.mark}"
        f" ({when(span.start_ns)}).\nexpected {'; expected '.join(wrong)}"
    )


def _quick_after_s(p50: Sliding, limit_s: float) -> float:
    """Seconds until the first window after which no measured window is over the limit."""
    measured = np.flatnonzero(~np.isnan(p50.value_s))
    slow = np.flatnonzero(p50.value_s[measured] >= limit_s)
    first = int(slow[-1]) + 1 if len(slow) else 0
    if first == len(measured):
        return float("inf")
    return float(p50.t_ns[measured[first]] - p50.t_ns[0]) / SECOND if len(slow) else 0.0


def _few_errors_after_s(span: _Span, p50: Sliding, limit: float) -> float:
    """Seconds until the first step after which the share of errors, to the end of the loads, is under the limit."""
    failed = (~span.ops.ok).astype(np.float64)
    left = np.arange(len(failed), 0, -1)
    share_left = np.cumsum(failed[::-1])[::-1] / left
    first = np.searchsorted(span.ops.intended_ns, p50.t_ns)
    inside = first < len(failed)
    few = np.flatnonzero(share_left[first[inside]] < limit)
    return float(p50.t_ns[inside][few[0]] - p50.t_ns[0]) / SECOND if len(few) else float("inf")
