"""Do the health checks tell the truth?"""

from dataclasses import dataclass

import numpy as np

from hashidrill import (
    Duration,
    FaultWindow,
    Held,
    HypothesisInvalidError,
    Recording,
    Series,
    hypothesis,
    measure,
    require,
)
from hashidrill.core.hypothesis import needs_fault
from hashidrill.core.judging.measure import SECOND, STEP_S, in_force, latest, longest_run, named, seconds, when
from hashidrill.core.recording.reader import Bools, Int64s, MarkWindow

LAST_CONTACT_MAX_S = 0.2
"""`raft.leader.lastContact` under 200 ms is healthy (Consul's documentation on telemetry)."""
_FRESH_S = 5.0
_RED = "the check is red"
"""What a failed look at a health check means."""
_FRESH_TELEMETRY_S = 15.0
"""Consul aggregates its metrics over 10 s, and leaves a metric out of an interval that has no value for it."""


@hypothesis(never=needs_fault)
def green_but_sick(
    recording: Recording,
    *,
    load: str,
    p50_below: Duration = Duration("300ms"),
    at_least: Duration = Duration("3s"),
    fault: str | None = None,
) -> Held:
    """Every health check stays green while users suffer, as in the Roblox outage of 2021.

    While a fault is in force, the p50 of the load is over `p50_below` for `at_least` in a row, and all that time every
    check is green: autopilot is healthy, as many members are alive as before the fault, `raft.leader.lastContact` is
    under 200 ms, and a leader is known. If not, the text says whether a check turned red, or the load never got slow.
    """
    longest: tuple[float, str] = (0.0, "")
    reds: set[str] = set()
    sick_at_all, worst = False, 0.0
    for window in measure.windows(recording, fault):
        seen = _observe(recording, window, load, p50_below)
        worst = max(worst, seen.worst_s)
        sick_at_all |= bool(seen.sick.any())
        reds |= {name for name, green in seen.green.items() if (seen.sick & ~green).any()}
        first, last = longest_run(seen.sick & np.logical_and.reduce(list(seen.green.values())))
        length_s = (last - first + 1) * STEP_S
        if length_s > longest[0]:
            span = f"from {when(int(seen.t_ns[first]))} to {length_s:.1f}s later"
            longest = (length_s, f"{span}, under {named(recording, window)}")
    figures = {"green_but_sick_s": longest[0], "worst_p50_s": worst, "red": sorted(reds)}
    require(
        sick_at_all,
        f"{load} never got slow: its worst p50 over 1s under a fault was {seconds(worst)};"
        f" expected it over {p50_below} while every health check is green",
        **figures,
    )
    red_text = "; ".join(sorted(reds))
    require(
        longest[0] >= at_least,
        f"{load} got slow (worst p50 {seconds(worst)}), but not for {at_least} in a row with every check green: "
        + (f"health checks noticed ({red_text})" if reds else "every check stayed green, but latency recovered sooner")
        + f"\nlongest stretch, slow and green: {longest[0]:.1f}s {longest[1]}",
        **figures,
    )
    return Held(
        f"every health check was green for {longest[0]:.1f}s while p50 of {load} was over {p50_below} (worst"
        f" {seconds(worst)}): {longest[1]}\n"
        "hint: alert on raft.commit_time and on KV latency; these checks cannot see it",
        **figures,
    )


@dataclass(frozen=True)
class _Seen:
    """For every 100 ms of a fault: whether the load was sick, and whether each check was green."""

    t_ns: Int64s
    sick: Bools
    green: dict[str, Bools]
    worst_s: float


def _observe(recording: Recording, window: FaultWindow | MarkWindow, load: str, limit_s: float) -> _Seen:
    start_ns, end_ns = in_force(recording, window)
    p50 = measure.sliding(recording.operations(load), start_ns, end_ns)
    _, worst = p50.worst()
    sick = np.asarray(~np.isnan(p50.value_s) & (p50.value_s >= limit_s), np.bool_)
    return _Seen(p50.t_ns, sick, _checks(recording, p50.t_ns), worst)


def _checks(recording: Recording, at_ns: Int64s) -> dict[str, Bools]:
    """Whether each health check is green at each moment. Raises HypothesisInvalidError if one was never sampled."""
    healthy = _then(recording.series("consul.autopilot_healthy", unknown=_RED), at_ns)
    every = recording.series("consul.members_alive", unknown=_RED)
    expected = _members_before(recording, every)
    alive = _then(every, at_ns)
    leader = _then(recording.series("raft.leader", "", unknown=_RED), at_ns)
    known = np.array([bool(text) for text in leader.text], np.bool_)
    return {
        "autopilot unhealthy": _green(healthy, healthy.value == 1, at_ns),
        "members not alive": _green(alive, alive.value >= expected, at_ns),
        "no leader known": _green(leader, known & (leader.value != 0), at_ns),
        "lastContact over 200ms": _contact_green(recording, at_ns),
    }


def _then(series: Series, at_ns: Int64s, fresh_s: float = _FRESH_S) -> Series:
    return series.between(int(at_ns[0] - fresh_s * SECOND), int(at_ns[-1]) + 1)


def _green(series: Series, good: Bools, at_ns: Int64s, fresh_s: float = _FRESH_S) -> Bools:
    if not len(series):
        return np.zeros(len(at_ns), np.bool_)
    index, fresh = latest(series.t_ns, at_ns, int(fresh_s * SECOND))
    return np.asarray(fresh & (good & series.ok)[index], np.bool_)


def _members_before(recording: Recording, alive: Series) -> float:
    start_ns, _ = measure.method(recording)
    earlier = alive.between(0, start_ns)
    before = earlier.value[earlier.ok]
    if not len(before) or np.isnan(before).all():
        raise HypothesisInvalidError(
            "consul.members_alive was not sampled before the method, so the expected number of members is unknown"
        )
    return float(np.nanmax(before))


def _contact_green(recording: Recording, at_ns: Int64s) -> Bools:
    """Green if a server reports a contact, and none reports one older than the limit. Only leaders measure it."""
    every = _then(recording.series("raft.last_contact", unknown=_RED), at_ns, _FRESH_TELEMETRY_S)
    over = np.zeros(len(at_ns), np.bool_)
    reported = np.zeros(len(at_ns), np.bool_)
    for host in sorted(set(every.host)):
        series = _then(recording.series("raft.last_contact", host, unknown=_RED), at_ns, _FRESH_TELEMETRY_S)
        if not len(series):
            continue
        index, fresh = latest(series.t_ns, at_ns, int(_FRESH_TELEMETRY_S * SECOND))
        value = series.value[index]
        reported |= fresh & series.ok[index] & ~np.isnan(value)
        over |= fresh & series.ok[index] & (value >= LAST_CONTACT_MAX_S)
    return np.asarray(reported & ~over, np.bool_)
