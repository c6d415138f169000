"""Differences since an experiment last passed: versions, configuration, figures, broken expectations."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hashidrill.core.judging.verdict import Verdict
from hashidrill.core.util.nested import differing, in_words
from hashidrill.gamedays.history.noise import FEWEST, is_outside, ratio
from hashidrill.gamedays.history.store import Number, Run

NOTHING = "nothing"


@dataclass(frozen=True)
class Change:
    """One difference. `where`: a path into a document, a version's name, or hosts."""

    what: str
    """versions, hashidrill, machine, experiment, agents."""
    where: str
    before: str
    now: str

    def __str__(self) -> str:
        return f"{self.what}: {self.where}: {self.before} -> {self.now}"


@dataclass(frozen=True)
class Moved:
    """A figure of the run compared with runs that passed. `outside` is None if these runs are too few."""

    name: str
    unit: str
    before: float
    """The value in the run that passed."""
    now: float
    ratio: float
    """Relative to the median of the runs that passed."""
    outside: bool | None


@dataclass(frozen=True)
class Changed:
    """A run, and the last earlier run that passed, if any."""

    now: Run
    before: Run | None
    changes: list[Change] = field(default_factory=list)
    figures: list[Moved] = field(default_factory=list)
    noise_of: int = 0
    """The number of runs from which the figures' noise is known."""
    alike: bool = True
    """Whether these runs had the same conditions as the passing one, as far as known."""
    between: int = 0
    """The number of counting runs between these two."""

    @property
    def broken(self) -> list[str]:
        return self.now.broken

    @property
    def outside(self) -> list[Moved]:
        return [each for each in self.figures if each.outside]


def changed(runs: Sequence[Run], now: Run | None = None) -> Changed | None:
    """Compares `now`, or the series' last run that counted, with the last pass before it. None without such a run.

    `runs`: the runs of the series, oldest first.
    """
    counting = [run for run in runs if run.counts]
    if now is None:
        if not counting:
            return None
        now = counting[-1]
    earlier = [run for run in counting if run.id != now.id and run.ended_s <= now.ended_s]
    passed = [run for run in earlier if run.verdict is Verdict.PASS]
    if not passed:
        return Changed(now, None)
    before = passed[-1]
    same = [run for run in passed if run.conditions == before.conditions]
    usual = same if len(same) >= FEWEST else passed
    return Changed(
        now,
        before,
        list(_changes(before, now)),
        list(_moved(usual, before, now)),
        len(usual),
        usual is same,
        len(earlier) - 1 - earlier.index(before),
    )


def _changes(before: Run, now: Run) -> Iterator[Change]:
    if before.hashidrill != now.hashidrill:
        yield Change("hashidrill", "version", before.hashidrill or NOTHING, now.hashidrill or NOTHING)
    for what, one, other in (
        ("versions", before.versions, now.versions),
        ("machine", before.machine, now.machine),
        ("experiment", before.experiment, now.experiment),
    ):
        for where, old, new in differing(one, other):
            yield Change(what, where, in_words(old), in_words(new))
    yield from _of_agents(before.config, now.config)


def _of_agents(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Change]:
    found: dict[tuple[str, str, str], list[str]] = {}
    for host in dict.fromkeys([*before, *now]):
        if host not in before or host not in now:
            yield Change("agents", host, "there" if host in before else NOTHING, "there" if host in now else NOTHING)
            continue
        for where, old, new in differing(before[host], now[host]):
            found.setdefault((where, in_words(old), in_words(new)), []).append(host)
    for (where, old, new), hosts in found.items():
        yield Change("agents", f"{where} of {', '.join(hosts)}", old, new)


def _moved(passed: Sequence[Run], before: Run, now: Run) -> Iterator[Moved]:
    names = [name for name, number in now.figures.items() if number.measured]
    for name in names:
        number = now.figures[name]
        earlier = [run.figures[name] for run in passed if name in run.figures and run.figures[name].measured]
        old = before.figures.get(name, Number(name, number.unit, float("nan")))
        yield Moved(
            name,
            number.unit,
            old.value,
            number.value,
            ratio(earlier, number),
            is_outside(earlier, number, figures=len(names)),
        )
