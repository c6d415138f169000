"""Confusion matrices: of everything that judges, what it says of a planted truth, of a planted lie, and of nothing.

A matrix has a row for each case. `planted` is what is the case, `found` what was said; a row is right when they agree.
Print one with `-s`: `uv run pytest tests/unit/hypotheses/test_confusion_hypotheses.py -s`.
"""

from collections import Counter
from dataclasses import dataclass, field

TRUTH, LIE, NOTHING = "truth", "lie", "nothing"


@dataclass(frozen=True)
class Row:
    """`subject` is what judges; `case` says what was planted."""

    subject: str
    case: str
    planted: str
    found: str

    @property
    def right(self) -> bool:
        return self.planted == self.found


@dataclass
class Matrix:
    """The rows of one kind of subjects."""

    noun: str
    rows: list[Row] = field(default_factory=list)

    def note(self, subject: str, case: str, planted: str, found: str) -> Row:
        self.rows.append(Row(subject, case, planted, found))
        return self.rows[-1]

    def __str__(self) -> str:
        """A line for each row, and how many of each sort were right."""
        rows = sorted(self.rows, key=lambda row: (row.subject, row.planted != TRUTH, row.planted != LIE, row.case))
        head = (self.noun, "planted", "found", "")
        cells = [head, *((row.subject, row.planted, row.found, _what(row)) for row in rows)]
        widths = [max(len(cell[column]) for cell in cells) for column in range(3)]
        lines = [
            "  ".join([*(text.ljust(w) for text, w in zip(cell, widths, strict=False)), cell[3]]) for cell in cells
        ]
        return "\n".join([*(line.rstrip() for line in lines), "", self.summary()])

    def summary(self) -> str:
        planted, right = Counter(row.planted for row in self.rows), Counter(r.planted for r in self.rows if r.right)
        parts = [f"{right[what]} of {count} {what}" for what, count in planted.items()]
        share = sum(right.values()) / len(self.rows) if self.rows else 0.0
        return f"{len({row.subject for row in self.rows})} {self.noun}: {', '.join(parts)} told right ({share:.0%})"


def _what(row: Row) -> str:
    return row.case if row.right else f"WRONG: {row.case}"


def unplanted(cases: dict[str, list[str]], subjects: set[str]) -> dict[str, list[str]]:
    """Of each subject the sorts of case that nobody has planted for it; `cases` are those there are."""
    missing = {subject: [what for what in (TRUTH, LIE) if what not in cases.get(subject, [])] for subject in subjects}
    return {subject: whats for subject, whats in sorted(missing.items()) if whats}
