"""Verdicts, and how they merge: FAIL outranks INVALID, INVALID outranks PASS; merging nothing is INVALID."""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


class Verdict(enum.StrEnum):
    """The verdict of a run. `exit_code` is the exit code of the process."""

    PASS = "PASS"  # noqa: S105 - a verdict
    FAIL = "FAIL"
    INVALID = "INVALID"

    @property
    def exit_code(self) -> int:
        return {"PASS": 0, "FAIL": 1, "INVALID": 3}[self.value]


class Finding(enum.StrEnum):
    """The result of one expectation."""

    HELD = "held"
    BROKEN = "broken"
    INVALID = "invalid"
    KNOWN = "known"
    """Broken, as its known_issue says: an expected failure."""
    FIXED = "fixed"
    """Held although it has a known_issue: an unexpected pass, which counts as a failure until the YAML is corrected."""

    @property
    def verdict(self) -> Verdict:
        return {
            Finding.HELD: Verdict.PASS,
            Finding.KNOWN: Verdict.PASS,
            Finding.BROKEN: Verdict.FAIL,
            Finding.FIXED: Verdict.FAIL,
            Finding.INVALID: Verdict.INVALID,
        }[self]


HARMLESS = "this makes no expectation INVALID"
"""The end of the text of a doubt that affects no judgement."""
NOT_JUDGED = "not judged: "
"""The start of the text of an expectation that was not judged."""
MEASURED_ANYWAY = "(measured anyway: "
"""The start of the result of an expectation that is INVALID because its measurements are in doubt."""


@dataclass(frozen=True)
class Judgement:
    """One judged expectation: `text` is one or a few lines for people, `figures` are the numbers behind it."""

    title: str
    hypothesis: str
    finding: Finding
    text: str
    figures: Mapping[str, float | str | list[str]] = field(default_factory=dict)
    known_issue: str | None = None


@dataclass(frozen=True)
class RunVerdict:
    """The verdict of a run: each judgement, and in `invalid` why the run is INVALID whatever the expectations say.

    `doubts` name the seconds that were not measured validly: judgements that rely on them are INVALID, the others
    stand.
    """

    invalid: list[str]
    judgements: list[Judgement]
    doubts: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list, kw_only=True)
    """Notes that change no verdict, for example that hypotheses differ from the run's."""

    def text_of(self, judgement: Judgement) -> str:
        """The judgement's text, without a reason that makes the run INVALID: reports show it once, further up."""
        reason = judgement.text.removeprefix(NOT_JUDGED)
        return "not judged" if reason != judgement.text and reason in self.invalid else judgement.text

    @property
    def verdict(self) -> Verdict:
        verdicts = [judgement.finding.verdict for judgement in self.judgements]
        return merge([*verdicts, *([Verdict.INVALID] if self.invalid else [])])


def merge(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst verdict: FAIL, then INVALID, then PASS; INVALID if there is nothing to merge."""
    seen = set(verdicts)
    for verdict in (Verdict.FAIL, Verdict.INVALID, Verdict.PASS):
        if verdict in seen:
            return verdict
    return Verdict.INVALID
