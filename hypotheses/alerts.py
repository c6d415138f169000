"""Does an alert fire in time, before users are hurt, and clear again; does it stay quiet otherwise?

A probe of the kind `alerts` watches the alerts. If the result of a look is uncertain, these hypotheses are INVALID.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from hashidrill import Duration, Held, HypothesisInvalidError, Recording, hypothesis, measure
from hashidrill.core.experiment.conditions import Condition, probe_signals, unit_trouble
from hashidrill.core.hypothesis import Broken, room
from hashidrill.core.judging.alerts import AlertLooks, alert_looks, watching
from hashidrill.core.judging.measure import SECOND, seconds, when
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.service import SILENT_S
from hashidrill.core.recording.reader import Series

_HURT = {"latency.p50": 50.0, "latency.p90": 90.0, "latency.p99": 99.0, "latency.max": 100.0, "errors": 0.0}
"""The statistics of a load that can show when users are hurt, each with its percentile."""
_WIDTH_S = 1.0
_FIRES_IN_TIME, _CLEARS_IN_TIME = room(since="start"), room("clears_within")


def _unwatched(params: Any, experiment: Any) -> Iterator[tuple[str, str]]:
    try:
        watching(experiment, params.alert, params.probe)
    except ValueError as error:
        yield "alert", str(error)


def _never(params: Any, experiment: Any) -> Iterator[tuple[str, str]]:
    yield from _unwatched(params, experiment)
    yield from _FIRES_IN_TIME(params, experiment)
    yield from _CLEARS_IN_TIME(params, experiment)
    hurt: Condition | None = params.before
    if hurt is None:
        return
    signals = {**probe_signals(hurt.source), **experiment.declared_signals}
    known = [f"{load}.{what}" for load in experiment.traffic for what in _HURT] + list(signals)
    if (signal := f"{hurt.source}.{hurt.what}") not in known:
        yield "before", f"nothing measures {signal} from second to second: {registry.near(signal, known)}"
    elif hurt.source not in experiment.traffic and (wrong := unit_trouble(hurt, signals[signal])):
        yield "before", wrong


@hypothesis(never=_never)
def alert_fires(
    recording: Recording,
    *,
    alert: str,
    within: Duration,
    fault: str | None = None,
    clears_within: Duration | None = None,
    before: Condition | None = None,
    probe: str | None = None,
) -> Held:
    """An alert fires at most `within` after the first fault began, and did not fire before the fault.

    `fault` names a fault, step or mark instead of the first fault. With `before`, the alert must fire before users are
    hurt: before this condition, like `kv-writes.latency.p50 > 300ms`, holds over one second (or over its `for`). With
    `clears_within`, the alert must be quiet within that time after the last fault ended, and stay quiet until the loads
    stop. `probe` names the probe of the kind `alerts`, if several watch this alert. INVALID if the alert fired before
    the fault, or if a look failed during which it may have fired.
    """
    looks = alert_looks(recording, alert, probe)
    start_ns = min(measure.in_force(recording, window)[0] for window in measure.windows(recording, fault))
    end_ns, name = measure.loads_end_ns(recording), fault or "the first fault"
    _quiet_before(recording, looks, start_ns, name)
    fired, due_ns = looks.between(start_ns, end_ns).first_firing(), start_ns + int(within * SECOND)
    took_s = (fired[1] - start_ns) / SECOND if fired else float("inf")
    figures: dict[str, Any] = {"fired_after_s": took_s}
    if fired is None or fired[1] > due_ns:
        measure.watched(recording, start_ns, within, f"{alert} did not fire yet")
        looks.complete(start_ns, due_ns)
        if fired is not None and fired[0] < due_ns:
            raise HypothesisInvalidError(
                f"{alert} was quiet {seconds((fired[0] - start_ns) / SECOND)} and fired {seconds(took_s)} after {name}"
                f" began, with no look in between: whether it fired within {within} is unknown"
            )
        late = f"it fired {seconds(took_s)} after it began" if fired else "it never fired"
        raise Broken(f"{alert} did not show {name} within {within}: {late}", **figures)
    texts = [f"{alert} fired {seconds(took_s)} after {name} began (allowed: {within})"]
    if before is not None:
        texts.append(_before(recording, before, start_ns, fired, figures))
    if clears_within is not None:
        texts.append(_cleared(recording, looks, measure.faults_end_ns(recording, fault), clears_within, figures))
    return Held("; ".join(texts), **figures)


@hypothesis(never=_unwatched)
def alert_stays_quiet(recording: Recording, *, alert: str, probe: str | None = None) -> Held:
    """An alert does not fire from the beginning of the method until the loads stop.

    Use it for a fault that only resembles what the alert is for, or for a run with a mark instead of faults. INVALID if
    the alert fired before the method or is pending at the end, or if looks failed or are missing. `probe` names the
    probe of the kind `alerts`, if several watch this alert.
    """
    looks = alert_looks(recording, alert, probe)
    start_ns, end_ns = measure.method(recording)[0], measure.loads_end_ns(recording)
    _quiet_before(recording, looks, start_ns, "the method")
    span = looks.between(start_ns, end_ns)
    fired = span.first_firing()
    if fired is not None:
        after_s = (fired[1] - start_ns) / SECOND
        said = f"{alert} fired {seconds(after_s)} after the method began ({when(fired[1])})"
        raise Broken(said, [looks.witness(fired[1])], fired_after_s=after_s)
    looks.complete(start_ns, end_ns)
    if span.pending[-1]:
        raise HypothesisInvalidError(
            f"{alert} was pending when the loads stopped, and may have fired later: give the experiment a longer"
            " `recovery: {for: ...}`"
        )
    pending = int(span.pending.sum())
    return Held(
        f"{alert} was quiet at all {len(span.t_ns)} looks" + (f", and pending at {pending} of them" if pending else ""),
        looks=len(span.t_ns),
        pending_looks=pending,
    )


def _quiet_before(recording: Recording, looks: AlertLooks, start_ns: int, name: str) -> None:
    steady_ns = recording.phases.get("steady", measure.method(recording))[0]
    fired = looks.between(steady_ns, start_ns).first_firing()
    if fired is not None:
        raise HypothesisInvalidError(
            f"{looks.alert} fired before {name} began ({when(fired[1])}): what it did later proves nothing"
        )
    looks.complete(steady_ns, start_ns)


def _before(
    recording: Recording, hurt: Condition, start_ns: int, fired: tuple[int, int], figures: dict[str, Any]
) -> str:
    steady_ns = recording.phases.get("steady", measure.method(recording))[0]
    if (earlier_ns := _first_hurt(recording, hurt, steady_ns, start_ns)) is not None:
        raise HypothesisInvalidError(
            f"{hurt} held before the fault began ({when(earlier_ns)}): users were hurt without the fault"
        )
    # harm that began before the alert fired may have been measured after it fired
    width_s = hurt.window_s or _WIDTH_S if hurt.source in recording.experiment.traffic else 0.0
    until_ns = min(fired[1] + int(width_s * SECOND), measure.loads_end_ns(recording))
    hurt_ns = _first_hurt(recording, hurt, start_ns, until_ns)
    if hurt_ns is not None and hurt_ns < fired[1]:
        figures["users_hurt_s"] = (hurt_ns - start_ns) / SECOND
        if hurt_ns > fired[0]:
            raise HypothesisInvalidError(
                f"{hurt} held for the first time {when(hurt_ns)}, between the looks that showed the alert quiet"
                f" ({when(fired[0])}) and firing ({when(fired[1])}): which was first is unknown"
            )
        raise Broken(
            f"the alert fired {seconds((fired[1] - hurt_ns) / SECOND)} after users were hurt: {hurt} held from"
            f" {when(hurt_ns)} on, and it fired {when(fired[1])}",
            **figures,
        )
    later_ns = _first_hurt(recording, hurt, fired[1], measure.loads_end_ns(recording), late=True)
    if later_ns is None:
        return f"users were never hurt in this run: {hurt} did not hold"
    figures["users_hurt_s"] = (later_ns - start_ns) / SECOND
    return f"{seconds((later_ns - fired[1]) / SECOND)} before users were hurt: {hurt} held from {when(later_ns)} on"


def _first_hurt(recording: Recording, hurt: Condition, start_ns: int, end_ns: int, *, late: bool = False) -> int | None:
    """When the condition held for the first time in [start_ns, end_ns).

    Raises HypothesisInvalidError if that is unknown, unless the time is only shown in a text (`late`).
    """
    if hurt.source in recording.experiment.traffic:
        ops, width_s = recording.operations(hurt.source), hurt.window_s or _WIDTH_S
        slid = measure.sliding(ops, start_ns, end_ns, percent=_HURT[hurt.what], width_s=width_s)
        value = slid.value_s if hurt.what != "errors" else _errors(ops, slid)
        if not late and np.isnan(value).any():
            raise HypothesisInvalidError(
                f"no operation of {hurt.source} was due {when(int(slid.t_ns[np.isnan(value)][0]))}"
            )
        moments = slid.t_ns
    else:
        series = recording.series(f"{hurt.source}.{hurt.what}", unknown="it is judged here: INVALID where it counts")
        series = series.between(start_ns, end_ns)
        value, moments = series.value, series.t_ns
        if not late:
            _looked(recording, hurt, series, (start_ns, end_ns))
    held = (t_ns for t_ns, one in zip(moments.tolist(), value.tolist(), strict=True) if hurt.holds(one, unknown=False))
    return next(held, None)


def _errors(ops: Any, slid: measure.Sliding) -> Any:
    failed = np.concatenate(([0], np.cumsum(~ops.ok)))
    low, high = (np.searchsorted(ops.intended_ns, slid.t_ns + shift) for shift in (0, slid.width_ns))
    with np.errstate(invalid="ignore"):
        return (failed[high] - failed[low]) / (high - low)


def _looked(recording: Recording, hurt: Condition, series: Series, span: tuple[int, int]) -> None:
    """Raises HypothesisInvalidError unless the looks cover the span, and each succeeded."""
    signal = f"{hurt.source}.{hurt.what}"
    probe = next((one for one in recording.experiment.sampled(recording.signals) if signal in one.signals), None)
    limit_s = probe.silent_s if probe else SILENT_S
    unknown = [int(t_ns) for t_ns in series.t_ns[np.isnan(series.value)]]
    unknown += [a for a, b in pairwise([span[0], *series.t_ns.tolist(), span[1]]) if b - a > limit_s * SECOND]
    if unknown:
        raise HypothesisInvalidError(f"{signal} was not known {when(min(unknown))}: whether {hurt} held is unknown")


def _cleared(recording: Recording, looks: AlertLooks, since_ns: int, within: Duration, figures: dict[str, Any]) -> str:
    end_ns, due_ns = measure.loads_end_ns(recording), since_ns + int(within * SECOND)
    after = looks.between(since_ns, end_ns)
    late = np.flatnonzero(after.firing & (after.t_ns > due_ns))
    if len(late):
        figures["cleared_s"] = (int(after.t_ns[late[-1]]) - since_ns) / SECOND
        raise Broken(
            f"{looks.alert} still fired {seconds(figures['cleared_s'])} after the last fault (allowed: {within})",
            [looks.witness(int(after.t_ns[each])) for each in late],
            **figures,
        )
    measure.watched(recording, since_ns, within, f"whether {looks.alert} clears was not known")
    wrong = np.flatnonzero(~after.quiet)
    first = int(wrong[-1]) + 1 if len(wrong) else 0
    if first >= len(after.t_ns) or int(after.t_ns[first]) > due_ns:
        raise HypothesisInvalidError(
            f"whether {looks.alert} cleared within {within} after the last fault is unknown: no look in time shows it"
            + (f"; the last look that was not quiet: {after.text[wrong[-1]]}" if len(wrong) else "")
        )
    looks.complete(int(after.t_ns[first]), end_ns)
    took_s = (int(after.t_ns[first]) - since_ns) / SECOND if len(wrong) else 0.0
    figures["cleared_s"] = took_s
    return f"quiet {seconds(took_s)} after the last fault ended (allowed: {within})"
