"""What was played of a comparison: a run of one side, and a round of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hashidrill.core.compare.disturbed import Use
from hashidrill.core.compare.measured import Measured


@dataclass(frozen=True)
class Played:
    """One run of one side. `invalid`: why it says nothing; `unsteady`: it never got as far as its method."""

    side: str
    recording: Path
    measured: Mapping[str, Measured] = field(repr=False)
    invalid: str = ""
    unsteady: bool = False
    use: Use | None = None
    """What it took of the machine."""

    @property
    def disturbed(self) -> bool:
        """Whether other work on the machine disturbed it: what broke in it may have broken for that."""
        return self.use is not None and bool(self.use.why)


@dataclass(frozen=True)
class Round:
    """One run of each side, in the order in which they were played; of a spoilt round there may be one alone."""

    number: int
    runs: Sequence[Played]
    names: tuple[str, str]
    """The baseline's name and the candidate's."""

    @property
    def counts(self) -> bool:
        return len(self.runs) == len(self.names) and not any(run.invalid for run in self.runs)

    @property
    def sides(self) -> tuple[Played, Played]:
        """The baseline's run and the candidate's. Only of a round that counts."""
        by_name = {run.side: run for run in self.runs}
        return by_name[self.names[0]], by_name[self.names[1]]
