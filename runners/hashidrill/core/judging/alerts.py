"""One alert as an `alerts` probe saw it: when it fired, when it was quiet, and when its state is unknown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hashidrill.core.errors import HypothesisInvalidError
from hashidrill.core.experiment.model import Experiment
from hashidrill.core.hypothesis.marked import Look
from hashidrill.core.judging.measure import SECOND, seconds, when
from hashidrill.core.probes.alerts import FIRING, AlertsProbe, named_in
from hashidrill.core.protocols.registry import near
from hashidrill.core.recording.reader import Bools, Int64s, Recording


@dataclass(frozen=True)
class AlertLooks:
    """The looks at one alert. A look that is neither `firing` nor `quiet` failed, and `text` has the reason."""

    alert: str
    signal: str
    t_ns: Int64s
    firing: Bools
    pending: Bools
    quiet: Bools
    text: list[str]
    limit_s: float
    """How many seconds may pass between two looks."""
    look_s: float
    """How long a look may take; it is recorded at its end."""

    def between(self, start_ns: int, end_ns: int) -> AlertLooks:
        """The looks in [start_ns, end_ns)."""
        at = np.flatnonzero((self.t_ns >= start_ns) & (self.t_ns < end_ns))
        columns = (self.t_ns[at], self.firing[at], self.pending[at], self.quiet[at], [self.text[i] for i in at])
        return AlertLooks(self.alert, self.signal, *columns, self.limit_s, self.look_s)

    def first_firing(self) -> tuple[int, int] | None:
        """When the alert was last seen quiet before it fired (or the first look), and when it was first seen firing,
        in ns. None if it never fired.
        """
        at = np.flatnonzero(self.firing)
        if not len(at):
            return None
        quiet = self.t_ns[: at[0]][self.quiet[: at[0]]]
        return int(quiet[-1]) if len(quiet) else int(self.t_ns[0]), int(self.t_ns[at[0]])

    def complete(self, start_ns: int, end_ns: int) -> None:
        """Raises HypothesisInvalidError if the looks do not cover that span, or one failed."""
        looks = self.between(start_ns, end_ns)
        failed = np.flatnonzero(~looks.firing & ~looks.quiet)
        if len(failed):
            raise HypothesisInvalidError(
                f"{len(failed)} of {len(looks.t_ns)} looks at {self.alert} failed, so whether it fired is unknown:"
                f" {looks.text[failed[0]]} ({when(int(looks.t_ns[failed[0]]))})"
            )
        for before_ns, after_ns in pairwise([start_ns, *looks.t_ns.tolist(), end_ns]):
            if after_ns - before_ns > self.limit_s * SECOND:
                raise HypothesisInvalidError(
                    f"there was no look at {self.alert} for {seconds((after_ns - before_ns) / SECOND)}"
                    f" ({when(before_ns)}), over {seconds(self.limit_s)}: whether it fired is unknown"
                )

    def witness(self, t_ns: int) -> Look:
        """One look of the signal, which is enough to prove that the alert fired or was silent at `t_ns`."""
        return self.signal, None, t_ns - int(self.look_s * SECOND), t_ns + SECOND


def alerts_of(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """Each alert that an experiment watches, as (probe, alert)."""
    for name, spec in experiment.probes.items():
        if spec.kind == AlertsProbe.kind:
            for alert in spec.parameters.alerts:
                yield name, alert


def watching(experiment: Experiment, alert: str, probe: str | None) -> str:
    """The probe that watches this alert. Raises ValueError if there is none, or more than one."""
    known = list(alerts_of(experiment))
    found = [name for name, watched in known if watched == alert and probe in (None, name)]
    if not found:
        of = f"the probe {probe}" if probe else "a probe of the kind alerts"
        raise ValueError(f"{of} does not watch the alert {alert!r}: {near(alert, {watched for _, watched in known})}")
    if len(found) > 1:
        raise ValueError(f"{' and '.join(found)} watch {alert}; name one of them with `probe`")
    return found[0]


def alert_looks(recording: Recording, alert: str, probe: str | None = None) -> AlertLooks:
    """Raises HypothesisInvalidError if the recording has no looks at this alert."""
    try:
        name = watching(recording.experiment, alert, probe)
    except ValueError as error:
        raise HypothesisInvalidError(str(error)) from None
    spec, signal = recording.experiment.probes[name], f"{name}.{FIRING}"
    series = recording.series(signal, "", unknown="it is judged here: INVALID where it counts")
    known = ~np.isnan(series.value)
    firing, pending = (
        np.array([ok and alert in named_in(text, state) for ok, text in zip(known, series.text, strict=True)], np.bool_)
        for state in ("firing", "pending")
    )
    columns = (series.t_ns, firing, pending, known & ~firing, series.text)
    return AlertLooks(alert, signal, *columns, spec.silent_s, max(1.0, float(spec.timeout)))
