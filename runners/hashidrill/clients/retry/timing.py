"""Verdicts on when a client tries again: backoff, exponential, jitter, retry_after_honoured.

Pure functions of runs, mostly of many independent clients. hashidrill.core.tap.catalogue has definitions and sources. A
gap lasts from the end of a failed attempt to the start of the next one, as the tap saw them. The machine can only
lengthen gaps, so these functions use quantiles, and a reference client that sleeps at the same time.

`curve_of` says on which curve gaps lie: growth by a factor, or along a line, a square, a cube. The logarithm of growth
by a factor is a straight line (or bends up, if additive jitter or the machine adds to each gap); the logarithm of a
power bends down. The slope alone decides nothing: 1, 4, 9, 16 has a steeper slope than 1, 2, 4, 8. Both families
are fitted, and the difference between the fits must exceed the scatter of the gaps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from hashidrill.clients.retry.verdicts import Judged, failed, not_for_it, passed, unknown
from hashidrill.core.tap.attempts import SECOND, Attempt, Run
from hashidrill.core.tap.catalogue import (
    BACKOFF_GROWTH,
    EXPONENTIAL_CERTAINTY,
    EXPONENTIAL_SLOPE,
    FEWEST_BACKOFF_GAPS,
    FEWEST_CLIENTS,
    FEWEST_EXPONENTIAL_GAPS,
    FEWEST_OTHER_WAITS,
    FEWEST_TOLD_WAITS,
    JITTER_CLIENTS,
    JITTER_VARIATION,
    RETRY_AFTER_FACTOR,
    RETRY_AFTER_MARGIN_S,
    RETRY_AFTER_S,
    RETRY_AFTER_TOLERANCE_S,
    SHORTEST_GAP_S,
    SHORTEST_WAIT_S,
)
from hashidrill.core.units import counted

_ADDED = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
"""What may be added to each gap that grows by a factor, as shares of the shortest gap."""
_POWERS: tuple[tuple[float, str, tuple[float, ...]], ...] = (
    (2, "a square", (1, 2, 3)),
    (3, "a cube", (1, 2, 3)),
    (4, "a fourth power", (1, 2)),
)
"""`base * attempt ** power`: each power, its name, and the numbers from which attempts may be counted."""
_FEWEST = 4


@dataclass(frozen=True)
class Curve:
    """`slope`: doublings per retry; `slope_error`: its standard error. `factor`, `power`: chi square of each family's
    best fit. `rival` names the power that fits best.
    """

    slope: float
    slope_error: float
    factor: float
    power: float
    rival: str


def curve_of(gaps_s: Sequence[float], errors: Sequence[float]) -> Curve:
    """How four or more gaps, all over 0 s, grow. `errors`: each gap's standard error, as a share of the gap."""
    gaps, sigma = np.array(gaps_s, dtype=np.float64), np.array(errors, dtype=np.float64)
    logs, scatter = np.log(gaps), np.log1p(sigma)
    centred = np.arange(len(gaps)) - (len(gaps) - 1) / 2
    weights = centred / float(np.sum(centred**2)) / math.log(2)
    slope, slope_error = float(weights @ logs), float(np.sqrt(np.sum((weights * scatter) ** 2)))

    def best(family: Callable[[Floats, Floats], Iterator[tuple[float, str]]]) -> tuple[float, str]:
        # noise may hide the plateau of a cap, which can follow either family
        return min(
            (chi + _level(logs[end:], scatter[end:]), name)
            for end in range(_FEWEST, len(gaps) + 1)
            for chi, name in family(gaps[:end], scatter[:end])
        )

    factor, _ = best(_by_a_factor)
    power, rival = best(_by_a_power)
    return Curve(slope, slope_error, factor, power, rival)


def constant(gaps_s: Sequence[float], errors: Sequence[float]) -> bool:
    """Whether chance alone explains the differences between the gaps."""
    misfit = _level(np.log(np.array(gaps_s)), np.log1p(np.array(errors)))
    return misfit <= len(gaps_s) + 3 * math.sqrt(2 * len(gaps_s))


