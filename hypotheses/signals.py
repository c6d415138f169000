"""Does a signal stay in its bounds, return to them, or show a fault? Any signal of probes, products or hosts.

Telemetry is judged in the same way: do the series that dashboards need exist, and how late are they?
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from hashidrill import Duration, Held, HypothesisInvalidError, Recording, hypothesis, measure, require
from hashidrill.core.experiment.conditions import (
    LOAD_STATISTICS,
    Condition,
    load_signals,
    probe_signals,
    unit_trouble,
)
from hashidrill.core.hypothesis import room
from hashidrill.core.judging.measure import SECOND, seconds, when
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.service import SILENT_S
from hashidrill.core.recording.reader import Bools, Int64s

_JUDGED = "it is judged here: INVALID where it counts"
_LOOK_S = 1.0
"""How long a look of a product's or host's probe may take; also the default for your own probes."""
_CONTRACT = "metrics"
"""The kind of probe that `metrics_exist` and `telemetry_lag_below` read."""
_LATE, _IN_TIME = room(), room(since="start")


def _unmeasured(params: Any, experiment: Any) -> Iterator[tuple[str, str]]:
    condition: Condition = params.condition
    signal, of_load = f"{condition.source}.{condition.what}", experiment.load.get(condition.source)
    known = {**probe_signals(condition.source), **experiment.declared_signals}
    if of_load is not None:
        known |= {
            f"{condition.source}.{what}": unit for what, unit in load_signals(registry.load(of_load.kind)).items()
        }
    if condition.source in experiment.traffic and condition.what in LOAD_STATISTICS:
        yield "condition", f"{signal} is a statistic of operations, which `latency_stays` and `writes_recover` judge"
    elif signal not in known:
        yield "condition", f"nothing measures {signal}: {registry.near(signal, known or experiment.probes)}"
    elif wrong := unit_trouble(condition, known[signal]):
        yield "condition", wrong
    if condition.window_s is not None:
        yield "condition", "has a `for`, but every look is judged by itself: leave it out"


def _shown_in_time(params: Any, experiment: Any) -> Iterator[tuple[str, str]]:
    yield from _unmeasured(params, experiment)
    yield from _IN_TIME(params, experiment)


def _never(params: Any, experiment: Any) -> Iterator[tuple[str, str]]:
    yield from _unmeasured(params, experiment)
    yield from _LATE(params, experiment)


@hypothesis(never=_unmeasured)
def signal_stays(
    recording: Recording,
    *,
    condition: Condition,
    fault: str | None = None,
    during: Literal["fault", "run"] = "fault",
    gap: Duration | None = None,
) -> Held:
    """A signal satisfies its `condition` at every look while a fault is in force, like `page.ok == 1`.

    With `fault`, it must do so while that fault, step or mark lasts; with `during: run`, from the steady state to the
    end of the loads. For a signal with hosts, every host must meet it. INVALID if a look failed, unless another look
    broke the condition, or if there was no look for longer than the probe may be silent. With `gap`, looks may fail or
    be missing for that long.
    """
    if during == "run":
        spans = [(recording.phases.get("steady", measure.method(recording))[0], measure.loads_end_ns(recording))]
    else:
        spans = [measure.in_force(recording, window) for window in measure.windows(recording, fault)]
    over = "over the whole run" if during == "run" else f"while {fault or 'a fault'} was in force"
    every = [seen for span in spans for seen in _seen(recording, condition, span, gap)]
    figures = _figures(every)
    for seen in every:
        bad = np.flatnonzero(seen.bad)
        require(
            not len(bad),
            f"{condition} did not hold{seen.of} {over}: {len(bad)} of {len(seen.t_ns)} looks broke it, first"
            + (f" {condition.figure(float(seen.value[bad[0]]))}, {_at(seen, bad[0])}" if len(bad) else ""),
            [seen.look(int(at)) for at in bad],
            **figures,
        )
    for seen in every:
        seen.complete(int(seen.span[0]))
    looks = sum(len(seen.t_ns) for seen in every)
    return Held(f"{condition} held at all {looks} looks {over}; {_range(condition, every)}", **figures)


@hypothesis(never=_never)
def signal_recovers(
    recording: Recording,
    *,
    condition: Condition,
    within: Duration,
    fault: str | None = None,
    since: Literal["end", "start"] = "end",
    gap: Duration | None = None,
) -> Held:
    """A signal satisfies its `condition` again at most `within` after the last fault, and until the loads stop.

    The time starts at the end of the last fault (with `fault`, of that fault, step or mark), or with `since: start`
    when the first one is applied. For a signal with hosts, every host must meet it. A failed look within that time
    counts as one that broke the condition; a later one makes this INVALID, as in `signal_stays`, which explains `gap`.
    Also INVALID if the signal recovered between a look that was in time and a look that was late.
    """
    windows = measure.windows(recording, fault)
    since_ns = (
        measure.faults_end_ns(recording, fault)
        if since == "end"
        else min(measure.in_force(recording, one)[0] for one in windows)
    )
    mark = f"{fault or 'the last fault'} ended" if since == "end" else f"{fault or 'the first fault'} began"
    every = _seen(recording, condition, (since_ns, measure.loads_end_ns(recording)), gap)
    due_ns = since_ns + int(within * SECOND)
    figures = _figures(every)
    took_s = 0.0
    for seen in every:
        late = np.flatnonzero(seen.bad & (seen.t_ns > due_ns))
        last_s = (int(seen.t_ns[late[-1]]) - since_ns) / SECOND if len(late) else 0.0
        figures["recovered_after_s"] = last_s if len(late) and late[-1] + 1 < len(seen.t_ns) else float("inf")
        require(
            not len(late),
            f"{condition} did not hold again{seen.of} {within} after {mark}: {len(late)} later looks broke it, the last"
            + (f" {condition.figure(float(seen.value[late[-1]]))}, {_at(seen, late[-1])}" if len(late) else ""),
            **figures,
        )
    measure.watched(recording, since_ns, within, f"whether {condition} holds again was not known")
    for seen in every:
        wrong = np.flatnonzero(seen.bad | seen.unknown)
        first = int(wrong[-1]) + 1 if len(wrong) else 0
        back_ns = int(seen.t_ns[first]) if first < len(seen.t_ns) else None
        if back_ns is None or back_ns > due_ns:
            until = "not at all" if back_ns is None else seconds((back_ns - since_ns) / SECOND)
            why = seen.reason(int(wrong[-1])) if len(wrong) else "there was no look before"
            raise HypothesisInvalidError(
                f"whether {condition} held again{seen.of} {within} after {mark} is unknown: it is known to hold from"
                f" {until} on; the look before: {why}"
            )
        seen.complete(back_ns if len(wrong) else since_ns)
        took_s = max(took_s, (back_ns - since_ns) / SECOND if len(wrong) else 0.0)
    figures["recovered_after_s"] = took_s
    return Held(
        f"{condition} held {seconds(took_s)} after {mark} (allowed: {within}), and at every look from then on;"
        f" {_range(condition, every)}",
        **figures,
    )


@hypothesis(never=_shown_in_time)
def signal_shows(recording: Recording, *, condition: Condition, within: Duration, fault: str | None = None) -> Held:
    """A signal shows each fault: it satisfies its `condition` at most `within` after the fault began, and not before.

    Use it for an alert that must fire, or a page that must be down. `fault` names one fault, step or mark. For a signal
    with hosts, one host suffices. INVALID if a look in the steady state satisfied the condition, or if a look failed,
    unless a later look in time is proof enough.
    """
    steady_ns = recording.phases.get("steady", measure.method(recording))[0]
    texts, figures = [], {"shown_after_s": 0.0}
    for window in measure.windows(recording, fault):
        start_ns, due_ns = (began := measure.in_force(recording, window)[0]), began + int(within * SECOND)
        name = measure.named(recording, window)
        for seen in _seen(recording, condition, (steady_ns, start_ns), None):
            if (held := np.flatnonzero(seen.holds)).size:
                raise HypothesisInvalidError(
                    f"{condition} held{seen.of} before {name} began ({_at(seen, held[0])}): the signal proves nothing"
                )
            seen.complete(steady_ns)
        after = _seen(recording, condition, (start_ns, min(due_ns, measure.loads_end_ns(recording))), None)
        shown = [int(seen.t_ns[seen.holds][0]) for seen in after if seen.holds.any()]
        if not shown:
            measure.watched(recording, start_ns, within, f"{condition} did not hold yet")
            for seen in after:
                seen.complete(start_ns)
        took_s = (min(shown) - start_ns) / SECOND if shown else float("inf")
        figures["shown_after_s"] = max(figures["shown_after_s"], took_s)
        require(
            shown,
            f"{condition} did not show {name} within {within}; {_range(condition, after)}",
            **figures,
        )
        texts.append(f"{condition} showed {name} after {seconds(took_s)} (allowed: {within})")
    return Held("; ".join(texts), **figures)


def _contract(params: Any, experiment: Any) -> Iterator[tuple[str, str]]:
    for key, names in (("probes", getattr(params, "probes", [])), ("probe", [getattr(params, "probe", "")])):
        kinds = {name: spec.kind for name, spec in experiment.probes.items()}
        for name in filter(None, names):
            if kinds.get(name) != _CONTRACT:
                there = [other for other, kind in kinds.items() if kind == _CONTRACT]
                yield key, f"{name} is not a probe of the kind {_CONTRACT}: {registry.near(name, there)}"
            elif key == "probe" and experiment.probes[name].parameters.source == "page":
                yield key, f"{name} reads a page, which does not say when samples were taken: ask Prometheus"
    if not getattr(params, "probes", ["one"]):
        yield "probes", "name at least one probe of the kind metrics"


@hypothesis(never=_contract)
def metrics_exist(
    recording: Recording,
    *,
    probes: list[str],
    fault: str | None = None,
    during: Literal["fault", "run"] = "run",
    gap: Duration | None = None,
) -> Held:
    """The series that dashboards and alerts need exist at every look: the metric contract.

    `probes` are of the kind `metrics`: one for Prometheus, or one for each agent's page, such as the old and the new
    version in a rollout. `fault`, `during` and `gap` are as in `signal_stays`.
    """
    looks = {}
    for probe in probes:
        condition = Condition.parse(f"{probe}.ok == 1")
        held = signal_stays(recording, condition=condition, fault=fault, during=during, gap=gap)
        looks[f"looks_of_{probe.replace('-', '_')}"] = held.figures["looks"]
    return Held(f"all series existed at every look of {', '.join(probes)}", **looks)


@hypothesis(never=_contract)
def telemetry_lag_below(
    recording: Recording,
    *,
    probe: str,
    lag: Duration,
    fault: str | None = None,
    during: Literal["fault", "run"] = "fault",
    gap: Duration | None = None,
) -> Held:
    """The newest sample of each series is younger than `lag` at every look: what alerts see is not late.

    `probe` is of the kind `metrics`, and asks Prometheus. A look that cannot tell the age is unknown: it makes this
    INVALID, unless another look found a sample that was too old. `fault`, `during` and `gap` are as in `signal_stays`.
    """
    condition = Condition.parse(f"{probe}.lag < {lag}")
    return signal_stays(recording, condition=condition, fault=fault, during=during, gap=gap)


@dataclass(frozen=True)
class _Seen:
    """The looks at one host, or at the whole datacenter, in one span. `limit_s`: how far apart the looks may be."""

    host: str
    span: tuple[int, int]
    t_ns: Int64s
    value: Any
    text: list[str]
    bad: Bools
    unknown: Bools
    limit_s: float
    look_s: float
    """How long a look may take; it is recorded at its end."""
    condition: Condition

    def look(self, at: int) -> tuple[str, str | None, int, int]:
        """The time span of one look that proves something: from its earliest possible start to shortly after
        its end.
        """
        signal, t_ns = f"{self.condition.source}.{self.condition.what}", int(self.t_ns[at])
        return signal, self.host or None, t_ns - int(self.look_s * SECOND), t_ns + int(_LOOK_S * SECOND)

    @property
    def holds(self) -> Bools:
        return np.asarray(~self.bad & ~self.unknown, np.bool_)

    @property
    def of(self) -> str:
        return f" on {self.host}" if self.host else ""

    def reason(self, at: int) -> str:
        return (self.text[at] or "failed") if self.unknown[at] else self.condition.figure(float(self.value[at]))

    def complete(self, start_ns: int) -> None:
        """Raises HypothesisInvalidError unless the looks from `start_ns` on cover the span, and each succeeded."""
        later = self.t_ns >= start_ns
        failed = np.flatnonzero(self.unknown & later)
        if len(failed):
            raise HypothesisInvalidError(
                f"{len(failed)} of {int(later.sum())} looks at {self.condition.source}.{self.condition.what}{self.of}"
                f" failed, so whether {self.condition} held is unknown: {self.reason(int(failed[0]))}"
                f" ({when(int(self.t_ns[failed[0]]))}); `gap` says how long that may last"
            )
        for before_ns, after_ns in pairwise([start_ns, *self.t_ns[later].tolist(), self.span[1]]):
            if after_ns - before_ns > self.limit_s * SECOND:
                raise HypothesisInvalidError(
                    f"there was no successful look at {self.condition.source}.{self.condition.what}{self.of} for"
                    f" {seconds((after_ns - before_ns) / SECOND)} ({when(before_ns)}), over"
                    f" {seconds(self.limit_s)}: whether {self.condition} held is unknown"
                )


def _seen(recording: Recording, condition: Condition, span: tuple[int, int], gap: Duration | None) -> list[_Seen]:
    """Raises HypothesisInvalidError if there was no look in the span."""
    signal = f"{condition.source}.{condition.what}"
    probe = next((one for one in recording.experiment.sampled(recording.signals) if signal in one.signals), None)
    silent_s = SILENT_S if probe is None else probe.silent_s
    own = recording.experiment.probes.get(condition.source)
    look_s = _LOOK_S if own is None else max(_LOOK_S, float(own.timeout))
    hosts = {*recording.aside.series(signal).host}  # every host, even one that was silent in this span
    # the majority's view if there is one; for a signal that only the leader reports, all looks together
    together = probe is not None and not probe.regular
    found = []
    for host in [""] if "" in hosts else [None] if together else sorted(hosts):
        series = recording.series(signal, host, unknown=_JUDGED).between(*span)
        known = ~np.isnan(series.value)
        picked = known if gap is not None else np.ones(len(known), np.bool_)
        value = series.value[picked]
        bad = np.array([not condition.holds(float(one), unknown=True) for one in value], np.bool_)
        text = [said for said, keep in zip(series.text, picked, strict=True) if keep]
        limit_s = silent_s if gap is None else float(gap)
        found.append(
            _Seen(host or "", span, series.t_ns[picked], value, text, bad, np.isnan(value), limit_s, look_s, condition)
        )
    if not any(len(seen.t_ns) for seen in found):
        raise HypothesisInvalidError(
            f"{signal} was not measured from {when(span[0])} on, for {seconds((span[1] - span[0]) / SECOND)}"
        )
    return found


def _at(seen: _Seen, at: Any) -> str:
    said = f" ({seen.text[at]})" if seen.text[at] else ""
    return f"{when(int(seen.t_ns[at]))}{said}"


def _known(every: list[_Seen]) -> list[float]:
    return [float(value) for seen in every for value in seen.value if not np.isnan(value)]


def _range(condition: Condition, every: list[_Seen]) -> str:
    known = _known(every)
    return f"measured {condition.figure(min(known))} to {condition.figure(max(known))}"


def _figures(every: list[_Seen]) -> dict[str, Any]:
    known = _known(every) or [float("nan")]
    return {
        "looks": sum(len(seen.t_ns) for seen in every),
        "failed_looks": sum(int(seen.unknown.sum()) for seen in every),
        "broken_looks": sum(int(seen.bad.sum()) for seen in every),
        "least": min(known),
        "most": max(known),
    }
