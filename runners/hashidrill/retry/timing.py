"""Verdicts on when a client tries again: backoff, exponential, jitter, retry_after_honoured.

Pure functions of runs, most of them of many independent clients; definitions and sources are in
hashidrill.retry.catalogue. A gap runs from the end of a failed attempt to the start of the next one, as the tap saw
both. What a machine adds to a gap is always more, never less: hence quantiles, and a reference that sleeps beside.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hashidrill.retry.attempts import SECOND, Attempt, Run
from hashidrill.retry.catalogue import (
    BACKOFF_GROWTH,
    EXPONENTIAL_SLOPE,
    FEWEST_BACKOFF_GAPS,
    FEWEST_EXPONENTIAL_GAPS,
    JITTER_CLIENTS,
    JITTER_VARIATION,
    RETRY_AFTER_TOLERANCE_S,
    SHORTEST_GAP_S,
)
from hashidrill.retry.judged import Judged, failed, not_for_it, passed, unknown

Floats = npt.NDArray[np.float64]
_PLATEAU = 0.87
"""Gaps at the end that differ by less than this ratio have met the client's cap."""
_SURELY_EXPONENTIAL = 0.8
_LOW, _HIGH = 5, 75
_SPREAD_TO_DEVIATION = 0.42
"""Standard deviation over the distance of these two percentiles: 0.412 for a uniform distribution, 0.431 for a normal
one. Delays only ever add, and the upper quarter, where they gather, is left out."""
_LONG = 0.6
_CLEARLY = 3.0
"""Two spreads of 20 clients each differ by less than this factor by chance."""
GREY = 1.5
"""A variation within this factor of the threshold is worth more clients."""
_SIGMAS = 2.0


def by_position(runs: Sequence[Run]) -> list[Floats]:
    """The first gaps of all clients, their second gaps, and so on, as far as most of the clients have them."""
    each = [run.gaps_s() for run in runs]
    longest = max((len(gaps) for gaps in each), default=0)
    columns = [np.array([gaps[k] for gaps in each if len(gaps) > k]) for k in range(longest)]
    return [column for column in columns if len(column) * 2 >= len(each)]


def typical_gaps_s(runs: Sequence[Run]) -> list[float]:
    """The median gap at each position, in seconds."""
    return [float(np.median(column)) for column in by_position(runs)]


def backoff(fault: str, runs: Sequence[Run]) -> Judged:
    """The typical gaps get longer."""
    columns = by_position(runs)
    typical = [float(np.median(column)) for column in columns]
    evidence = {"gaps_s": _rounded(typical), "clients": len(runs)}
    if len(typical) < FEWEST_BACKOFF_GAPS:
        text = f"{_count(len(typical), 'gap')}: fewer than {FEWEST_BACKOFF_GAPS} say nothing about growth"
        return not_for_it("backoff", fault, text, **evidence)
    if max(typical) < SHORTEST_GAP_S:
        return failed("backoff", fault, f"no waiting at all: gaps {_listed(typical)}", **evidence)
    start = next(k for k, gap in enumerate(typical) if gap >= SHORTEST_GAP_S)
    if len(typical) - start < FEWEST_BACKOFF_GAPS:
        text = f"only one gap in which it waits ({_listed(typical)}): nothing says whether it grows"
        return not_for_it("backoff", fault, text, **evidence)
    growth = max(typical[start + 1 :]) / typical[start]
    evidence["growth"] = round(growth, 3)
    last = columns[start + 1 + int(np.argmax(typical[start + 1 :]))]
    if abs(math.log(growth / BACKOFF_GROWTH)) < _SIGMAS * math.hypot(_scatter(columns[start]), _scatter(last)):
        text = f"gaps {_listed(typical)} scatter too much to say whether they grow; more clients would tell"
        return unknown("backoff", fault, text, more_clients=True, **evidence)
    if growth < BACKOFF_GROWTH:
        return failed("backoff", fault, f"gaps do not grow: {_listed(typical)}", **evidence)
    return passed("backoff", fault, f"gaps grow: {_listed(typical)}", **evidence)