def _by_a_factor(gaps: Floats, sigma: Floats) -> Iterator[tuple[float, str]]:
    position = np.arange(len(gaps), dtype=np.float64)
    for share in _ADDED:
        rest = gaps - share * float(gaps.min())
        weights = rest / gaps / sigma  # a share of the whole gap is a larger share of the part that grows
        slope, start = np.polyfit(position, np.log(rest), 1, w=weights)
        if slope > 0:
            yield _misfit(gaps, np.exp(start + slope * position) + gaps - rest, sigma), "a factor"
    yield math.inf, "a factor"


def _by_a_power(gaps: Floats, sigma: Floats) -> Iterator[tuple[float, str]]:
    position = np.arange(len(gaps), dtype=np.float64)
    for power, name, starts in _POWERS:
        for start in starts:
            shape = (position + start) ** power
            level = np.average(np.log(gaps / shape), weights=1 / sigma**2)
            yield _misfit(gaps, shape * math.exp(level), sigma), name
    for power, name in ((1.0, "a straight line"), (2.0, "a square"), (3.0, "a cube")):
        parts = np.stack([np.ones(len(gaps)), position**power], axis=1)
        by_share = parts / (gaps * sigma)[:, None]
        (first, rise), *_ = np.linalg.lstsq(by_share, 1 / sigma, rcond=None)
        if first > 0 and rise >= 0:
            yield _misfit(gaps, parts @ np.array([first, rise]), sigma), name
    yield math.inf, "a straight line"


def _misfit(gaps: Floats, fitted: Floats, sigma: Floats) -> float:
    return float(np.sum((np.log(gaps / fitted) / sigma) ** 2))


def _level(logs: Floats, sigma: Floats) -> float:
    if len(logs) < 2:
        return 0.0
    return float(np.sum(((logs - np.average(logs, weights=1 / sigma**2)) / sigma) ** 2))


Floats = npt.NDArray[np.float64]
_PLATEAU = 0.87
"""Gaps at the end have reached the client's cap if the ratio of neighbours is at least this."""
_LOW, _HIGH = 5, 75
_SPREAD_TO_DEVIATION = 0.42
"""The standard deviation divided by the distance between these two percentiles: 0.412 for a uniform distribution, 0.431
for a normal one. The upper quarter is left out, because delays only lengthen gaps and accumulate there.
"""
_FEWEST_TO_SCATTER = 5
_CERTAINTY_TO_FAIL = 12.0
"""Chi square needed to fail: at EXPONENTIAL_CERTAINTY, a factor with much jitter looks like a power 1 time in 100."""
_TAIL = 0.1
_SMALLEST_S = 1e-6
_CLOCK_SHARE, _CLOCK_S = 0.01, 0.002
"""The precision of a typical gap on any machine: this share of the gap, and this many seconds."""
_LONG = 0.6
_MOSTLY_WORK = 3.0
"""A gap shorter than this multiple of the client's own work does not count as a wait: a loop that starts curl works for
half of the gap.
"""
_WORTH_SAYING_S = 0.005
_CLEARLY = 3.0
"""By chance, two spreads of 20 clients each differ by less than this factor."""
GREY = 1.5
"""If a variation is within this factor of the threshold, more clients are run."""
_SIGMAS = 2.0
_MANY_CLIENTS = 100
_SIGMAS_OF_FEW, _SIGMAS_OF_MANY = (3.0, 1.5), (1.0, 0.0)
"""For `backoff`: standard errors by which gaps must exceed the threshold to pass, and be under it to fail."""
_TOO_FEW = f"{{}}: a client may wait at random, so at least {FEWEST_CLIENTS} are needed"


@dataclass(frozen=True)
class Own:
    """The measurements of a client that runs alone: its gaps and its CPU time. All in seconds."""

    gaps_s: Sequence[float] = ()
    work_s: float = 0.0
    """Processor time of one retry."""
    start_work_s: float = 0.0
    """Processor time of a whole operation without a fault, including the client's start; 0 if unknown."""

    def longest_s(self, typical: Sequence[float]) -> float:
        """The longest typical gap of many clients, or the longest gap of a client that runs alone if that is shorter.

        Clients that do not wait by themselves still wait for each other's CPU work. Of the gaps of a client that runs
        alone, the longest fifth is left out, because the machine causes the extremes.
        """
        return min(max(typical), alone_s(self.gaps_s))

    def works_all_the_time(self, typical: Sequence[float]) -> bool:
        """Whether the gaps are not waits but the client's own work between two attempts."""
        return self.longest_s(typical) < max(SHORTEST_GAP_S, _MOSTLY_WORK * self.work_s)


