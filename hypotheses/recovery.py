"""Does the service recover once the fault is gone, and stay recovered?"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from hashidrill import measure
from hashidrill.errors import HypothesisInvalidError
from hashidrill.hypothesis import Held, hypothesis, require
from hashidrill.measure import SECOND, Sliding, seconds, share, when
from hashidrill.recording.reader import Operations, Recording
from hashidrill.units import Duration, Percent

Since = Literal["end", "start"]
ROBLOX_NORMAL = Duration("300ms")
_HINT = "hint: look at raft.commit_time and the leader in the timeline; a backlog that drains slowly shows as a slope"


@hypothesis
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
    """Writes are fast again `within` that time after the last fault, and stay fast until the loads stop.

    Fast means: the p50 over each `window` is under `p50_below` (a failed write counts as infinitely slow), and the
    share of errors from then on is under `errors_below`. The time starts at the end of the last fault; with `fault`, of
    the last fault of that kind. With `since: start` it starts when the first fault is applied, which is what a failover
    must achieve on its own. `p50_below` is the normal p50 of Consul KV that Roblox published (300 ms, against 2 s in
    the outage of October 2021).
    """
    return _recovers(_Span(recording, load, fault, window, since), p50_below, within, errors_below)


@hypothesis
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
    """Reads are fast again `within` that time after the last fault, and stay fast until the loads stop.

    Judged like `writes_recover`, with the same source for `p50_below`.
    """
    return _recovers(_Span(recording, load, fault, window, since), p50_below, within, errors_below)


class _Span:
    """The operations of a load from the end (or the start) of the faults to the end of the loads."""

    def __init__(self, recording: Recording, load: str, fault: str | None, window: Duration, since: Since) -> None:
        """Raises HypothesisInvalidError when nothing, or too little, was measured there."""
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
    """Seconds after the end of the faults; infinity: not before the loads stopped."""

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
        "recovered_after_s": back.after_s, "p50_recovered_after_s": back.p50_s,
        "errors_recovered_after_s": back.errors_s, "worst_p50_s": worst,
        "p50_at_end_s": float(p50.value_s[~np.isnan(p50.value_s)][-1]),
        "errors_share": span.ops.error_share(), "operations": len(span.ops),
    }  # fmt: skip
    worst_text = f"worst {span.window} since then: p50 {seconds(worst)}, {when(span.recording, worst_at)}"
    why = f"{_why(span, back, p50_below, within, errors_below)}\n{worst_text}\n{_HINT}"
    require(back.after_s <= within, why, **figures)
    return Held(
        f"{span.load} recovered {seconds(back.after_s)} after {span.mark} (allowed: {within}) and stayed fast:"
        f" p50 under {p50_below}, errors under {errors_below}; {worst_text}",
        **figures,
    )


def _why(span: _Span, back: _Back, p50_below: Duration, within: Duration, errors_below: Percent) -> str:
    wrong = []
    if back.p50_s > within:
        took = "it never got there" if np.isinf(back.p50_s) else f"it stayed there only from {seconds(back.p50_s)} on"
        wrong.append(f"p50 under {p50_below}: {took}")
    if back.errors_s > within:
        took = (
            "they never got there" if np.isinf(back.errors_s)
            else f"they stayed there only from {seconds(back.errors_s)} on"
        )  # fmt: skip
        wrong.append(f"errors under {errors_below}: {took} ({share(span.ops.error_share())} of all since then)")
    return (
        f"{span.load} did not recover within {within} after {span.mark}"
        f" ({when(span.recording, span.start_ns)}).\nexpected {'; expected '.join(wrong)}"
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
