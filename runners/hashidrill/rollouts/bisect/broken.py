"""Decides whether a run is broken: by a broken expectation, or a figure that is a factor worse than the good end's."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import numpy as np

from hashidrill.core.compare.comparison import ABSENT_APART, difference, log_ratio
from hashidrill.core.compare.figures import beside, figure
from hashidrill.core.compare.measured import IN_DOUBT_AT_MOST, Figure, Measured, sick_without_fault
from hashidrill.core.errors import UsageError
from hashidrill.core.experiment.model import Experiment
from hashidrill.core.judging import measure
from hashidrill.core.judging.doubts import Doubt
from hashidrill.core.judging.judge import judge
from hashidrill.core.judging.validity import Validity
from hashidrill.core.judging.verdict import Finding, Judgement
from hashidrill.core.protocols.registry import near
from hashidrill.core.recording.reader import Recording
from hashidrill.rollouts.bisect.trials import Outcome, Trial

REFERENCES = 3
"""Number of runs of the good end whose median figure is the reference for other runs."""
_SAID_CHARACTERS = 200
_GUARDRAIL = "guardrail"
"""The outcome of a run whose method a guardrail ended."""
_MOST_LOG = 700.0
"""exp() of more than this overflows a float."""


class Rule(Protocol):
    """Judges the recording of a run."""

    def trial(self, recording: Recording, near_to: Path) -> Trial: ...


@dataclass(frozen=True)
class Expectations:
    """A run is broken if an expectation is broken: one of the named hypothesis, or any if no hypothesis is named.

    If none is named, a run that was sick before any fault is broken too: its steady state never held, or it never got
    ready. A known issue counts as broken only if its hypothesis is named, because it is then the subject of the search.
    """

    name: str | None = None

    @classmethod
    def of(cls, name: str | None, experiment: Experiment) -> Expectations:
        """Raises UsageError for a hypothesis that the experiment does not expect."""
        known = {expectation.hypothesis for expectation in experiment.expect}
        if name is not None and name not in known:
            raise UsageError(f"--expect {name}: {experiment.metadata.name} does not expect that: {near(name, known)}")
        return cls(name)

    def trial(self, recording: Recording, near_to: Path) -> Trial:
        """Judges the recording with the hypotheses near the experiment's file."""
        verdict = judge(recording, near_to=near_to)
        judged = [each for each in verdict.judgements if self.name in {None, each.hypothesis}]
        where = str(recording.path)
        bad = {Finding.BROKEN} if self.name is None else {Finding.BROKEN, Finding.KNOWN}
        broken = [each for each in judged if each.finding in bad]
        if broken:
            return Trial(Outcome.BROKEN, _said(broken[0]), where)
        unknown = [each for each in judged if each.finding is Finding.INVALID]
        if self.name is None and sick_without_fault(recording):
            return Trial(Outcome.BROKEN, verdict.invalid[0][:_SAID_CHARACTERS], where)
        if verdict.invalid or unknown or not judged:
            why = verdict.invalid[0] if verdict.invalid else _said(unknown[0]) if unknown else "nothing was judged"
            return Trial(Outcome.INVALID, why[:_SAID_CHARACTERS], where)
        if recording.outcome == _GUARDRAIL:
            why = f"{self.name or 'every expectation'} held until a guardrail ended the method"
            return Trial(Outcome.INVALID, why, where)
        known = sum(each.finding is Finding.KNOWN for each in judged)
        text = f"{len(judged) - known} of {len(judged)} expectations held"
        return Trial(Outcome.HELD, text + (f", and {known} broke as known" if known else ""), where)


def _said(judgement: Judgement) -> str:
    first = judgement.text.strip().splitlines()
    return f"{judgement.title}: {first[0] if first else judgement.finding}"[:_SAID_CHARACTERS]


def _check_factor(factor: float) -> None:
    if not 1 < factor < math.inf:
        raise UsageError(f"--factor {factor:g}: worse is more than 1 times as much, like --factor 1.5")


def _measured(recording: Recording, *figures: Figure, though_busy: bool = False) -> tuple[str, list[Measured]]:
    """Why the run has no value for one of these figures, or ""; and, for a valid run, the figures."""
    if invalid := Validity.of(recording).invalid:
        return invalid[0][:_SAID_CHARACTERS], []
    measured = [each.of(recording, though_busy=though_busy) for each in figures]
    lacking = [f"{on.name}: {one.why}" for on, one in zip(figures, measured, strict=True) if math.isnan(one.number)]
    return "".join(lacking[:1])[:_SAID_CHARACTERS], measured