def alone_s(gaps_s: Sequence[float]) -> float:
    """The longest typical gap of a client that runs alone, in seconds; infinity if unknown."""
    return float(np.percentile(gaps_s, 80, method="higher")) if len(gaps_s) else math.inf


def by_position(runs: Sequence[Run]) -> list[Floats]:
    """The first gaps of all clients, their second gaps, and so on, as long as half of the clients have them."""
    each = [run.gaps_s() for run in runs]
    longest = max((len(gaps) for gaps in each), default=0)
    columns = [np.array([gaps[k] for gaps in each if len(gaps) > k]) for k in range(longest)]
    return [column for column in columns if len(column) * 2 >= len(each)]


def typical_gaps_s(runs: Sequence[Run]) -> list[float]:
    return [float(np.median(column)) for column in by_position(runs)]


def backoff(fault: str, runs: Sequence[Run], *, own: Own | None = None) -> Judged:
    """The typical gaps get longer. Immediate retries before the first wait are reported, but are not growth."""
    middles = [_middle(column) for column in by_position(runs)]
    typical = [gap for gap, _ in middles]
    evidence: dict[str, Any] = {"gaps_s": _rounded(typical), "clients": len(runs)}
    if len(typical) < FEWEST_BACKOFF_GAPS:
        text = f"{counted(len(typical), 'gap')}: fewer than {FEWEST_BACKOFF_GAPS} cannot show growth"
        return not_for_it("backoff", fault, text, **evidence)
    if len(runs) < FEWEST_CLIENTS:
        return unknown("backoff", fault, _TOO_FEW.format(counted(len(runs), "operation")), **evidence)
    if (own or Own()).works_all_the_time(typical):
        return failed("backoff", fault, f"no waiting at all: gaps {_listed(typical)}", **evidence)
    start = next(k for k, gap in enumerate(typical) if gap >= SHORTEST_GAP_S)
    evidence["at_once"] = start
    said = _at_once(start)
    if len(typical) - start < FEWEST_BACKOFF_GAPS:
        text = f"{said}it waits in only one gap ({_listed(typical)}), which cannot show growth"
        return not_for_it("backoff", fault, text, **evidence)
    first, error = middles[start]
    over = [(math.log(gap / first / BACKOFF_GROWTH), math.hypot(error, other)) for gap, other in middles[start + 1 :]]
    evidence["growth"] = round(max(typical[start + 1 :]) / first, 3)
    # if gaps are random with a constant mean, some later gap is longer than the first by chance
    to_grow, to_fail = _SIGMAS_OF_MANY if len(runs) >= _MANY_CLIENTS else _SIGMAS_OF_FEW
    grows = any(by > to_grow * error for by, error in over)
    if not grows and any(by > -to_fail * error for by, error in over):
        text = f"{said}gaps {_listed(typical)} scatter too much to show whether they grow; more clients would show it"
        return unknown("backoff", fault, text, more_clients=True, **evidence)
    text = f"{said}gaps {'grow' if grows else 'do not grow'}: {_listed(typical)}"
    return (passed if grows else failed)("backoff", fault, text, **evidence)


def _at_once(count: int) -> str:
    if not count:
        return ""
    first = "the first retry comes" if count == 1 else f"the first {count} retries come"
    return f"{first} without any wait; then "