def exponential(fault: str, runs: Sequence[Run]) -> Judged:
    """The typical gaps grow by a factor, until they meet a cap."""
    typical = typical_gaps_s(runs)
    waits = [gap for gap in typical if gap >= SHORTEST_GAP_S]
    uncapped = _uncapped(waits)
    evidence = {"gaps_s": _rounded(typical), "uncapped": len(uncapped), "clients": len(runs)}
    if len(uncapped) < FEWEST_EXPONENTIAL_GAPS:
        if len(typical) >= FEWEST_EXPONENTIAL_GAPS and not waits:
            return failed("exponential", fault, f"no waiting at all: gaps {_listed(typical)}", **evidence)
        text = f"{_count(len(uncapped), 'uncapped gap')}: fewer than {FEWEST_EXPONENTIAL_GAPS} make no curve"
        return not_for_it("exponential", fault, text, **evidence)
    position, logs = np.arange(len(uncapped), dtype=np.float64), np.log2(np.array(uncapped))
    slope, start = np.polyfit(position, logs, 1)
    line = np.polyval(np.polyfit(position, np.array(uncapped), 1), position)
    bent = float(np.sqrt(np.mean((logs - slope * position - start) ** 2)))
    straight = float(np.sqrt(np.mean((logs - np.log2(np.maximum(line, min(uncapped) / 16))) ** 2)))
    evidence["slope"] = round(float(slope), 3)
    text = f"log2 of the gaps rises by {slope:.2f} a retry: {_listed(uncapped)}"
    if slope >= _SURELY_EXPONENTIAL or (slope >= EXPONENTIAL_SLOPE and bent <= straight):
        return passed("exponential", fault, text, **evidence)
    kind = "constant" if abs(slope) < 0.1 else "on a straight line" if straight < bent else "not growing by a factor"
    return failed("exponential", fault, f"{kind}; {text}", **evidence)


def jitter(fault: str, runs: Sequence[Run], reference: Sequence[Run], *, clients: int = JITTER_CLIENTS) -> Judged:
    """The gaps of independent clients scatter more than those of clients that sleep the same gaps for certain."""
    mine, theirs = by_position(runs), by_position(reference)
    typical = [float(np.median(column)) for column in mine]
    evidence = {"clients": len(runs), "gaps_s": _rounded(typical)}
    if not typical:
        return not_for_it("jitter", fault, "it does not retry on this: there is no gap to spread", **evidence)
    if max(typical) < SHORTEST_GAP_S:
        return failed("jitter", fault, f"no waiting at all, so nothing is spread: gaps {_listed(typical)}", **evidence)
    # what a machine adds is the same for every gap, what a client spreads grows with it: the longest ones tell most
    waits = [k for k, gap in enumerate(typical) if gap >= _LONG * max(typical) and k < len(theirs)]
    if not waits or len(runs) < clients:
        text = f"{len(runs)} clients, at least {clients} are needed; {len(reference)} of the reference"
        return unknown("jitter", fault, text, **evidence)
    spread = variation([mine[k] for k in waits])
    noise = max(variation([theirs[k] for k in waits]), _own_noise(mine, typical, waits))
    own = math.sqrt(max(0.0, spread**2 - noise**2))
    evidence |= {"variation": round(spread, 5), "reference": round(noise, 5), "jitter": round(own, 5)}
    text = f"gaps vary by {spread:.2%} over {len(runs)} clients; without jitter they vary by {noise:.2%} here"
    if JITTER_VARIATION < spread < _CLEARLY * noise:  # under that there is no room for jitter, whoever makes it
        busy = f"too busy a machine to tell: {text}"
        return unknown("jitter", fault, busy, more_clients=True, **evidence)
    if JITTER_VARIATION / GREY < own < JITTER_VARIATION * GREY:
        evidence["more_clients"] = True
    if own > JITTER_VARIATION:
        return passed("jitter", fault, text, **evidence)
    return failed("jitter", fault, text, **evidence)