@dataclass(frozen=True)
class Worse:
    """A run is broken if its figure is worse than the reference by more than `factor`."""

    figure: Figure
    factor: float

    @classmethod
    def of(cls, name: str, factor: float, experiment: Experiment) -> Worse:
        """Raises UsageError for a figure that the experiment does not have, and for an invalid factor."""
        _check_factor(factor)
        return cls(figure(name, experiment), factor)

    def trial(self, recording: Recording, near_to: Path) -> Trial:  # noqa: ARG002 - as the protocol has it
        """Measures the figure; `Limit` compares it later."""
        where = str(recording.path)
        why, found = _measured(recording, self.figure)
        if why:
            return Trial(Outcome.INVALID, why, where)
        [measured] = found
        text, cut = f"{self.figure.name} {self.figure.shown(measured.number)}", recording.outcome == _GUARDRAIL
        return Trial(Outcome.MEASURED, text, where, measured.number, absent=measured.absent, cut=cut)

    def limit(self, references: Sequence[Trial]) -> Limit:
        """The limit whose reference is the median of these runs."""
        values = [trial.value for trial in references if trial.value is not None]
        return Limit(self, statistics.median(values), statistics.median([trial.absent for trial in references]))


@dataclass(frozen=True)
class Limit:
    """The reference value of a figure. The size below which a difference means nothing is added to both sides."""

    rule: Worse
    reference: float
    absent: float = 0.0
    """`Trial.absent` of the good end."""

    def compared(self, trial: Trial) -> Trial:
        """The trial as broken or held; INVALID if one side may only look better because agents were down."""
        if trial.outcome is not Outcome.MEASURED or trial.value is None:
            return trial
        figure = self.rule.figure
        log = float(log_ratio(figure, np.array([self.reference]), np.array([trial.value]))[0])
        worse = math.exp(min(log if figure.lower_is_better else -log, _MOST_LOG))
        much, _ = difference(figure, self.reference, trial.value, worse)
        text = f"{trial.text}, of the good end {figure.shown(self.reference)}" + (f": {much}" if much else "")
        broken = worse > self.rule.factor
        if trial.cut and not broken:
            return replace(trial, outcome=Outcome.INVALID, text=f"a guardrail ended the method; until then, {text}")
        gone = trial.absent - self.absent
        if abs(gone) > ABSENT_APART and (gone < 0) is broken:
            whose = "the good end's" if broken else "its"
            text = f"{text}; it lacks what {whose} agents would have used while they were down"
            return replace(trial, outcome=Outcome.INVALID, text=text)
        return replace(trial, outcome=Outcome.BROKEN if broken else Outcome.HELD, text=text)


SUFFIX = "-of-the-good-end"
"""The client that runs the good end has the name of the candidate's client with this suffix."""
PARTS = 6
"""A run is clear if its result stays the same without any one of `PARTS` parts of its method, ..."""
CLEARLY = 1.15
"""... and if its ratio is above or below the factor by more than this factor."""
assert 1 / PARTS < IN_DOUBT_AT_MOST  # if more is left out, a figure counts as not measured


@dataclass(frozen=True)
class PairedFigure:
    """A run is broken if its figure is more than `factor` times the good end's figure in the same run."""

    figure: Figure
    of_good: Figure
    factor: float

    @classmethod
    def of(cls, name: str, factor: float, experiment: Experiment) -> PairedFigure:
        """Raises UsageError for a figure that is not a latency of a client, and for an invalid factor."""
        _check_factor(factor)
        ours, client = figure(name, experiment), name.partition(".")[0]
        theirs = beside(name, experiment, client + SUFFIX) if client in experiment.clients else None
        if theirs is None:
            raise UsageError(f"--duet compares a client's latency with the good end's, but {name} is not a latency")
        return cls(ours, theirs, factor)

    def trial(self, recording: Recording, near_to: Path) -> Trial:  # noqa: ARG002 - as the protocol has it
        """Measures and compares. A busy machine does not invalidate the run, because both clients wait alike."""
        where = str(recording.path)
        if why := _measured(recording, self.figure, self.of_good, though_busy=True)[0]:
            return Trial(Outcome.INVALID, why, where)
        log, number, of_good = self._ratio(recording)
        limit, broken = math.log(self.factor), log > math.log(self.factor)
        parts = [self._ratio(recording, part)[0] for part in _parts(recording)]
        clear = all((part > limit) is broken and abs(part - limit) > math.log(CLEARLY) for part in [log, *parts])
        much, _ = difference(self.figure, of_good, number, math.exp(log))
        text = (
            f"{self.figure.name} {self.figure.shown(number)}, of the good end at the same time"
            f" {self.figure.shown(of_good)}" + (f": {much}" if much else "") + ("" if clear else ", not clearly")
        )
        return Trial(Outcome.BROKEN if broken else Outcome.HELD, text, where, math.exp(log), clear)

    def _ratio(self, recording: Recording, without: Doubt | None = None) -> tuple[float, float, float]:
        """The log of the ratio, and both numbers; if one is missing, the log is NaN, for which no comparison holds."""
        left_out = [] if without is None else [without]
        ours, theirs = (each.of(recording, though_busy=True, without=left_out) for each in (self.figure, self.of_good))
        one, other = np.array([theirs.number]), np.array([ours.number])
        log = log_ratio(self.figure, one, other, max(ours.at_most, theirs.at_most))
        return float(log[0]), ours.number, theirs.number


def _parts(recording: Recording) -> Iterator[Doubt]:
    start_ns, end_ns = measure.method(recording)
    edges = np.linspace(start_ns, end_ns, PARTS + 1).astype(int)
    for low, high in pairwise(edges):
        yield Doubt("left out, to see whether the rest has the same result", int(low), int(high))