def exponential(fault: str, runs: Sequence[Run], *, own: Own | None = None) -> Judged:
    """The typical gaps grow by a factor until they reach a cap, rather than along a line or a power."""
    columns = by_position(runs)
    typical = [float(np.median(column)) for column in columns]
    if len(typical) >= FEWEST_EXPONENTIAL_GAPS and len(runs) < FEWEST_CLIENTS:
        return unknown("exponential", fault, _TOO_FEW.format(counted(len(runs), "operation")), clients=len(runs))
    waiting = [_middle(column) for gap, column in zip(typical, columns, strict=True) if gap >= SHORTEST_GAP_S]
    if typical and (own or Own()).works_all_the_time(typical):
        waiting = []
    waits, errors = [gap for gap, _ in waiting], [error for _, error in waiting]
    # chance creates seeming plateaus in constant gaps, so all constant gaps count
    uncapped = waits if waits and constant(waits, errors) else _uncapped(waits)
    evidence = {"gaps_s": _rounded(typical), "uncapped": len(uncapped), "clients": len(runs)}
    if len(uncapped) < FEWEST_EXPONENTIAL_GAPS:
        if len(typical) >= FEWEST_EXPONENTIAL_GAPS and not waiting:
            return failed("exponential", fault, f"no waiting at all: gaps {_listed(typical)}", **evidence)
        text = f"{counted(len(uncapped), 'uncapped gap')}: fewer than {FEWEST_EXPONENTIAL_GAPS} do not make a curve"
        return not_for_it("exponential", fault, text, **evidence)
    curve = curve_of(uncapped, errors[: len(uncapped)])
    evidence |= {"slope": round(curve.slope, 3), "slope_error": round(curve.slope_error, 3)}
    misfits = {"misfit_of_factor": curve.factor, "misfit_of_power": curve.power}
    evidence |= {name: round(misfit, 2) for name, misfit in misfits.items() if math.isfinite(misfit)}  # JSON has no inf
    wrong = ""
    text = f"log2 of the gaps rises by {curve.slope:.2f} a retry: {_listed(uncapped)}"
    if curve.slope + _SIGMAS * curve.slope_error < EXPONENTIAL_SLOPE:
        wrong = "constant" if abs(curve.slope) < 0.1 else f"under {EXPONENTIAL_SLOPE:g}"
    elif curve.factor > curve.power + _CERTAINTY_TO_FAIL:
        wrong = f"not by a factor, but along {curve.rival}"
    if wrong:
        return failed("exponential", fault, f"{wrong}; {text}", **evidence)
    grows = curve.slope - _SIGMAS * curve.slope_error >= EXPONENTIAL_SLOPE
    if grows and curve.power > curve.factor + EXPONENTIAL_CERTAINTY:
        return passed("exponential", fault, text, **evidence)
    doubt = f"by a factor or along {curve.rival}" if grows else f"by {EXPONENTIAL_SLOPE:g} a retry or less"
    text = f"the gaps scatter too much to show whether they grow {doubt}; more clients would show it; {text}"
    return unknown("exponential", fault, text, more_clients=True, **evidence)


def jitter(
    fault: str, runs: Sequence[Run], reference: Sequence[Run], *, own: Own | None = None, clients: int = JITTER_CLIENTS
) -> Judged:
    """The waits of independent clients scatter more than the waits of reference clients that sleep fixed gaps."""
    own = own or Own()
    mine, theirs = by_position(runs), by_position(reference)
    typical = [float(np.median(column)) for column in mine]
    evidence: dict[str, Any] = {"clients": len(runs), "gaps_s": _rounded(typical)}
    if not typical:
        return not_for_it("jitter", fault, "it does not retry on this fault, so there are no gaps to judge", **evidence)
    longest = own.longest_s(typical)
    if longest < max(SHORTEST_WAIT_S, _MOSTLY_WORK * own.work_s):
        work = f", including {own.work_s:.2f} s of its own work" if own.work_s >= _WORTH_SAYING_S else ""
        text = f"it waits too little (at most {longest:.2f} s{work}) to judge the jitter of its waits: see backoff"
        return not_for_it("jitter", fault, text, **evidence)
    # the machine adds the same delay to every gap, but jitter grows with the gap: the longest gaps show it best
    waits = [k for k, gap in enumerate(typical) if gap >= _LONG * max(typical) and k < len(theirs)]
    if not waits or len(runs) < clients:
        text = f"{len(runs)} clients, at least {clients} are needed; {len(reference)} reference clients"
        return unknown("jitter", fault, text, **evidence)
    spread = variation([mine[k] for k in waits])
    at_work_s = max(_spread_at_once_s(mine, typical), _spread_at_start_s(runs, own))
    # the machine's delay is in seconds, so it hardly depends on how long a gap the reference sleeps
    machine_s = _spread(np.concatenate([theirs[k] - np.median(theirs[k]) for k in waits]))
    noise = max(machine_s, at_work_s) / float(np.mean([typical[k] for k in waits]))
    rest = math.sqrt(max(0.0, spread**2 - noise**2))
    evidence |= {"variation": round(spread, 5), "reference": round(noise, 5), "jitter": round(rest, 5)}
    evidence["own_noise_s"] = round(at_work_s, 5)
    text = f"gaps vary by {spread:.2%} over {len(runs)} clients; without jitter they vary by {noise:.2%} here"
    if JITTER_VARIATION < spread < _CLEARLY * noise:  # a spread under JITTER_VARIATION leaves no room for jitter
        busy = f"the machine is too busy to tell: {text}"
        return unknown("jitter", fault, busy, more_clients=True, **evidence)
    if JITTER_VARIATION / GREY < rest < JITTER_VARIATION * GREY:
        evidence["more_clients"] = True
    if rest > JITTER_VARIATION:
        return passed("jitter", fault, text, **evidence)
    return failed("jitter", fault, text, **evidence)


