"""Is an OpenSLO objective met, and how much of its error budget did the run burn?"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from hashidrill import Duration, Held, HypothesisInvalidError, Percent, Recording, hypothesis, measure, require
from hashidrill.core.judging.measure import SECOND, seconds, when
from hashidrill.core.protocols import registry
from hashidrill.core.recording.reader import Bools, Int64s

_KIND = "slo"
_JUDGED = "it is judged here: INVALID where it counts"


def _unmeasured(params: Any, experiment: Any) -> Iterator[tuple[str, str]]:
    spec = experiment.probes.get(params.probe)
    if spec is None or spec.kind != _KIND:
        there = [name for name, each in experiment.probes.items() if each.kind == _KIND]
        yield "probe", f"{params.probe} is not a probe of the kind {_KIND}: {registry.near(params.probe, there)}"
        return
    slo = spec.parameters.slo
    run_s = experiment.steady_state.within + max(step.at + step.for_ for step in experiment.method)
    run_s += experiment.recovery.for_
    if params.budget is None and slo.window_s > run_s:
        yield "probe", _too_long(slo.window, float(run_s))


def _too_long(window: str, run_s: float) -> str:
    return (
        f"the window of {window} is longer than a run of {Duration(round(run_s))}, which cannot show that it is met:"
        " set `budget` to the share of the window's error budget that the run may burn, like `budget: 5%`"
    )


@hypothesis(never=_unmeasured)
def slo_met(recording: Recording, *, probe: str, budget: Percent | None = None) -> Held:
    """An OpenSLO objective is met from the steady state to the end of the loads; the text says what budget was burnt.

    `probe` has the kind `slo`. A window that is shorter than the run is judged wherever it fits into the run, and may
    burn its whole error budget, or the share `budget` of it. If the window is longer than the run, the run may burn the
    share `budget` of the window's, assuming the run's rate of events for the whole window. INVALID if there was no
    event, more good events than events, or a longer window without `budget`. Also INVALID if events were not counted at
    some time (no data, a counter reset, a failed or missing look), unless the counted events alone burnt too much.
    """
    spec = recording.experiment.probes.get(probe)
    if spec is None or spec.kind != _KIND:
        raise HypothesisInvalidError(f"{probe} is not a probe of the kind {_KIND} in this recording")
    slo, name = spec.parameters.slo, spec.parameters.slo.metadata.name
    span = recording.phases.get("steady", measure.method(recording))[0], measure.loads_end_ns(recording)
    good, total = (
        recording.series(f"{probe}.{what}", "", unknown=_JUDGED).between(*span) for what in ("good", "total")
    )
    known = ~np.isnan(good.value) & ~np.isnan(total.value)
    if not known.any():
        why = good.text[0] if len(good.text) else "there was no look"
        raise HypothesisInvalidError(f"{name}: no event was counted: {why}")
    first = int(np.flatnonzero(known)[0])
    looks = _Looks(
        good.t_ns[first:],
        np.where(known, total.value, 0.0)[first:],
        np.where(known, total.value - good.value, 0.0)[first:],
        known[first:],
        float(spec.every),
    )
    doubt = _doubt(looks, good.text[first:], span, spec.silent_s)
    run_s = (int(looks.t_ns[-1]) - int(looks.t_ns[0])) / SECOND + looks.every_s
    events, bad = float(looks.events.sum()), float(looks.bad.sum())
    if bad < 0:
        raise HypothesisInvalidError(f"{name}: {events - bad:g} of {events:g} events were good, which is impossible")
    if not events:
        raise HypothesisInvalidError(
            f"{name}: there was no event in {seconds(run_s)}" + (f"; {doubt}" if doubt else "")
        )
    if slo.window_s <= run_s:
        burnt, until_ns = looks.worst(slo.window_s, slo.bad_share)
        of = f"of the error budget of {slo.window} ({when(until_ns)})"
    elif budget is None:
        raise HypothesisInvalidError(_too_long(slo.window, run_s))
    else:
        counted_s = run_s * float(looks.known.mean())
        burnt, of = bad / events / slo.bad_share * counted_s / slo.window_s, f"of the error budget of {slo.window}"
    allowed = 1.0 if budget is None else float(budget)
    figures = {
        "events": events,
        "bad_events": bad,
        "bad_share": bad / events,
        "budget_burnt_share": burnt,
        "budget_allowed_share": allowed,
    }
    text = (
        f"{name}: {bad:g} of {events:g} events in {seconds(run_s)} were bad (objective: {_percent(1 - slo.bad_share)}"
        f" good), which burnt {_percent(burnt)} {of}; allowed: {_percent(allowed)}"
    )
    require(burnt <= allowed, text, **figures)
    if doubt:
        raise HypothesisInvalidError(doubt)
    return Held(text, **figures)


@dataclass(frozen=True)
class _Looks:
    """Events and bad events since the previous look; 0 at a look where they are unknown."""

    t_ns: Int64s
    events: Any
    bad: Any
    known: Bools
    every_s: float

    def worst(self, window_s: float, bad_share: float) -> tuple[float, int]:
        """The largest share of its budget that one window inside the run burnt, and when (ns) that window ended.

        A window in which some events were not counted is left out: they may all have been good.
        """
        found = (0.0, int(self.t_ns[-1]))
        began_ns, window_ns = int(self.t_ns[0]) - int(self.every_s * SECOND), int(window_s * SECOND)
        starts = np.searchsorted(self.t_ns, self.t_ns - window_ns, side="right")
        for end, start in enumerate(starts.tolist()):
            inside = slice(start, end + 1)
            events = float(self.events[inside].sum())
            if self.t_ns[end] - window_ns >= began_ns and self.known[inside].all() and events > 0:
                found = max(found, (float(self.bad[inside].sum()) / events / bad_share, int(self.t_ns[end])))
        return found


def _doubt(looks: _Looks, text: Sequence[str], span: tuple[int, int], silent_s: float) -> str:
    """Why not all events were counted; "" if they were."""
    failed = np.flatnonzero(~looks.known)
    if len(failed):
        at = int(failed[0])
        where = when(int(looks.t_ns[at]))
        return f"{len(failed)} of {len(looks.known)} looks did not count events: {text[at] or 'failed'} ({where})"
    for before_ns, after_ns in pairwise([span[0], *looks.t_ns.tolist(), span[1]]):
        if after_ns - before_ns > silent_s * SECOND:
            return f"events were not counted for {seconds((after_ns - before_ns) / SECOND)} ({when(before_ns)})"
    return ""


def _percent(share: float) -> str:
    return f"{share * 100:.4g}%"