def _own_noise(columns: Sequence[Floats], typical: Sequence[float], waits: Sequence[int]) -> float:
    """What the client's own work adds, as a retry without waiting shows it, as a share of its waits."""
    at_once = [column for column, gap in zip(columns, typical, strict=True) if gap < SHORTEST_GAP_S]
    if not at_once:
        return 0.0
    low, high = np.percentile(np.concatenate(at_once), [_LOW, _HIGH])
    return float(high - low) * _SPREAD_TO_DEVIATION / float(np.mean([typical[k] for k in waits]))


def variation(columns: Sequence[Floats]) -> float:
    """Coefficient of variation of gaps, each column by its own median, without the longest quarter."""
    ratios = np.concatenate([column / np.median(column) for column in columns])
    low, high = np.percentile(ratios, [_LOW, _HIGH])
    return float(high - low) * _SPREAD_TO_DEVIATION


def retry_after_honoured(fault: str, runs: Sequence[Run], *, usual_gap_s: float | None = None) -> Judged:
    """The next attempt comes no sooner than was told. `usual_gap_s`: what the client waits without being told."""
    told = [pair for run in runs if (pair := _told(run)) is not None]
    if not told:
        return unknown("retry_after_honoured", fault, "no attempt was answered with Retry-After")
    followed = [(first, later) for first, later in told if later is not None]
    if not followed:
        return not_for_it("retry_after_honoured", fault, "it does not retry on this: there is no wait to judge")
    waits = [((later.start_ns - first.end_ns) / SECOND, first.retry_after_s or 0.0) for first, later in followed]
    waited, asked = min(waits, key=lambda pair: pair[0] - pair[1])
    evidence = {"waited_s": round(waited, 3), "told_s": round(asked, 3)}
    if waited < asked - RETRY_AFTER_TOLERANCE_S:
        text = f"came back after {waited:.2f}s, told to wait {asked:.2f}s"
        return failed("retry_after_honoured", fault, text, **evidence)
    if usual_gap_s is not None and usual_gap_s >= asked - RETRY_AFTER_TOLERANCE_S:
        text = f"it waits {usual_gap_s:.2f}s anyway, so that the {asked:.2f}s it was told show nothing"
        return unknown("retry_after_honoured", fault, text, **evidence)
    text = f"came back after {waited:.2f}s, told to wait {asked:.2f}s"
    return passed("retry_after_honoured", fault, text, **evidence)


def _told(run: Run) -> tuple[Attempt, Attempt | None] | None:
    """The first attempt that was told when to come again, and the one after it, if any."""
    attempts = run.at()
    for index, attempt in enumerate(attempts):
        if attempt.retry_after_s is not None:
            return attempt, attempts[index + 1] if run.retries and index + 1 < len(attempts) else None
    return None


def _uncapped(waits: Sequence[float]) -> list[float]:
    """Without the plateau at the end; constant gaps have none, they are all there is."""
    rest = list(waits)
    while len(rest) > 1 and rest[-2] >= _PLATEAU * rest[-1]:
        rest.pop()
    return rest if len(rest) > 1 else list(waits)


def _scatter(column: Floats) -> float:
    """Standard error of the median, as a share of it; by quartiles, since gaps have long tails."""
    if len(column) < 2:
        return 0.0
    low, middle, high = np.percentile(column, [25, 50, 75])
    return 1.25 * float(high - low) / 1.35 / float(middle) / math.sqrt(len(column))


def _rounded(gaps: Sequence[float]) -> list[float]:
    return [round(gap, 4) for gap in gaps]


def _listed(gaps: Sequence[float]) -> str:
    shown = ", ".join(f"{gap:.2f}" for gap in gaps[:8])
    return f"{shown}{', ...' if len(gaps) > 8 else ''} s"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
