"""Do health checks arrive on time? Judges the operations of a `consul.health_checks` load."""

from typing import Literal

import numpy as np

from hashidrill import (
    Duration,
    Held,
    HypothesisInvalidError,
    Operations,
    Percent,
    Recording,
    hypothesis,
    measure,
    require,
)
from hashidrill.core.judging.measure import SECOND, seconds, share, when


@hypothesis
def checks_keep_interval(
    recording: Recording,
    *,
    load: str,
    within: Duration = Duration("100ms"),
    at_least: Percent = Percent("99%"),
    during: Literal["run", "method", "recovery"] = "run",
) -> Held:
    """At least `at_least` of the health checks arrive within `within` of the time they were due.

    A check is due one interval after the previous one arrived. A check that has not arrived one interval after it was
    due counts as infinitely late; so does a check that was registered and never fired. `during` picks the judged time:
    the method, the recovery, or the `run` from its steady state until the loads stop. 100 ms is a tenth of the shortest
    interval that Consul accepts.
    """
    start_ns, end_ns = _span(recording, during)
    # checks due after the end are not judged: the loads may have stopped before they arrived
    ops = recording.operations(load).between(start_ns, end_ns)
    if not len(ops):
        raise HypothesisInvalidError(f"no check of {load} was due in the {during}: there is nothing to judge")
    silent = _never_fired(recording, load, ops, start_ns, end_ns)
    # a check that never fired missed as many intervals as the other checks had
    unsaid = np.full(silent * round(len(ops) / len({*ops.keys})), np.inf)
    drift_s = np.concatenate((measure.served_s(ops), unsaid))
    kept = float((drift_s <= within).mean())
    figures = {
        "checks_due": len(drift_s),
        "kept_share": kept,
        "missed": int((~ops.ok).sum()) + len(unsaid),
        "never_fired": silent,
        "drift_p50_s": measure.percentile(drift_s, 50),
        "drift_p99_s": measure.percentile(drift_s, 99),
        "drift_max_s": float(drift_s.max()),
        "checks_per_s": len(ops) * SECOND / (end_ns - start_ns),
    }
    measured = (
        f"{share(kept)} of {len(drift_s)} checks of {load} arrived within {within} of their due time in the {during}"
        f" (drift p50 {seconds(figures['drift_p50_s'])}, p99 {seconds(figures['drift_p99_s'])})"
    )
    measured += f"; {silent} of them were registered and never fired" if silent else ""
    require(kept >= at_least, f"{measured}, expected {at_least}\n{_worst(ops)}", **figures)
    return Held(measured, **figures)


def _never_fired(recording: Recording, load: str, ops: Operations, start_ns: int, end_ns: int) -> int:
    """How many checks were registered during all that time (`LOAD.registered`) without having an operation."""
    if f"{load}.registered" not in recording.signals:
        return 0
    registered = recording.series(f"{load}.registered").known_between(start_ns, end_ns).value
    known = registered[~np.isnan(registered)]
    if not len(known):
        raise HypothesisInvalidError(f"how many checks {load} had registered was not sampled")
    return max(0, int(known.min()) - len({*ops.keys}))


def _span(recording: Recording, during: str) -> tuple[int, int]:
    if during == "run":
        begin_ns = recording.phases.get("steady", measure.method(recording))[0]
        return begin_ns, measure.loads_end_ns(recording)
    if during == "method":
        return measure.method(recording)
    if during not in recording.phases:
        raise HypothesisInvalidError(f"the run never reached its {during}, so there is nothing to judge")
    return recording.phases[during]


def _worst(ops: Operations) -> str:
    at = int(np.argmax(measure.served_s(ops)))
    agents = sorted({key.partition("/")[0] for key, ok in zip(ops.keys, ops.ok.tolist(), strict=True) if not ok})
    missed = f"; some never arrived, from {', '.join(agents)}" if agents else ""
    return (
        f"worst: {ops.keys[at]}, due {when(int(ops.intended_ns[at]))}{missed}\n"
        "hint: every agent that checks a target adds its own checks. Look at process.cpu of those agents; check less"
        " often, or from fewer agents"
    )