def _spread_at_once_s(columns: Sequence[Floats], typical: Sequence[float]) -> float:
    """How much the client's own work scatters, in seconds, measured on retries without a wait."""
    at_once = [column for column, gap in zip(columns, typical, strict=True) if gap < SHORTEST_GAP_S]
    return _spread(np.concatenate(at_once)) if at_once else 0.0


def _spread_at_start_s(runs: Sequence[Run], own: Own) -> float:
    """The same, in seconds, estimated from the start: the scatter of the first requests, scaled to a retry's work.

    A shell that starts curl for each attempt does the same work before the first attempt as before any other.
    """
    starts = [(run.attempts[0].start_ns - run.start_ns) / SECOND for run in runs if run.attempts and run.start_ns]
    if len(starts) < _FEWEST_TO_SCATTER or not own.start_work_s:
        return 0.0
    return _spread(np.array(starts)) * min(1.0, own.work_s / own.start_work_s)


def _spread(values: Floats) -> float:
    """The standard deviation, estimated without the longest quarter."""
    low, high = np.percentile(values, [_LOW, _HIGH])
    return float(high - low) * _SPREAD_TO_DEVIATION


def variation(columns: Sequence[Floats]) -> float:
    """The gaps' coefficient of variation, relative to each column's median, without the longest quarter."""
    return _spread(np.concatenate([column / np.median(column) for column in columns]))


def retry_after_honoured(fault: str, runs: Sequence[Run], others: Sequence[Run] = ()) -> Judged:
    """The next attempt comes no sooner than requested, and later than this client would come by default.

    `others`: runs of the same client with a shorter requested wait, or without a requested wait.
    """
    name = "retry_after_honoured"
    told = [run for run in runs if _told(run) is not None]
    waits = [wait for run in told if (wait := told_wait_s(run)) is not None]
    if told and not waits and all(run.ended for run in told):
        return not_for_it(name, fault, "it does not retry on this fault, so there is no wait to judge")
    if not waits:
        reason = "it was still waiting at the deadline" if told else "no attempt was answered with Retry-After"
        return unknown(name, fault, reason)
    same = [wait for run in others if run.faulted and run.faulted[0].fault == fault and (wait := told_wait_s(run))]
    waited, asked = min([*waits, *same], key=lambda pair: pair[0] - pair[1])
    usual = [gap for run in others for gap in run.gaps_s()[:1]]
    evidence: dict[str, Any] = {
        "waited_s": round(waited, 3),
        "told_s": round(asked, 3),
        "waits": len(waits),
        "other_waits": len(usual),
    }
    text = f"came back after {waited:.2f}s, told to wait {asked:.2f}s"
    if waited < asked - RETRY_AFTER_TOLERANCE_S:
        return failed(name, fault, text, **evidence)
    # a later retry waits longer anyway
    first = [asked for run in told if run.at()[0].retry_after_s and (pair := told_wait_s(run)) for _, asked in [pair]]
    if len(first) < FEWEST_TOLD_WAITS or len(usual) < FEWEST_OTHER_WAITS:
        text += (
            f"; that was seen {counted(len(first), 'time')} after a first attempt, and {counted(len(usual), 'wait')} "
            f"when it was told less: at least {FEWEST_TOLD_WAITS} and {FEWEST_OTHER_WAITS} are needed"
        )
        return unknown(name, fault, text, **evidence)
    longest = max(usual)
    evidence["longest_other_wait_s"] = round(longest, 3)
    if min(first) < RETRY_AFTER_FACTOR * longest + RETRY_AFTER_MARGIN_S:
        text = f"when told less, it waits up to {longest:.2f}s, so waiting the told {min(first):.2f}s proves nothing"
        return unknown(name, fault, text, **evidence)
    waited, asked = min(waits, key=lambda pair: pair[0] - pair[1])
    text = f"came back after {waited:.2f}s or more, told to wait {asked:.2f}s ({counted(len(first), 'time')})"
    text += f"; when told less, it comes after {longest:.2f}s at most ({counted(len(usual), 'time')})"
    return passed(name, fault, text, **evidence)


