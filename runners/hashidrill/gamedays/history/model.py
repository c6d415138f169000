"""The history's data of runs and game days."""

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hashidrill.core.judging.verdict import Finding, Verdict
from hashidrill.core.util.folders import state_folder

NEVER = "never"
OURS = "local"
"""The datacenter of a run that was not attached to an existing one."""


@dataclass(frozen=True)
class Series:
    """An experiment's repeated runs, which can be compared with each other."""

    experiment: str
    variant: str = ""
    datacenter: str = OURS
    project: str = ""
    """The folder of the project that ran it (hashidrill.core.util.folders.project)."""

    def __str__(self) -> str:
        variant = f" ({self.variant})" if self.variant else ""
        where = f" at {self.datacenter}" if self.datacenter != OURS else ""
        return f"{self.experiment}{variant}{where}"


@dataclass(frozen=True)
class Number:
    """One figure of one run: NaN if it was not measured, infinity for an event that never came.

    `floor` is the size below which a difference means nothing, in the figure's unit; 0 if unknown.
    """

    name: str
    unit: str
    value: float
    floor: float = 0.0

    @property
    def measured(self) -> bool:
        return not math.isnan(self.value)


@dataclass(frozen=True)
class Expected:
    """One expectation of a run, with its verdict."""

    title: str
    finding: str
    text: str


@dataclass(frozen=True, order=True)
class Drilled:
    """A failure mode: a kind of fault and the target that its step names, such as `consul:leader`."""

    kind: str
    on: str

    def __str__(self) -> str:
        return f"{self.kind} on {self.on}"

    @property
    def product(self) -> str:
        """The product; `host` or `client` if the target names one of these."""
        return self.on.partition(":")[0]


@dataclass(frozen=True)
class Run:
    """One run."""

    id: str
    series: Series
    began_s: float
    """Seconds since 1970, like all times here."""
    ended_s: float
    verdict: Verdict
    outcome: str
    path: str
    hashidrill: str = ""
    title: str = ""
    invalid: Sequence[str] = ()
    expectations: Sequence[Expected] = ()
    drilled: Sequence[Drilled] = ()
    """The failure modes that an observer saw in force until their revert."""
    figures: Mapping[str, Number] = field(default_factory=dict)
    versions: Mapping[str, Any] = field(default_factory=dict)
    """The versions of products, tools, Python and the kernel."""
    experiment: Mapping[str, Any] = field(default_factory=dict)
    """The experiment as in its file, without the parts that are only for readers."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The configuration of each agent, by host, as the run started it."""
    machine: Mapping[str, Any] = field(default_factory=dict)
    conditions: str = ""
    """A digest of versions, experiment, configuration and machine: runs with equal digests have no known difference."""
    day: str = ""
    """The game day that it belongs to, if any."""

    @property
    def broken(self) -> list[str]:
        """The broken expectations' titles, and why."""
        found = [each for each in self.expectations if each.finding in {Finding.BROKEN, Finding.FIXED}]
        return [f"{each.title}: {each.text}" for each in found]

    @property
    def word(self) -> str:
        return ended_as(self.verdict, self.outcome)

    @property
    def counts(self) -> bool:
        """Whether the run says anything about the tested product; an INVALID one does not."""
        return self.verdict is not Verdict.INVALID


@dataclass(frozen=True)
class Day:
    """One game day."""

    id: str
    gameday: str
    title: str
    began_s: float
    ended_s: float
    verdict: Verdict
    outcome: str
    path: str
    project: str = ""

    @property
    def word(self) -> str:
        return ended_as(self.verdict, self.outcome)


@dataclass(frozen=True)
class Turn:
    """A verdict that turned from PASS to FAIL: the run or day, and the last earlier one that counted."""

    name: str
    now: Run | Day
    before: Run | Day

    @property
    def experiment(self) -> str:
        """The experiment or game day."""
        return self.now.series.experiment if isinstance(self.now, Run) else self.now.gameday


@dataclass(frozen=True)
class Stored:
    """The result of storing a run or day."""

    id: str
    new: bool
    """Whether the run is new in the history."""
    turn: Turn | None = None


CUT_SHORT = {"interrupted", "crashed", "unfinished"}
"""The outcomes of runs that prove nothing because they did not finish."""


def ended_as(verdict: Verdict, outcome: str) -> str:
    """The verdict in one word: `PASS`, `FAIL`, `INVALID`; or its outcome in `CUT_SHORT`."""
    return outcome if verdict is Verdict.INVALID and outcome in CUT_SHORT else verdict.value


def digest(value: Any) -> str:
    """A digest of plain data: equal data have equal digests."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:24]


def plain(value: float) -> float | str | None:
    """A figure as JSON has it: `never` for infinity, null for NaN."""
    return None if math.isnan(value) else NEVER if math.isinf(value) else value


def from_plain(value: float | str | None) -> float:
    return math.nan if value is None else math.inf if value == NEVER else float(value)


VARIABLE = "HASHIDRILL_HISTORY"
"""The environment variable that names another file."""
DEFAULT = ".local/state/hashidrill/history.sqlite"
"""The default place, below the user's home."""


def history_file() -> Path:
    """`$HASHIDRILL_HISTORY`, or `$XDG_STATE_HOME/hashidrill/history.sqlite`, by default below ~/.local/state."""
    if said := os.environ.get(VARIABLE):
        return Path(said)
    return state_folder() / "history.sqlite"
