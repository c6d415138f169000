"""The failure modes that runs drilled with proof, the modes that are due, and the experiment to run for each."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hashidrill.core.errors import HashidrillError
from hashidrill.core.experiment.loader import resolve
from hashidrill.core.experiment.model import Step, services_of
from hashidrill.core.judging.verdict import Verdict
from hashidrill.gamedays.history.store import Drilled, Run

_DAY_S = 86_400.0


@dataclass(frozen=True)
class Row:
    """One failure mode. `experiment` is the shortest experiment that has it; "" if no experiment has it any more."""

    mode: Drilled
    experiment: str
    last: Run | None
    """The last run that counted and in which an observer saw the fault in force until its revert."""
    aged: bool
    """Whether the last such run is older than the user allows."""
    tried: Run | None = None
    """A later run in which the fault was proven, and which was INVALID for another reason."""
    weight: int = 0
    """The number of experiments with this failure mode."""

    @property
    def drilled(self) -> bool:
        return self.last is not None and not self.aged

    def age_days(self, now_s: float) -> float | None:
        return None if self.last is None else (now_s - self.last.ended_s) / _DAY_S


@dataclass(frozen=True)
class Coverage:
    """All failure modes, the most urgent to drill first.

    Modes that were never drilled come first (most experiments first), then modes with an expired proof, then modes
    that broke an expectation, then all others, the oldest proof first.
    """

    rows: tuple[Row, ...]
    unread: tuple[str, ...]
    """Experiments with an error, whose failure modes are unknown."""

    @property
    def drilled(self) -> int:
        return sum(row.drilled for row in self.rows)

    @property
    def failing(self) -> int:
        return sum(row.drilled and row.last is not None and row.last.verdict is Verdict.FAIL for row in self.rows)

    def text(self, within_days: float) -> str:
        """In one sentence."""
        broke = f"; {self.failing} broke an expectation" if self.failing else ""
        of = f"{self.drilled} of {len(self.rows)} failure modes"
        return f"{of} were drilled with proof in the last {within_days:g} days{broke}"


def coverage(
    experiments: Mapping[str, Path],
    runs: Iterable[Run],
    now_s: float,
    within_days: float,
    products: Collection[str] | None = None,
) -> Coverage:
    """Computes the coverage of the failure modes of these experiments and runs. `products`: only experiments that need
    no other products.

    A run counts if nothing in it is INVALID: what an observer did not see was not drilled.
    """
    known, unread = _modes(experiments, products)
    last: dict[Drilled, Run] = {}
    tried: dict[Drilled, Run] = {}
    for run in sorted(runs, key=lambda each: each.ended_s):
        for mode in run.drilled:
            if run.counts and not run.invalid:
                last[mode] = run
                tried.pop(mode, None)
            else:
                tried[mode] = run
    oldest_s = now_s - within_days * _DAY_S
    # a failure mode that no experiment has any more counts until its proof expires
    others = {
        mode for mode, run in last.items() if run.ended_s >= oldest_s and (products is None or mode.product in products)
    }
    rows = []
    for mode in {*known} | others:
        names = known.get(mode, [])
        aged = mode in last and last[mode].ended_s < oldest_s
        rows.append(Row(mode, names[0] if names else "", last.get(mode), aged, tried.get(mode), len(names)))
    return Coverage(tuple(sorted(rows, key=_urgency)), unread)


def _modes(
    experiments: Mapping[str, Path], products: Collection[str] | None
) -> tuple[dict[Drilled, list[str]], tuple[str, ...]]:
    """The experiments of each failure mode, fewest steps first; and the experiments that cannot be read."""
    found: dict[Drilled, list[tuple[int, str]]] = {}
    unread = []
    for name, path in experiments.items():
        try:
            experiment = resolve(path).experiment
        except HashidrillError:
            unread.append(name)
            continue
        if products is not None and not {each.name for each in services_of(experiment.datacenter)} <= {*products}:
            continue
        steps = [step for step in experiment.method if isinstance(step, Step)]
        for mode in {Drilled(step.fault, step.on) for step in steps}:
            found.setdefault(mode, []).append((len(steps), name))
    return {mode: [name for _, name in sorted(names)] for mode, names in found.items()}, tuple(unread)


def _urgency(row: Row) -> tuple[Any, ...]:
    ended_s = row.last.ended_s if row.last is not None else 0.0
    broke = row.last is not None and row.last.verdict is Verdict.FAIL
    return row.drilled, row.drilled and not broke, ended_s, -row.weight, row.mode


def badge(found: Coverage) -> dict[str, Any]:
    """The figures in the format of a shields.io endpoint badge."""
    share = found.drilled / len(found.rows) if found.rows else 0.0
    colour = "red" if found.failing else "brightgreen" if share >= 0.8 else "yellow" if share >= 0.4 else "orange"
    failing = f", {found.failing} broken" if found.failing else ""
    message = f"{found.drilled} of {len(found.rows)} failure modes{failing}"
    return {"schemaVersion": 1, "label": "drilled", "message": message, "color": colour}