def telling_retry_after_s(others: Sequence[Run]) -> int:
    """A wait, in whole seconds, so long that a client that waited as in these runs does not reach it by chance."""
    longest = max((gap for run in others for gap in run.gaps_s()[:1]), default=0.0)
    return max(RETRY_AFTER_S, math.ceil(RETRY_AFTER_FACTOR * longest + RETRY_AFTER_MARGIN_S))


def told_wait_s(run: Run) -> tuple[float, float] | None:
    """The wait after the first reply with Retry-After, and the requested wait; None if the client did not retry."""
    first, later = _told(run) or (None, None)
    if first is None or later is None:
        return None
    return (later.start_ns - first.end_ns) / SECOND, first.retry_after_s or 0.0


def heeds_retry_after(run: Run) -> bool:
    """Whether the client came back, and no sooner than requested."""
    wait = None if run.doubt else told_wait_s(run)
    return wait is not None and wait[0] >= wait[1] - RETRY_AFTER_TOLERANCE_S


def _told(run: Run) -> tuple[Attempt, Attempt | None] | None:
    """The first attempt whose reply has Retry-After, and the next attempt, if any."""
    attempts = run.at()
    for index, attempt in enumerate(attempts):
        if attempt.retry_after_s is not None:
            return attempt, attempts[index + 1] if run.retries and index + 1 < len(attempts) else None
    return None


def work_s(runs: Sequence[Run]) -> float:
    """CPU seconds of one more attempt: the median, over all pairs of runs, of extra time per extra attempt."""
    slopes = [
        (later.cpu_s - first.cpu_s) / (len(later.attempts) - len(first.attempts))
        for first, later in combinations(runs, 2)
        if len(first.attempts) != len(later.attempts)
    ]
    return max(0.0, float(np.median(slopes))) if slopes else 0.0


def _uncapped(waits: Sequence[float]) -> list[float]:
    """The gaps without the plateau at the end. Constant gaps, which are only a plateau, are kept."""
    rest = list(waits)
    while len(rest) > 1 and rest[-2] >= _PLATEAU * rest[-1]:
        rest.pop()
    return rest if len(rest) > 1 else list(waits)


def _middle(column: Floats) -> tuple[float, float]:
    """The trimmed mean of a gap over the clients, and its standard error as a share of the mean.

    With jitter, the trimmed mean is twice as precise as the median, and a stall of the machine hardly changes it.
    """
    cut = int(_TAIL * len(column))
    ordered = np.sort(column)
    middle = max(float(np.mean(ordered[cut : len(ordered) - cut])), _SMALLEST_S)
    scatter = 0.0
    if len(column) >= _FEWEST_TO_SCATTER:
        ordered[:cut], ordered[len(ordered) - cut :] = ordered[cut], ordered[-cut - 1]
        scatter = float(np.std(ordered, ddof=1)) / ((1 - 2 * _TAIL) * math.sqrt(len(column))) / middle
    return middle, math.sqrt(scatter**2 + _CLOCK_SHARE**2 + (_CLOCK_S / middle) ** 2)


def _rounded(gaps: Sequence[float]) -> list[float]:
    return [round(gap, 4) for gap in gaps]


def _listed(gaps: Sequence[float]) -> str:
    shown = ", ".join(f"{gap:.2f}" for gap in gaps[:8])
    return f"{shown}{', ...' if len(gaps) > 8 else ''} s"
