"""Broken by a figure that is worse than that of the good end, which runs beside each candidate in the same run.

What disturbs the machine disturbs both, so their ratio says more than two runs one after the other (the duet method:
Bulej et al., ICPE 2020). It needs no runs of its own to learn what the good end does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from hashidrill.core.compare.figures import beside, figure
from hashidrill.core.compare.measured import IN_DOUBT_AT_MOST, Figure
from hashidrill.core.errors import UsageError
from hashidrill.core.judging import measure
from hashidrill.core.judging.doubts import Doubt
from hashidrill.core.judging.validity import Validity
from hashidrill.rollouts.bisect.trials import Outcome, Trial

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hashidrill.core.experiment.model import Experiment
    from hashidrill.core.recording.reader import Recording

SUFFIX = "-of-the-good-end"
"""What the client that runs the good end is called, after the name of the candidate's."""
PARTS = 6
"""A run is clear when it says the same without any one of `PARTS` parts of its method."""
CLEARLY = 1.15
"""And when it is this many times over, or under, the factor."""
_SAID_CHARACTERS = 200
assert 1 / PARTS < IN_DOUBT_AT_MOST  # with more left out, a figure was not measured


@dataclass(frozen=True)
class Beside:
    """Broken is a run whose figure is more than `factor` times that of the good end in the same run."""

    figure: Figure
    of_good: Figure
    factor: float

    @classmethod
    def of(cls, name: str, factor: float, experiment: Experiment) -> Beside:
        """Raises UsageError for a figure that is no latency of a client, and a factor that nothing is worse than."""
        if not 1 < factor < math.inf:
            raise UsageError(f"--factor {factor:g}: worse is more than 1 times as much, like --factor 1.5")
        ours, client = figure(name, experiment), name.partition(".")[0]
        theirs = beside(name, experiment, client + SUFFIX) if client in experiment.clients else None
        if theirs is None:
            raise UsageError(f"--duet compares a latency of a client with that of the good end, and {name} is none")
        return cls(ours, theirs, factor)

    def trial(self, recording: Recording, near_to: Path) -> Trial:  # noqa: ARG002 - as the protocol has it
        """Measured and compared. A busy machine is no doubt here: it keeps both of them waiting."""
        where = str(recording.path)
        invalid = next(iter(Validity.of(recording).invalid), None)
        if invalid is not None:
            return Trial(Outcome.INVALID, invalid[:_SAID_CHARACTERS], where)
        for each in (self.figure, self.of_good):
            measured = each.of(recording, though_busy=True)
            if math.isnan(measured.number):
                return Trial(Outcome.INVALID, f"{each.name}: {measured.why}"[:_SAID_CHARACTERS], where)
        log, number, of_good = self._ratio(recording)
        limit, broken = math.log(self.factor), log > math.log(self.factor)
        parts = [self._ratio(recording, part)[0] for part in _parts(recording)]
        clear = all((part > limit) is broken and abs(part - limit) > math.log(CLEARLY) for part in [log, *parts])
        text = (
            f"{self.figure.name} {self.figure.shown(number)}, of the good end at the same time "
            f"{self.figure.shown(of_good)}: {math.exp(log):.2f} times" + ("" if clear else ", not clearly")
        )
        return Trial(Outcome.BROKEN if broken else Outcome.HELD, text, where, math.exp(log), clear)

    def _ratio(self, recording: Recording, without: Doubt | None = None) -> tuple[float, float, float]:
        """The log of the ratio, and both numbers; NaN, which is on no side of a limit, where one was not measured."""
        left_out = [] if without is None else [without]
        ours, theirs = (each.of(recording, though_busy=True, without=left_out) for each in (self.figure, self.of_good))
        # what never came took at least as long as the run could have measured
        one, other = (min(each.number, each.at_most) for each in (ours, theirs))
        logs = self.figure.log(np.array([one, other]))
        return float(logs[0] - logs[1]), ours.number, theirs.number


def _parts(recording: Recording) -> Iterator[Doubt]:
    start_ns, end_ns = measure.method(recording)
    edges = np.linspace(start_ns, end_ns, PARTS + 1).astype(int)
    for low, high in pairwise(edges):
        yield Doubt("left out, to see whether the rest says the same", int(low), int(high))
