"""Runs of candidates: what those of each one said, repeats of those that said nothing, and a bound on all of them."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

AT_MOST = 60
"""Runs of a search at most, those that say nothing included."""
INVALID_IN_A_ROW = 5
"""Once this many runs of one candidate in a row say nothing, it counts as one that cannot be resolved."""


class Outcome(StrEnum):
    """What came of a run, or of the attempt to make one."""

    HELD = "held"
    BROKEN = "broken"
    INVALID = "invalid"
    """The run says nothing. It is made again, and counts as neither."""
    MEASURED = "measured"
    """A figure was measured that nothing was compared with yet. No search sees this."""
    REFUSED = "refused"
    """The candidate cannot be run at all: the agent refuses its configuration, or it cannot be built."""


@dataclass(frozen=True)
class Trial:
    """One run: what came of it, why, in which recording, and the figure, where one is measured.

    A clear one is wrong less often: it was compared with the good end in the same run, and no part of the run decides
    what came of it (`hashidrill.rollouts.bisect.beside`). `absent`: of a cost, the share of the time in which agents
    were gone, so that it lacks what they would have taken. `cut`: a guardrail ended its method, and it shows less
    than others do.
    """

    outcome: Outcome
    text: str = ""
    recording: str = ""
    value: float | None = None
    clear: bool = False
    absent: float = 0.0
    cut: bool = False


class OutOfRunsError(Exception):
    """The search may make no more runs."""


@dataclass(frozen=True)
class Tally:
    """What the runs of one candidate said."""

    held: int = 0
    broken: int = 0
    invalid: int = 0
    refused: str = ""
    why_invalid: str = ""

    def __str__(self) -> str:
        if self.refused:
            return f"cannot be run: {self.refused}"
        said = f"broke in {self.broken} of {self.held + self.broken} runs"
        why = f" ({self.why_invalid})" if self.why_invalid else ""
        return said + (f", and {self.invalid} more said nothing{why}" if self.invalid else "")


class Trials:
    """Asks for runs, and keeps what each candidate's runs said. `before`: runs that were made already, as logged."""

    def __init__(
        self,
        run: Callable[[str], Trial],
        *,
        at_most: int = AT_MOST,
        before: Iterable[tuple[str, Trial]] = (),
        shown: Callable[[str], str] = str,
    ) -> None:
        self._run = run
        self.shown = shown
        """A candidate for a person."""
        self.at_most = at_most
        self._before: defaultdict[str, deque[Trial]] = defaultdict(deque)
        for candidate, trial in before:
            self._before[candidate].append(trial)
        self._refused: dict[str, str] = {}
        self._invalid: dict[str, str] = {}
        self._counts: defaultdict[str, Counter[Outcome]] = defaultdict(Counter)
        self._unresolved: set[str] = set()
        self.answers: list[bool] = []
        """Whether it broke, of each valid run so far."""
        self.clear = False
        """Whether the last valid run was clear."""

    @property
    def runs(self) -> int:
        """How many runs the search has asked for so far."""
        return sum(counts.total() for counts in self._counts.values())

    @property
    def candidates(self) -> list[str]:
        """Those that were run, in the order of their first run."""
        return list(self._counts)

    def tally(self, candidate: str) -> Tally:
        counts = self._counts.get(candidate, Counter[Outcome]())
        return Tally(
            counts[Outcome.HELD],
            counts[Outcome.BROKEN],
            counts[Outcome.INVALID],
            self._refused.get(candidate, ""),
            self._invalid.get(candidate, ""),
        )

    def ask(self, candidate: str) -> bool | None:
        """Whether it breaks, by one valid run; None when it cannot be resolved. Raises OutOfRunsError."""
        if candidate in self._unresolved:
            return None
        for _ in range(INVALID_IN_A_ROW):
            trial = self._next(candidate)
            if trial.outcome is Outcome.REFUSED:
                self._refused[candidate] = trial.text or "it was refused"
                break
            self._counts[candidate][trial.outcome] += 1
            if trial.outcome is not Outcome.INVALID:
                self.answers.append(trial.outcome is Outcome.BROKEN)
                self.clear = trial.clear
                return trial.outcome is Outcome.BROKEN
            self._invalid[candidate] = trial.text
        self._unresolved.add(candidate)
        return None

    def _next(self, candidate: str) -> Trial:
        if self._before[candidate]:
            return self._before[candidate].popleft()
        if self.runs >= self.at_most:
            raise OutOfRunsError
        return self._run(candidate)
