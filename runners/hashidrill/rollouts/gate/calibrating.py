"""What difference this machine can show: each experiment against itself, kept for later gates."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hashidrill.core.errors import RevertError
from hashidrill.core.experiment.loader import resolve
from hashidrill.core.experiment.variants import varied
from hashidrill.core.protocols.events import Bus
from hashidrill.lab.runs.rounds import AT_MOST, Series, Side, play
from hashidrill.rollouts.gate.calibration import FEWEST_ROUNDS, Calibration, calibrated, keep
from hashidrill.rollouts.gate.counting import counting
from hashidrill.rollouts.gate.overlay import overlay
from hashidrill.rollouts.gate.suite import Member

ROUNDS = 6
"""Enough for a comparison, which trusts no more than hashidrill.core.compare.statistics.MOST_TRUSTED of them."""


@dataclass(frozen=True)
class Calibrated:
    """One experiment: its noise, None where too few rounds count, and how it ended."""

    member: Member
    calibration: Calibration | None
    why: str
    interrupted: bool = False


def calibrate(
    members: Sequence[Member],
    *,
    runs_dir: Path,
    budget_s: float,
    rounds: int = ROUNDS,
    version: tuple[str, str] | None = None,
    events: Bus | None = None,
    play: Callable[..., Series] = play,
    folder: Path | None = None,
    now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
) -> Iterator[Calibrated]:
    """One after the other; each gets its share of the time. `version`: (product, its version) for both sides.

    Raises RevertError for a run that leaves a fault in force.
    """
    began = now()
    for index, member in enumerate(members):
        resolved = resolve(member.path)
        over = {} if version is None else overlay(version[0], {}, {}, {}, version=version[1])
        sides = [Side(name, varied(resolved, over, name=name)) for name in ("one", "other")]
        left_s = budget_s - (now() - began).total_seconds()
        share = member.run_s / sum(each.run_s for each in members[index:])
        series = play(
            sides[0], sides[1], runs_dir=runs_dir, at_most=rounds, budget_s=max(left_s * share, 0.0), events=events
        )
        if series.stuck is not None:
            raise RevertError(f"a fault could not be reverted: `hashidrill heal {series.stuck}`")
        experiment = sides[0].resolved.experiment
        found = None
        if len(series.rounds) >= FEWEST_ROUNDS:
            found = calibrated(experiment, series.rounds, counting(series.figures, experiment), now=now())
            keep(experiment, found, folder)
        yield Calibrated(member, found, series.why(), series.stopped == "interrupted")
        if series.stopped == "interrupted":
            return


def calibration_lines(found: Calibrated, *, rounds: int = AT_MOST) -> Iterator[str]:
    """The smallest difference of each figure that `rounds` rounds usually show, as a share: `+12 %`."""
    yield f"{found.member.name}: {found.why}"
    if found.calibration is None:
        yield f"  too few rounds: {FEWEST_ROUNDS} are needed; give it more time with --time-budget"
        return
    for name, smallest in found.calibration.smallest(rounds).items():
        noise = found.calibration.priors[name]
        yield f"  {name}: shows a difference of {smallest - 1:.0%} in {rounds} rounds (noise {noise.sd:.1%} a round)"
